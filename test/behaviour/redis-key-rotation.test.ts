import { copyFileSync, mkdtempSync, readFileSync, renameSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { newKeyring, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { type Fleet, openFleet } from '../chaos/fleet.ts';
import { gatehouse } from '../support/command-line.ts';
import { type RedisServer, redisServer } from '../support/redis-server.ts';
import { until } from '../support/serve-process.ts';

/** As docs/administration.md has it: rotate one copy of the key file, bring it to every replica within the time to publish. */
let redis: RedisServer;
let fleet: Fleet;
let folder: string;
const keysOf = (replica: number): string => join(folder, `keys-${replica}.json`);
beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'gatehouse-keys-'));
  writeKeyringFile(keysOf(0), newKeyring('EdDSA'), { replace: false });
  copyFileSync(keysOf(0), keysOf(1));
  redis = await redisServer();
  fleet = await openFleet({
    redis: redis.port,
    size: 2,
    connections: 2,
    set: (replica) => [`keys.file=${keysOf(replica)}`],
  });
  await fleet.allReady();
});
afterAll(async () => {
  await fleet?.close();
  await redis?.stop();
  rmSync(folder, { recursive: true, force: true });
});

const kidOf = (token: string): string =>
  (JSON.parse(Buffer.from(token.split('.')[0] ?? '', 'base64url').toString()) as { kid: string }).kid;

test('O08 keys rotate in a running fleet: each replica has its copy before the first new token, and no token is refused meanwhile', async () => {
  const [first, second] = fleet.replicas;
  if (first === undefined || second === undefined) throw new Error('two are needed');
  const old = await first.caller.grant();
  const oldKid = kidOf(old.access_token);

  const rotated = await gatehouse([
    'keys',
    'rotate',
    keysOf(0),
    '--publish-before',
    '12s',
    '--output',
    'json',
  ]);
  expect(rotated).toMatchObject({ code: 0, stderr: '' });
  const { keys } = JSON.parse(rotated.stdout) as { keys: { kid: string; use: string; state: string }[] };
  const newKid = keys.find(({ use, state }) => use === 'signing' && state === 'published')?.kid ?? '';
  expect(newKid).not.toBe('');
  await until('the first replica has them', () => fleet.audits('keys_changed') === 1, 10);
  // The second one learns of them later, as by a Secret that is mounted: whole, or not at all.
  copyFileSync(keysOf(0), `${keysOf(1)}.next`);
  renameSync(`${keysOf(1)}.next`, keysOf(1));

  const refused: string[] = [];
  const everywhere = async (token: string): Promise<void> => {
    for (const { name, caller } of fleet.replicas) {
      const status = await caller.call(token);
      if (status !== 200) refused.push(`${status} from replica ${name} for a token of ${kidOf(token)}`);
    }
  };
  const signedBy = new Set<string>();
  await until(
    'both sign with the new key',
    async () => {
      for (const { name, caller } of fleet.replicas) {
        const { access_token: token } = await caller.grant();
        signedBy.add(`${name} ${kidOf(token)}`);
        await everywhere(token);
      }
      await everywhere(old.access_token);
      return [first, second].every(({ name }) => signedBy.has(`${name} ${newKid}`));
    },
    60,
  );
  expect(refused).toEqual([]);
  expect(signedBy).toContain(`${first.name} ${oldKid}`);
  expect(fleet.audits('keys_changed')).toBe(2);

  // A refresh token that the old key sealed is worth what it was, at the other replica too.
  const refreshed = await second.caller.refresh(old.refresh_token);
  expect(refreshed.status).toBe(200);
  const token = String(refreshed.json['access_token']);
  expect(kidOf(token)).toBe(newKid);
  await everywhere(token);
  expect(refused).toEqual([]);
  expect(readFileSync(keysOf(1), 'utf8')).toBe(readFileSync(keysOf(0), 'utf8'));
});
