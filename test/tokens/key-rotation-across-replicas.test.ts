import { copyFileSync, mkdtempSync, renameSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createKeyringFile, readKeyringFile, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { type Fleet, startFleet } from '../chaos/fleet.ts';
import { runGatehouse } from '../support/command-line.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import { until } from '../support/serve-process.ts';

/** As in docs/administration.md: rotate one copy of the key file and copy it to every replica before it becomes active. */
let redis: RedisServer;
let fleet: Fleet;
let folder: string;
const getKeyFile = (replica: number): string => join(folder, `keys-${replica}.json`);
beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'gatehouse-keys-'));
  writeKeyringFile(getKeyFile(0), createKeyringFile('EdDSA'), { replace: false });
  copyFileSync(getKeyFile(0), getKeyFile(1));
  redis = await startRedis();
  fleet = await startFleet({
    redis: redis.port,
    size: 2,
    connections: 2,
    set: (replica) => [`keys.file=${getKeyFile(replica)}`],
  });
  await fleet.allReady();
});
afterAll(async () => {
  await fleet?.close();
  await redis?.stop();
  rmSync(folder, { recursive: true, force: true });
});

const readKid = (token: string): string =>
  (JSON.parse(Buffer.from(token.split('.')[0] ?? '', 'base64url').toString()) as { kid: string }).kid;

test('O08 keys rotate in a running fleet: each replica gets its copy before the first new token, and no token is refused meanwhile', async () => {
  const [first, second] = fleet.replicas;
  if (first === undefined || second === undefined) throw new Error('expected two replicas');
  const old = await first.caller.grant();
  const oldKid = readKid(old.access_token);
  /** Expects that each replica signs with the given key, and that all replicas accept all tokens. */
  const expectSignedWith = async (...kids: readonly string[]): Promise<void> => {
    const tokens = [old.access_token];
    for (const { caller } of fleet.replicas) tokens.push((await caller.grant()).access_token);
    expect(tokens.slice(1).map(readKid)).toEqual(kids);
    for (const token of tokens) for (const { caller } of fleet.replicas) expect(await caller.call(token)).toBe(200);
  };
  const waitForChanges = (count: number): Promise<unknown> =>
    until(`the keys have changed ${count} times`, () => fleet.countAudits('keys_changed') >= count, 60);

  const args = ['keys', 'rotate', getKeyFile(0), '--publish-before', '1h', '--output', 'json'];
  const rotated = await runGatehouse(args);
  expect(rotated).toMatchObject({ code: 0, stderr: '' });
  const { keys } = JSON.parse(rotated.stdout) as { keys: { kid: string; use: string; state: string }[] };
  const newKid = keys.find(({ use, state }) => use === 'signing' && state === 'published')?.kid ?? '';
  expect(newKid).not.toBe('');
  await waitForChanges(1);
  await expectSignedWith(oldKid, oldKid);
  // The second replica gets the file later and atomically, as from a mounted Secret.
  copyFileSync(getKeyFile(0), `${getKeyFile(1)}.next`);
  renameSync(`${getKeyFile(1)}.next`, getKeyFile(1));
  await waitForChanges(2);
  await expectSignedWith(oldKid, oldKid);

  // As if the hour of publication had passed.
  const { signing, sealing, ...rest } = readKeyringFile(getKeyFile(0));
  const now = Math.floor(Date.now() / 1_000);
  const activate = <K extends { activeFrom: number }>(key: K): K => ({
    ...key,
    activeFrom: Math.min(key.activeFrom, now),
  });
  const file = { ...rest, signing: signing.map(activate), sealing: sealing.map(activate) };
  const countReloads = (): number[] =>
    fleet.replicas.map(({ process }) => process.log.filter(({ event }) => event === 'reloaded').length);
  const before = countReloads();
  for (const { name } of fleet.replicas) writeKeyringFile(getKeyFile(name), file, { replace: true });
  await until(
    'both replicas have reloaded',
    () => countReloads().every((count, name) => count > (before[name] ?? 0)),
    30,
  );
  await expectSignedWith(newKid, newKid);

  // A refresh token sealed with the old key remains valid, also at the other replica.
  const refreshed = await second.caller.refresh(old.refresh_token);
  expect(refreshed.status).toBe(200);
  const token = String(refreshed.json['access_token']);
  expect(readKid(token)).toBe(newKid);
  for (const { caller } of fleet.replicas) expect(await caller.call(token)).toBe(200);
});
