import { cpSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Redis } from 'ioredis';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { stringify } from 'yaml';
import { migrateToRedis } from '../../src/commands/restore/migrate-to-redis.ts';
import type { SettingsInput } from '../../src/config/schema.ts';
import { revokeAllGrants } from '../../src/grants/revoke.ts';
import { createLogger } from '../../src/observability/logger.ts';
import { type Gateway, openGateway } from '../../src/server/gateway.ts';
import type { EmbeddedStore } from '../../src/stores/embedded/store.ts';
import { createKeyringFile, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { runGatehouse } from '../support/command-line.ts';
import { createDeviceClient } from '../support/device-client.ts';
import { embeddedStorePath, openRawEmbedded, openRawRedis, tamper } from '../support/raw-records.ts';
import { type RedisServer, startRedis } from '../support/redis-server.ts';
import {
  ALICE,
  BOB,
  baseSettings,
  type Reply,
  startGateway,
  type TestGateway,
  type TokenGrant,
  writeAndLoadSettings,
} from '../support/test-gateway.ts';

let server: RedisServer;
let redis: Redis;
beforeAll(async () => {
  server = await startRedis();
  redis = new Redis(server.port);
});
afterAll(async () => {
  redis.disconnect();
  await server.stop();
});

let testGateway: TestGateway;
let folder: string;
const cleanups: (() => Promise<unknown>)[] = [];
beforeEach(async () => {
  await redis.flushall();
  testGateway = await startGateway();
  folder = mkdtempSync(join(tmpdir(), 'gatehouse-moved-'));
});
afterEach(async () => {
  for (const close of cleanups.splice(0).toReversed()) await close();
  await testGateway.close();
  rmSync(folder, { recursive: true, force: true });
});

const onRedis = (): SettingsInput => ({
  ...baseSettings(testGateway.upstream.port),
  store: { type: 'redis', url: server.url },
});
/** `redis.yaml` next to `gatehouse.yaml`, with the same certificates and keys. */
const writeRedisYaml = (settings: SettingsInput = onRedis()): void =>
  writeFileSync(join(testGateway.folder, 'redis.yaml'), stringify(settings));
const runLine = (args: string) => runGatehouse(args.split(/\s+/).slice(1), { cwd: testGateway.folder });

/** Starts a second gateway on Redis with the same certificates and keys. */
async function startMigrated(): Promise<Gateway> {
  const other = join(folder, 'gateway');
  mkdirSync(other, { recursive: true });
  for (const file of ['ca.pem', 'server.pem', 'server-key.pem'])
    cpSync(join(testGateway.folder, file), join(other, file));
  const keys = { file: join(testGateway.folder, 'data/keys.json') };
  const gateway = await openGateway({
    settings: writeAndLoadSettings(other, { ...onRedis(), keys }),
    log: createLogger({ level: 'error', format: 'json', write: () => {} }),
  });
  cleanups.push(() => gateway.close());
  return gateway;
}
const requestTo = (
  { port }: Gateway,
  path: string,
  more: Omit<Parameters<TestGateway['request']>[0], 'path'> = {},
): Promise<Reply> => testGateway.request({ path, ...more, port });
const refresh = (gateway: Gateway, token: string): Promise<Reply> =>
  requestTo(gateway, '/authsvc/Authorize/Token', {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ client_id: 'report-runner', refresh_token: token }),
  });
const call = async (gateway: Gateway, { access_token: token }: TokenGrant): Promise<number> =>
  (await requestTo(gateway, '/files/a', { headers: { authorization: `Bearer ${token}` } })).status;

test('after the documented commands, grants still work, revoked grants stay revoked, and changes made in between are migrated', async () => {
  const [kept, ended, bobs] = [
    await testGateway.grant(),
    await testGateway.grant(),
    await testGateway.grant({ user: 'bob' }),
  ];
  const device = createDeviceClient(testGateway);
  const [confirmed, pending] = [await device.requestCodes(), await device.requestCodes()];
  await device.confirm(confirmed);
  await testGateway.api('/authsvc/Revoke/Token', ended.access_token);
  writeRedisYaml();

  const page = readFileSync(join(import.meta.dirname, '../../docs/storage.md'), 'utf8');
  const [, block = ''] = /## From embedded to Redis[^]*?```sh\n([^]*?)```/.exec(page) ?? [];
  const lines = block.trim().split('\n');
  let gateway: Gateway | undefined;
  let next = kept;
  let late: TokenGrant | undefined;
  for (const line of lines) {
    if (line.startsWith('#')) {
      // Between the two restores, the old gatehouse has served requests and stops now.
      next = (await testGateway.refresh(kept.refresh_token)).json as unknown as TokenGrant;
      late = await testGateway.grant();
      await testGateway.api('/authsvc/Revoke/Token', late.access_token);
      await revokeAllGrants(
        { store: testGateway.server.store, now: () => testGateway.clock.now() },
        { of: 'identity', identity: BOB },
        86_400,
      );
      await testGateway.server.close();
    } else if (line.includes(' serve ')) gateway = await startMigrated();
    else {
      const result = await runLine(line);
      expect(result, `${line}: ${result.stderr}`).toMatchObject({ code: 0 });
      if (line.includes(' restore '))
        expect(result.stdout).toMatch(/If the old gatehouse still runs, stop it, then back up and restore once more/);
    }
  }
  if (gateway === undefined || late === undefined) throw new Error('the documentation lacks a step');
  expect(await call(gateway, kept)).toBe(200);
  expect((await refresh(gateway, next.refresh_token)).status).toBe(200);
  expect([await call(gateway, ended), await call(gateway, late), await call(gateway, bobs)]).toEqual([401, 401, 401]);
  for (const { refresh_token: token } of [ended, late, bobs])
    expect((await refresh(gateway, token)).json['Error']).toBe('invalid_grant');
  const exchange = (code: string): Promise<Reply> =>
    requestTo(gateway, '/authsvc/Authorize/Token', {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({
        client_id: 'report-runner',
        grant_type: 'urn:ietf:params:oauth:grant-type:device_code',
        device_code: code,
      }),
    });
  expect((await exchange(confirmed.device_code)).status).toBe(200);
  expect((await exchange(pending.device_code)).json['Error']).toBe('authorization_pending');
  expect((await gateway.store.grantIndex.list({ identity: BOB, limit: 10 })).grants).toHaveLength(1);
});

/** The following helpers run the migration in this process. */
const file = (): string => join(folder, 'a.backup');
const backUp = async (): Promise<string> => {
  rmSync(file(), { force: true });
  await (testGateway.server.store as EmbeddedStore).backup(file());
  return file();
};
const keyFile = (): string => join(testGateway.folder, 'data/keys.json');
const restore = (change: Partial<SettingsInput> = {}) => {
  const directory = mkdtempSync(join(folder, 'restore-'));
  for (const name of ['ca.pem', 'server.pem', 'server-key.pem'])
    cpSync(join(testGateway.folder, name), join(directory, name));
  const settings = writeAndLoadSettings(directory, { ...onRedis(), keys: { file: keyFile() }, ...change });
  return migrateToRedis({ settings, from: file() });
};

test('repeating the migration changes nothing and reverts nothing', async () => {
  const grant = await testGateway.grant();
  await backUp();
  expect(await restore()).toEqual({
    grants: 1,
    devices: 0,
    userCodes: 0,
    revocations: 0,
    present: 0,
    refused: 0,
  });
  await testGateway.server.close();
  const gateway = await startMigrated();
  const next = (await refresh(gateway, grant.refresh_token)).json as unknown as TokenGrant;
  expect(await restore()).toMatchObject({ grants: 1, present: 1 });
  expect(await call(gateway, next)).toBe(200);
  expect((await refresh(gateway, next.refresh_token)).status).toBe(200);
});

test('a record altered in the embedded store is not migrated, and one altered in Redis fails the migration', async () => {
  const grants = [await testGateway.grant(), await testGateway.grant()];
  const [altered = '', other = ''] = grants.map(({ refresh_token: token }) => token.split('.')[1]);
  await testGateway.restart(async () => {
    const raw = openRawEmbedded(embeddedStorePath(testGateway.folder));
    await tamper(raw, 'grants', altered, (text) => text.replace(ALICE, BOB));
    await raw.close();
  });
  await backUp();
  expect(await restore()).toMatchObject({ grants: 1, refused: 1 });
  expect(await redis.exists(`gh:{${altered}}:g`)).toBe(0);
  // The record in Redis has a new MAC.
  const raw = openRawRedis(server.port);
  await tamper(raw, 'grants', other, (text) => text.replace(ALICE, BOB));
  await raw.close();
  await expect(restore()).rejects.toThrow(`the record ${other} in Redis fails authentication`);
});

test('after an interrupted migration, gatehouse does not start until the migration has completed', async () => {
  for (let index = 0; index < 20; index += 1) await testGateway.grant();
  const grant = await testGateway.grant();
  await backUp();
  await restore();
  // Like a migration that was killed half-way: started, and some grants are missing.
  await redis.del((await redis.keys('gh:*:g')).slice(0, 10));
  const begun = (await redis.get('gh:{migration}:n')) ?? '';
  await redis.set('gh:{migration}:n', begun.replace('ended', 'begun'));
  await testGateway.server.close();
  await expect(startMigrated()).rejects.toThrow(/a migration into this Redis is incomplete/);
  expect(await restore()).toMatchObject({ grants: 21, present: 11 });
  const gateway = await startMigrated();
  expect((await refresh(gateway, grant.refresh_token)).status).toBe(200);
  expect(await call(gateway, grant)).toBe(200);
});

test("another installation's Redis, missing or different keys, an unreachable server and an invalid backup are rejected, and nothing is written", async () => {
  await testGateway.grant();
  await backUp();
  const others = join(folder, 'others.json');
  writeKeyringFile(others, createKeyringFile('EdDSA'), { replace: false });
  const outsider = await startGateway((settings) => ({
    ...settings,
    store: { type: 'redis', url: server.url },
    keys: { file: others },
  }));
  await outsider.grant();
  await outsider.close();
  const before = (await redis.keys('*')).toSorted();
  await expect(restore()).rejects.toThrow(/holds grants of another gatehouse installation/);
  expect((await redis.keys('*')).toSorted()).toEqual(before);

  await redis.flushall();
  await expect(restore({ keys: { file: 'nowhere.json' } })).rejects.toThrow(/nowhere\.json is missing/);
  await expect(restore({ keys: { file: others } })).rejects.toThrow(/which keys\.file does not have/);
  expect(await redis.keys('gh:*:g')).toEqual([]);
  await expect(restore({ store: { type: 'redis', url: 'redis://127.0.0.1:1' } })).rejects.toThrow(/connection refused/);
  writeFileSync(file(), 'not a backup', { mode: 0o600 });
  await redis.flushall();
  await expect(restore()).rejects.toThrow(/was not restored/);
  expect(await redis.keys('*')).toEqual([]);
});
