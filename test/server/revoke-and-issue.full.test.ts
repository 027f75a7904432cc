import { test } from 'vitest';
import { revokeAndIssue, startReplicas, startReplicasOnRedis, withOpaqueTokens } from './revoke-and-issue.ts';

const ROUNDS = 150;

test.each(['jwt', 'opaque'] as const)(
  'V13 in 150 rounds, no earlier grant survives a revocation and no later one is refused: two workers on the embedded store, %s',
  async (format) => {
    const change = format === 'opaque' ? withOpaqueTokens : undefined;
    await revokeAndIssue(await startReplicas(1, change ?? ((settings) => settings), ['listen.workers=2']), ROUNDS);
  },
);

test.each(['jwt', 'opaque'] as const)(
  'V13 in 150 rounds, no earlier grant survives a revocation and no later one is refused: three replicas on Redis, %s',
  async (format) => {
    await revokeAndIssue(await startReplicasOnRedis(3, format === 'opaque' ? withOpaqueTokens : undefined), ROUNDS);
  },
);
