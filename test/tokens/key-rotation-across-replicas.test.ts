import { copyFileSync, mkdtempSync, renameSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createKeyringFile, readKeyringFile, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { type Fleet, startFleet } from '../chaos/fleet.ts';
import { runGatehouse } from '../support/command-line.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { until } from '../support/serve-process.ts';

/** As docs/administration.md has it: rotate one copy of the key file, bring it to every replica within the time to publish. */
let redis: RedisServer;
let fleet: Fleet;
let folder: string;
const keysOf = (replica: number): string => join(folder, `keys-${replica}.json`);
beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'gatehouse-keys-'));
  writeKeyringFile(keysOf(0), createKeyringFile('EdDSA'), { replace: false });
  copyFileSync(keysOf(0), keysOf(1));
  redis = await startRedis();
  fleet = await startFleet({
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
  /** Each replica signs with its key, and all accept what any of them has signed. */
  const sign = async (...kids: readonly string[]): Promise<void> => {
    const tokens = [old.access_token];
    for (const { caller } of fleet.replicas) tokens.push((await caller.grant()).access_token);
    expect(tokens.slice(1).map(kidOf)).toEqual(kids);
    for (const token of tokens)
      for (const { caller } of fleet.replicas) expect(await caller.call(token)).toBe(200);
  };
  const changes = (count: number): Promise<unknown> =>
    until(`change ${count} of the keys`, () => fleet.audits('keys_changed') >= count, 60);

  const args = ['keys', 'rotate', keysOf(0), '--publish-before', '1h', '--output', 'json'];
  const rotated = await runGatehouse(args);
  expect(rotated).toMatchObject({ code: 0, stderr: '' });
  const { keys } = JSON.parse(rotated.stdout) as { keys: { kid: string; use: string; state: string }[] };
  const newKid = keys.find(({ use, state }) => use === 'signing' && state === 'published')?.kid ?? '';
  expect(newKid).not.toBe('');
  await changes(1);
  await sign(oldKid, oldKid);
  // The second one gets them later, as from a mounted Secret: the whole file, or none.
  copyFileSync(keysOf(0), `${keysOf(1)}.next`);
  renameSync(`${keysOf(1)}.next`, keysOf(1));
  await changes(2);
  await sign(oldKid, oldKid);

  // The hour of publication is over.
  const { signing, sealing, ...rest } = readKeyringFile(keysOf(0));
  const now = Math.floor(Date.now() / 1_000);
  const active = <K extends { activeFrom: number }>(key: K): K => ({
    ...key,
    activeFrom: Math.min(key.activeFrom, now),
  });
  const file = { ...rest, signing: signing.map(active), sealing: sealing.map(active) };
  const reloads = (): number[] =>
    fleet.replicas.map(({ process }) => process.log.filter(({ event }) => event === 'reloaded').length);
  const before = reloads();
  for (const { name } of fleet.replicas) writeKeyringFile(keysOf(name), file, { replace: true });
  await until('both have read them', () => reloads().every((count, name) => count > (before[name] ?? 0)), 30);
  await sign(newKid, newKid);

  // A refresh token that the old key sealed remains valid, at the other replica too.
  const refreshed = await second.caller.refresh(old.refresh_token);
  expect(refreshed.status).toBe(200);
  const token = String(refreshed.json['access_token']);
  expect(kidOf(token)).toBe(newKid);
  for (const { caller } of fleet.replicas) expect(await caller.call(token)).toBe(200);
});
