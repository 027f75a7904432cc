import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  afterAll,
  afterEach,
  beforeAll,
  beforeEach,
  describe,
  expect,
  onTestFinished,
  test,
  vi,
} from 'vitest';
import type { SettingsInput } from '../../../src/config/schema.ts';
import { createLogger } from '../../../src/observability/logger.ts';
import { openGateway } from '../../../src/server/gateway.ts';
import { createKeyringFile, writeKeyringFile } from '../../../src/tokens/keyring-file.ts';
import { type FaultyRelay, startFaultyRelay } from '../../support/faulty-relay.ts';
import { freePort } from '../../support/front-proxy.ts';
import { type RedisServer, startRedis } from '../../support/redis-server.ts';
import {
  REDIS_TIMEOUT_MS,
  type Reply,
  startGateway,
  type TestGateway,
  type TokenGrant,
  writeAndLoadSettings,
} from '../../support/test-gateway.ts';

const folder = mkdtempSync(join(tmpdir(), 'gatehouse-redis-keys-'));
const keyFile = (name: string): string => join(folder, name);
writeKeyringFile(keyFile('keys.json'), createKeyringFile('EdDSA'), { replace: false });
writeKeyringFile(keyFile('others.json'), createKeyringFile('EdDSA'), { replace: false });
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const onRedis =
  (port: number, store: SettingsInput['store'] = {}, keys = 'keys.json') =>
  (settings: SettingsInput): SettingsInput => ({
    ...settings,
    store: { type: 'redis', url: `redis://127.0.0.1:${port}`, ...store },
    keys: { file: keyFile(keys) },
  });
const revoke = (gateway: TestGateway, { access_token: token }: TokenGrant): Promise<Reply> =>
  gateway.request({ path: '/authsvc/Revoke/Token', headers: { authorization: `Bearer ${token}` } });
const call = async (gateway: TestGateway, { access_token: token }: TokenGrant): Promise<number> =>
  (await gateway.api('/files/a', token)).status;
const soon = <T>(check: () => T): Promise<T> => vi.waitFor(check, { timeout: 20_000, interval: 25 });

let server: RedisServer;
beforeAll(async () => {
  server = await startRedis();
});
afterAll(() => server.stop());

describe('two gateways on one Redis', () => {
  let one: TestGateway;
  let two: TestGateway;
  beforeAll(async () => {
    const open = (): Promise<TestGateway> => startGateway(onRedis(server.port), undefined, REDIS_TIMEOUT_MS);
    [one, two] = await Promise.all([open(), open()]);
  });
  afterAll(() => Promise.all([one.close(), two.close()]));

  test('V01 what one has granted the other accepts; what one has revoked the other refuses', async () => {
    for (let attempt = 0; attempt < 10; attempt += 1) {
      const [here, there] = attempt % 2 === 0 ? [one, two] : [two, one];
      const grant = await here.grant();
      expect(await call(there, grant)).toBe(200);
      expect((await revoke(here, grant)).status).toBe(200);
      expect([await call(there, grant), await call(here, grant)]).toEqual([401, 401]);
      const { status, json } = await there.refresh(grant.refresh_token);
      expect([status, json['Error']]).toEqual([400, 'invalid_grant']);
    }
  });

  test('R05 a hundred refreshes of one token at once, over both: one rotation, the same tokens in every response', async () => {
    const grant = await one.grant();
    const replies = await Promise.all(
      Array.from({ length: 100 }, (_, index) => (index % 2 ? one : two).refresh(grant.refresh_token)),
    );
    expect(new Set(replies.map(({ status }) => status))).toEqual(new Set([200]));
    expect(new Set(replies.map(({ json }) => json['refresh_token'])).size).toBe(1);
    expect(new Set(replies.map(({ json }) => json['access_token'])).size).toBe(1);
    const rotations = [one, two].flatMap((gateway) => gateway.auditEvents('grant_refreshed'));
    expect(rotations.filter((line) => line['generation'] === 2)).toHaveLength(1);
  });
});

describe('a gateway whose Redis becomes unreachable', () => {
  let relay: FaultyRelay;
  let gateway: TestGateway;
  beforeEach(async () => {
    relay = await startFaultyRelay(server.port);
    gateway = await startGateway(onRedis(relay.port, { maxStaleness: '5s' }));
  });
  afterEach(async () => {
    await gateway.close();
    await relay.close();
  });

  test('S02 V05 checks tokens from memory, reports temporary errors for what needs the store, then accepts no token, and recovers by itself', async () => {
    const [kept, ended] = [await gateway.grant(), await gateway.grant()];
    relay.set('refuse');
    // Both at once: together with the checks after them they take less than `maxStaleness`.
    const [refresh, revoked] = await Promise.all([
      gateway.refresh(kept.refresh_token),
      revoke(gateway, ended),
    ]);
    expect([refresh.status, refresh.json['Error']]).toEqual([400, 'invalid_request']);
    expect(Number(refresh.headers['retry-after'])).toBeGreaterThan(0);
    expect(revoked.status).toBe(503);
    expect(Number(revoked.headers['retry-after'])).toBeGreaterThan(0);
    expect([await call(gateway, kept), await call(gateway, ended)]).toEqual([200, 401]);

    await soon(async () => expect(await call(gateway, kept)).toBe(503));
    expect((await fetch(`http://127.0.0.1:${gateway.adminPort}/readyz`)).status).toBe(503);
    expect((await fetch(`http://127.0.0.1:${gateway.adminPort}/livez`)).status).toBe(200);

    relay.set('pass');
    await soon(async () => expect(await call(gateway, kept)).toBe(200));
    await soon(async () =>
      expect((await fetch(`http://127.0.0.1:${gateway.adminPort}/readyz`)).status).toBe(200),
    );
    expect(await call(gateway, ended)).toBe(401);
    expect((await gateway.refresh(kept.refresh_token)).status).toBe(200);
    // The end that could not be announced is announced by now, so another gateway knows it too.
    await soon(async () => {
      const { json } = await gateway.refresh(ended.refresh_token);
      expect(json['Error']).toBe('invalid_grant');
    });
  });
});

describe('at the start', () => {
  test('S01 without Redis it is alive and not ready; when Redis comes it serves', async () => {
    const adminPort = await freePort();
    // Port 1 refuses connections.
    const relay = await startFaultyRelay(1);
    onTestFinished(() => relay.close());
    const gatehouse = await startGateway(onRedis(server.port));
    onTestFinished(() => gatehouse.close());
    const settings = writeAndLoadSettings(gatehouse.folder, {
      ...onRedis(relay.port)({ publicUrl: 'https://localhost:8443' }),
      listen: { port: 0, tls: { certificate: 'server.pem', key: 'server-key.pem' } },
      admin: { port: adminPort },
      upstreams: { default: { url: 'http://127.0.0.1:9' } },
      routes: [{ path: '/**', requires: 'any-token' }],
    });
    const log = createLogger({ level: 'info', format: 'json', write: () => {} });
    const opening = openGateway({ settings, log });
    const probe = async (path: string): Promise<number> =>
      (await fetch(`http://127.0.0.1:${adminPort}${path}`)).status;
    await soon(async () => expect(await probe('/livez')).toBe(200));
    expect(await probe('/readyz')).toBe(503);
    relay.redirect(server.port);
    const gateway = await opening;
    onTestFinished(() => gateway.close());
    expect(await probe('/readyz')).toBe(200);
  });

  test('keys that are missing, or not those the store was written under, are refused and named', async () => {
    const gateway = await startGateway(onRedis(server.port, { prefix: 'keyed' }));
    try {
      await gateway.grant();
      const open = (keys: string) => startGateway(onRedis(server.port, { prefix: 'keyed' }, keys));
      await expect(open('missing.json')).rejects.toThrow(/keys\.file: .*missing\.json is missing; replicas/);
      await expect(open('others.json')).rejects.toThrow(/not the keys that this store was written with/);
    } finally {
      await gateway.close();
    }
  });

  test('a Redis that may evict is refused, with the setting that names it', async () => {
    const unfit = await startRedis(['--maxmemory-policy', 'volatile-lru']);
    try {
      await expect(startGateway(onRedis(unfit.port))).rejects.toThrow(
        /store\.url: its maxmemory-policy is volatile-lru/,
      );
    } finally {
      await unfit.stop();
    }
  });
});
