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
import type { SettingsInput } from '../../src/config/schema.ts';
import { openGateway } from '../../src/gateway/gateway.ts';
import { createLogger } from '../../src/observability/logger.ts';
import { newKeyring, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { freePort } from '../support/gateway-process.ts';
import {
  type House,
  openHouse,
  PATIENT_MS,
  type Reply,
  settingsIn,
  type TokenGrant,
} from '../support/house.ts';
import { type RedisServer, redisServer } from '../support/redis-server.ts';
import { type FaultyWay, faultyWay } from '../support/tcp-fault.ts';

const folder = mkdtempSync(join(tmpdir(), 'gatehouse-redis-keys-'));
const keyFile = (name: string): string => join(folder, name);
writeKeyringFile(keyFile('keys.json'), newKeyring('EdDSA'), { replace: false });
writeKeyringFile(keyFile('others.json'), newKeyring('EdDSA'), { replace: false });
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const onRedis =
  (port: number, store: SettingsInput['store'] = {}, keys = 'keys.json') =>
  (settings: SettingsInput): SettingsInput => ({
    ...settings,
    store: { type: 'redis', url: `redis://127.0.0.1:${port}`, ...store },
    keys: { file: keyFile(keys) },
  });
const revoke = (house: House, { access_token: token }: TokenGrant): Promise<Reply> =>
  house.ask({ path: '/authsvc/Revoke/Token', headers: { authorization: `Bearer ${token}` } });
const call = async (house: House, { access_token: token }: TokenGrant): Promise<number> =>
  (await house.api('/files/a', token)).status;
const soon = <T>(check: () => T): Promise<T> => vi.waitFor(check, { timeout: 20_000, interval: 25 });

let server: RedisServer;
beforeAll(async () => {
  server = await redisServer();
});
afterAll(() => server.stop());

describe('two gateways on one Redis', () => {
  let one: House;
  let two: House;
  beforeAll(async () => {
    const open = (): Promise<House> => openHouse(onRedis(server.port), undefined, PATIENT_MS);
    [one, two] = await Promise.all([open(), open()]);
  });
  afterAll(() => Promise.all([one.close(), two.close()]));

  test('V01 what one has granted the other accepts; what one has revoked the other refuses', async () => {
    for (let turn = 0; turn < 10; turn += 1) {
      const [here, there] = turn % 2 === 0 ? [one, two] : [two, one];
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
    const rotations = [one, two].flatMap((house) => house.audits('grant_refreshed'));
    expect(rotations.filter((line) => line['generation'] === 2)).toHaveLength(1);
  });
});

describe('a gateway whose Redis becomes unreachable', () => {
  let way: FaultyWay;
  let house: House;
  beforeEach(async () => {
    way = await faultyWay(server.port);
    house = await openHouse(onRedis(way.port, { maxStaleness: '5s' }));
  });
  afterEach(async () => {
    await house.close();
    await way.close();
  });

  test('S02 V05 checks tokens from memory, reports temporary errors for what needs the store, then accepts no token, and recovers by itself', async () => {
    const [kept, ended] = [await house.grant(), await house.grant()];
    way.set('refuse');
    // Both at once: together with the checks after them they take less than `maxStaleness`.
    const [refresh, revoked] = await Promise.all([house.refresh(kept.refresh_token), revoke(house, ended)]);
    expect([refresh.status, refresh.json['Error']]).toEqual([400, 'invalid_request']);
    expect(Number(refresh.headers['retry-after'])).toBeGreaterThan(0);
    expect(revoked.status).toBe(503);
    expect(Number(revoked.headers['retry-after'])).toBeGreaterThan(0);
    expect([await call(house, kept), await call(house, ended)]).toEqual([200, 401]);

    await soon(async () => expect(await call(house, kept)).toBe(503));
    expect((await fetch(`http://127.0.0.1:${house.adminPort}/readyz`)).status).toBe(503);
    expect((await fetch(`http://127.0.0.1:${house.adminPort}/livez`)).status).toBe(200);

    way.set('pass');
    await soon(async () => expect(await call(house, kept)).toBe(200));
    await soon(async () =>
      expect((await fetch(`http://127.0.0.1:${house.adminPort}/readyz`)).status).toBe(200),
    );
    expect(await call(house, ended)).toBe(401);
    expect((await house.refresh(kept.refresh_token)).status).toBe(200);
    // The end that could not be announced is announced by now, so another gateway knows it too.
    await soon(async () => {
      const { json } = await house.refresh(ended.refresh_token);
      expect(json['Error']).toBe('invalid_grant');
    });
  });
});

describe('at the start', () => {
  test('S01 without Redis it is alive and not ready; when Redis comes it serves', async () => {
    const adminPort = await freePort();
    // Port 1 refuses connections.
    const way = await faultyWay(1);
    onTestFinished(() => way.close());
    const house = await openHouse(onRedis(server.port));
    onTestFinished(() => house.close());
    const settings = settingsIn(house.folder, {
      ...onRedis(way.port)({ publicUrl: 'https://localhost:8443' }),
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
    way.moveTo(server.port);
    const gateway = await opening;
    onTestFinished(() => gateway.close());
    expect(await probe('/readyz')).toBe(200);
  });

  test('keys that are missing, or not those the store was written under, are refused and named', async () => {
    const house = await openHouse(onRedis(server.port, { prefix: 'keyed' }));
    try {
      await house.grant();
      const open = (keys: string) => openHouse(onRedis(server.port, { prefix: 'keyed' }, keys));
      await expect(open('missing.json')).rejects.toThrow(/keys\.file: .*missing\.json is missing; replicas/);
      await expect(open('others.json')).rejects.toThrow(/not the keys this store was written under/);
    } finally {
      await house.close();
    }
  });

  test('a Redis that may evict is refused, with the setting that names it', async () => {
    const unfit = await redisServer(['--maxmemory-policy', 'volatile-lru']);
    try {
      await expect(openHouse(onRedis(unfit.port))).rejects.toThrow(
        /store\.url: its maxmemory-policy is volatile-lru/,
      );
    } finally {
      await unfit.stop();
    }
  });
});
