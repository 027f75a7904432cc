import { test } from 'vitest';
import { revokeAndIssue, startReplicas, startReplicasOnRedis, withOpaqueTokens } from './revoke-and-issue.ts';

const ROUNDS = 4;

test('V13 a grant issued in the same second as a revocation, but after it, is valid; earlier ones are not: embedded store', async () => {
  await revokeAndIssue(await startReplicas(1, (settings) => settings), ROUNDS);
});

test('V13 a grant issued in the same second as a revocation, but after it, is valid; earlier ones are not: two replicas on Redis', async () => {
  await revokeAndIssue(await startReplicasOnRedis(2), ROUNDS);
});

test('V13 a grant issued in the same second as a revocation, but after it, is valid; earlier ones are not: opaque tokens', async () => {
  await revokeAndIssue(await startReplicasOnRedis(2, withOpaqueTokens), ROUNDS);
});
