import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, onTestFinished, test, vi } from 'vitest';
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

const withRedis =
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
const eventually = <T>(check: () => T): Promise<T> => vi.waitFor(check, { timeout: 20_000, interval: 25 });

let server: RedisServer;
beforeAll(async () => {
  server = await startRedis();
});
afterAll(() => server.stop());

describe('two gateways on one Redis', () => {
  let first: TestGateway;
  let second: TestGateway;
  beforeAll(async () => {
    const open = (): Promise<TestGateway> => startGateway(withRedis(server.port), undefined, REDIS_TIMEOUT_MS);
    [first, second] = await Promise.all([open(), open()]);
  });
  afterAll(() => Promise.all([first.close(), second.close()]));

  test('V01 a token issued by one gateway is accepted by the other, and a revocation by one applies at the other', async () => {
    for (let attempt = 0; attempt < 10; attempt += 1) {
      const [issuer, other] = attempt % 2 === 0 ? [first, second] : [second, first];
      const grant = await issuer.grant();
      expect(await call(other, grant)).toBe(200);
      expect((await revoke(issuer, grant)).status).toBe(200);
      expect([await call(other, grant), await call(issuer, grant)]).toEqual([401, 401]);
      const { status, json } = await other.refresh(grant.refresh_token);
      expect([status, json['Error']]).toEqual([400, 'invalid_grant']);
    }
  });

  test('R05 a hundred concurrent refreshes of one token at both gateways: one rotation, the same tokens in every response', async () => {
    const grant = await first.grant();
    const replies = await Promise.all(
      Array.from({ length: 100 }, (_, index) => (index % 2 ? first : second).refresh(grant.refresh_token)),
    );
    expect(new Set(replies.map(({ status }) => status))).toEqual(new Set([200]));
    expect(new Set(replies.map(({ json }) => json['refresh_token'])).size).toBe(1);
    expect(new Set(replies.map(({ json }) => json['access_token'])).size).toBe(1);
    const rotations = [first, second].flatMap((gateway) => gateway.auditEvents('grant_refreshed'));
    expect(rotations.filter((line) => line['generation'] === 2)).toHaveLength(1);
  });
});

describe('a gateway whose Redis becomes unreachable', () => {
  let relay: FaultyRelay;
  let gateway: TestGateway;
  beforeEach(async () => {
    relay = await startFaultyRelay(server.port);
    gateway = await startGateway(withRedis(relay.port, { maxStaleness: '5s' }));
  });
  afterEach(async () => {
    await gateway.close();
    await relay.close();
  });

  test('S02 V05 verifies tokens from memory, reports temporary errors for store operations, then accepts no token, and recovers on its own', async () => {
    const [validGrant, revokedGrant] = [await gateway.grant(), await gateway.grant()];
    const probe = async (path: string): Promise<number> =>
      (await fetch(`http://127.0.0.1:${gateway.adminPort}${path}`)).status;
    relay.set('refuse');
    // Concurrently, so that they and the checks below take less than `maxStaleness`.
    const [refresh, revoked] = await Promise.all([
      gateway.refresh(validGrant.refresh_token),
      revoke(gateway, revokedGrant),
    ]);
    expect([refresh.status, refresh.json['Error']]).toEqual([400, 'invalid_request']);
    expect(Number(refresh.headers['retry-after'])).toBeGreaterThan(0);
    expect(revoked.status).toBe(503);
    expect(Number(revoked.headers['retry-after'])).toBeGreaterThan(0);
    expect([await call(gateway, validGrant), await call(gateway, revokedGrant)]).toEqual([200, 401]);
    // The probe of the chart: otherwise all pods would leave the Service at once.
    expect([await probe('/readyz'), await probe('/readyz?exclude=store')]).toEqual([503, 200]);

    await eventually(async () => expect(await call(gateway, validGrant)).toBe(503));
    expect([await probe('/readyz'), await probe('/readyz?exclude=store')]).toEqual([503, 503]);
    expect(await probe('/livez')).toBe(200);

    relay.set('pass');
    await eventually(async () => expect(await call(gateway, validGrant)).toBe(200));
    await eventually(async () => expect(await probe('/readyz')).toBe(200));
    expect(await call(gateway, revokedGrant)).toBe(401);
    expect((await gateway.refresh(validGrant.refresh_token)).status).toBe(200);
    // The failed revocation has been announced by now, so another gateway also knows it.
    await eventually(async () => {
      const { json } = await gateway.refresh(revokedGrant.refresh_token);
      expect(json['Error']).toBe('invalid_grant');
    });
  });
});

describe('at start', () => {
  test('S01 without Redis the gateway is alive but not ready; it serves as soon as Redis is reachable', async () => {
    const adminPort = await freePort();
    // Port 1 refuses connections.
    const relay = await startFaultyRelay(1);
    onTestFinished(() => relay.close());
    const gatehouse = await startGateway(withRedis(server.port));
    onTestFinished(() => gatehouse.close());
    const settings = writeAndLoadSettings(gatehouse.folder, {
      ...withRedis(relay.port)({ publicUrl: 'https://localhost:8443' }),
      listen: { port: 0, tls: { certificate: 'server.pem', key: 'server-key.pem' } },
      admin: { port: adminPort },
      upstreams: { default: { url: 'http://127.0.0.1:9' } },
      routes: [{ path: '/**', requires: 'any-token' }],
    });
    const log = createLogger({ level: 'info', format: 'json', write: () => {} });
    const opening = openGateway({ settings, log });
    const probe = async (path: string): Promise<number> => (await fetch(`http://127.0.0.1:${adminPort}${path}`)).status;
    await eventually(async () => expect(await probe('/livez')).toBe(200));
    expect([await probe('/readyz'), await probe('/readyz?exclude=store')]).toEqual([503, 503]);
    relay.redirect(server.port);
    const gateway = await opening;
    onTestFinished(() => gateway.close());
    expect(await probe('/readyz')).toBe(200);
  });

  test('missing keys, or keys that do not match the store, are refused with the name of the file', async () => {
    const gateway = await startGateway(withRedis(server.port, { prefix: 'keyed' }));
    try {
      await gateway.grant();
      const open = (keys: string) => startGateway(withRedis(server.port, { prefix: 'keyed' }, keys));
      await expect(open('missing.json')).rejects.toThrow(/keys\.file: .*missing\.json is missing; replicas/);
      await expect(open('others.json')).rejects.toThrow(/not the keys that this store was written with/);
    } finally {
      await gateway.close();
    }
  });

  test('a Redis that may evict records is refused, and the message names the setting', async () => {
    const unsuitable = await startRedis(['--maxmemory-policy', 'volatile-lru']);
    try {
      await expect(startGateway(withRedis(unsuitable.port))).rejects.toThrow(
        /store\.url: its maxmemory-policy is volatile-lru/,
      );
    } finally {
      await unsuitable.stop();
    }
  });
});
