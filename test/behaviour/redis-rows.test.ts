import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Redis } from 'ioredis';
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { endAllOf } from '../../src/grants/revoke.ts';
import { memoryStore } from '../../src/stores/memory.ts';
import { openRedis } from '../../src/stores/redis.ts';
import {
  newKeyring,
  readKeyringFile,
  rotateKeyring,
  writeKeyringFile,
} from '../../src/tokens/keyring-file.ts';
import { deviceSteps } from '../support/device-steps.ts';
import { ALICE, type House, openHouse, type Reply, type TokenGrant } from '../support/house.ts';
import { type RedisServer, redisCluster, redisServer } from '../support/redis-server.ts';
import { aGrant } from '../support/store-fixtures.ts';
import { type FaultyWay, faultyWay } from '../support/tcp-fault.ts';
import { openWebSocket, webSocketUpstream } from '../support/websocket.ts';

const folder = mkdtempSync(join(tmpdir(), 'gatehouse-rows-'));
const keys = join(folder, 'keys.json');
writeKeyringFile(keys, newKeyring('EdDSA'), { replace: false });
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const closing: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).toReversed()) await close();
});
const soon = <T>(check: () => T): Promise<T> => vi.waitFor(check, { timeout: 20_000, interval: 25 });

let server: RedisServer;
beforeAll(async () => {
  server = await redisServer();
});
afterAll(() => server.stop());

const serve = async (...settings: string[]): Promise<RedisServer> => {
  const one = await redisServer(['--repl-diskless-sync-delay', '0', ...settings]);
  closing.push(() => one.stop());
  return one;
};
const at = (port: number): Redis => {
  const redis = new Redis(port, '127.0.0.1');
  closing.push(() => redis.disconnect());
  return redis;
};
const wayTo = async (port: number): Promise<FaultyWay> => {
  const way = await faultyWay(port);
  closing.push(() => way.close());
  return way;
};
let prefixes = 0;
const openOn = async (
  url: string,
  store: SettingsInput['store'] = {},
  change: (settings: SettingsInput) => SettingsInput = (settings) => settings,
): Promise<House> => {
  const house = await openHouse((settings) =>
    change({ ...settings, store: { type: 'redis', url, ...store }, keys: { file: keys } }),
  );
  closing.push(() => house.close());
  return house;
};
const through = ({ port }: { readonly port: number }): string => `redis://127.0.0.1:${port}`;
/** Two gateways on the common Redis, alone with each other. */
const two = async (change?: (settings: SettingsInput) => SettingsInput): Promise<readonly [House, House]> => {
  prefixes += 1;
  const store = { prefix: `rows${prefixes}` };
  return [
    await openOn(through(server), store, change),
    await openOn(through(server), store, change),
  ] as const;
};
const call = async (house: House, { access_token: token }: TokenGrant): Promise<number> =>
  (await house.api('/files/a', token)).status;
const revoke = (house: House, { access_token: token }: TokenGrant): Promise<Reply> =>
  house.api('/authsvc/Revoke/Token', token);
const pairOf = async (): Promise<{ readonly primary: RedisServer; readonly replica: RedisServer }> => {
  const primary = await serve();
  const replica = await serve('--replicaof', '127.0.0.1', String(primary.port));
  await soon(async () => expect(await at(primary.port).info('replication')).toMatch(/state=online/));
  return { primary, replica };
};

test('S04 two gateways leave a primary that was demoted: the first refresh afterwards succeeds', async () => {
  const { primary, replica } = await pairOf();
  const ways = [await wayTo(primary.port), await wayTo(primary.port)] as const;
  const [one, other] = [await openOn(through(ways[0])), await openOn(through(ways[1]))];
  const [kept, ended] = [await one.grant(), await one.grant()];
  expect((await revoke(other, ended)).status).toBe(200);
  await soon(async () => {
    const [here, there] = [await at(primary.port).dbsize(), await at(replica.port).dbsize()];
    expect(there).toBe(here);
  });

  for (const way of ways) way.leadNextTo(replica.port);
  await at(replica.port).replicaof('NO', 'ONE');
  await at(primary.port).replicaof('127.0.0.1', replica.port);
  const next = (await one.refresh(kept.refresh_token)) as Reply & { json: TokenGrant };
  expect(next.status).toBe(200);
  const again = await soon(async () => {
    const reply = await other.refresh(next.json.refresh_token);
    expect(reply.status).toBe(200);
    return reply;
  });
  expect(await call(one, again.json as unknown as TokenGrant)).toBe(200);
  const late = await one.grant();
  await soon(async () => expect((await revoke(other, late)).status).toBe(200));
  expect([await call(one, late), await call(one, ended), await call(other, ended)]).toEqual([401, 401, 401]);
  expect(one.audits('refresh_reuse')).toEqual([]);
});

test('S09 of two primaries the old one confirms no beat: a gateway that still uses it accepts no token, and later learns what it missed', async () => {
  const { primary, replica } = await pairOf();
  const old = at(primary.port);
  await old.config('SET', 'min-replicas-to-write', '1');
  await old.config('SET', 'min-replicas-max-lag', '1');
  const wayA = await wayTo(primary.port);
  const wayB = await wayTo(primary.port);
  const [a, b] = [await openOn(through(wayA), { maxStaleness: '3s' }), await openOn(through(wayB))];
  const [kept, ended] = [await a.grant(), await a.grant()];
  await soon(async () => expect(await at(replica.port).dbsize()).toBe(await old.dbsize()));
  await at(replica.port).replicaof('NO', 'ONE');
  wayB.moveTo(replica.port);
  const reply = await soon(async () => {
    const answer = await revoke(b, ended);
    expect(answer.status).toBe(200);
    return answer;
  });
  expect(reply.json).toEqual({});
  await soon(async () => expect(await call(a, kept)).toBe(503));
  const refresh = await a.refresh(kept.refresh_token);
  expect([refresh.status, refresh.json['Error']]).toEqual([400, 'invalid_request']);
  expect(await call(b, kept)).toBe(200);
  wayA.moveTo(replica.port);
  await soon(async () => expect(await call(a, kept)).toBe(200));
  expect(await call(a, ended)).toBe(401);
});

test('S10 after Redis was emptied no grant is reported as unknown before the loss is logged, and no revoked token is accepted', async () => {
  const own = await serve();
  const [one, other] = [await openOn(through(own)), await openOn(through(own))];
  const [kept, ended] = [await one.grant(), await one.grant()];
  await revoke(one, ended);
  await at(own.port).flushall();
  const alarmed = (): boolean => one.log.some(({ event }) => event === 'store_alarm');
  const refused = await soon(async () => {
    const { status, json } = await one.refresh(kept.refresh_token);
    expect(status).toBe(400);
    if (!alarmed()) expect(json['Error']).toBe('invalid_request');
    expect(json['Error']).toBe('invalid_grant');
    return json;
  });
  expect(refused['Error']).toBe('invalid_grant');
  expect(alarmed()).toBe(true);
  expect([await call(one, kept), await call(other, kept)]).toEqual([200, 200]);
  expect([await call(one, ended), await call(other, ended)]).toEqual([401, 401]);
  const fresh = await soon(() => other.grant());
  expect(await call(one, fresh)).toBe(200);
});

test('S13 a slow Redis delays grants, but no bearer check', async () => {
  const way = await wayTo(server.port);
  const house = await openOn(through(way), { prefix: 'slow' });
  const grant = await house.grant();
  way.slowDown(20, 40);
  const refreshed = await Promise.all(Array.from({ length: 20 }, () => house.refresh(grant.refresh_token)));
  expect(new Set(refreshed.map(({ status }) => status))).toEqual(new Set([200]));
  expect(new Set(refreshed.map(({ json }) => json['refresh_token'])).size).toBe(1);
  way.set('black hole');
  const pending = house.refresh(grant.refresh_token);
  expect(await call(house, grant)).toBe(200);
  expect((await pending).json['Error']).toBe('invalid_request');
});

describe('S15 clocks', () => {
  test('with a clock that is 40 s off tokens are checked but not issued; it is logged, and ends when the clock is right again', async () => {
    const [house] = await two();
    const kept = await house.grant();
    const ready = async (): Promise<number> =>
      (await fetch(`http://127.0.0.1:${house.adminPort}/readyz`)).status;
    for (const step of [40, -40]) {
      house.forgetLog();
      house.clock.advance(step);
      await expect(house.grant()).rejects.toThrow(/400 .*invalid_request.*temporary/s);
      const refresh = await house.refresh(kept.refresh_token);
      expect([refresh.status, refresh.json['Error']]).toEqual([400, 'invalid_request']);
      expect(Number(refresh.headers['retry-after'])).toBeGreaterThan(0);
      expect(await ready()).toBe(503);
      await soon(() => expect(house.lines.join()).toMatch(/differ by [34]\d\.\d s; nothing is issued/));
      // Ahead, the token is as good as it was; behind, it is from the future.
      expect(await call(house, kept)).toBe(step > 0 ? 200 : 401);
      // An end needs no clock.
      if (step > 0) {
        house.clock.advance(-step);
        const ended = await house.grant();
        house.clock.advance(step);
        expect((await revoke(house, ended)).status).toBe(200);
      }
      house.clock.advance(-step);
      expect(await call(house, kept)).toBe(200);
      await soon(async () => expect(await ready()).toBe(200));
      await soon(() => expect(house.lines.join()).toMatch(/clock of Redis and ours agree again/));
      expect(await call(house, await house.grant())).toBe(200);
    }
    expect((await house.refresh(kept.refresh_token)).status).toBe(200);
  });

  test('windows and leases follow the clock of Redis: after a step of 25 s a refresh is still repeated, and tokens are accepted', async () => {
    const [house, other] = await two();
    for (const step of [25, -25]) {
      const grant = await house.grant();
      const first = await house.refresh(grant.refresh_token);
      house.clock.advance(step);
      const repeated = await house.refresh(grant.refresh_token);
      expect(repeated.json['refresh_token']).toBe(first.json['refresh_token']);
      expect(repeated.status).toBe(200);
      expect(await call(other, first.json as unknown as TokenGrant)).toBe(200);
      house.clock.advance(-step);
      expect(await call(house, first.json as unknown as TokenGrant)).toBe(200);
    }
  });

  test('a token from a clock that is 4 s ahead is valid, also when a signing key made it that is not active here yet', async () => {
    const own = join(folder, 'rotating.json');
    writeKeyringFile(own, newKeyring('EdDSA'), { replace: false });
    const change = (settings: SettingsInput): SettingsInput => ({ ...settings, keys: { file: own } });
    const [ahead, behind] = await two(change);
    const now = Date.now() / 1_000;
    const rotated = rotateKeyring(readKeyringFile(own), { alg: 'EdDSA', now, publishBefore: 15 });
    writeKeyringFile(own, rotated, { replace: true });
    await ahead.reload((settings) => settings);
    await behind.reload((settings) => settings);
    const activeFrom = Math.max(...rotated.signing.map((key) => key.activeFrom));
    const old = await ahead.grant();
    // Two seconds before it, and two after it: four seconds apart.
    behind.clock.advance(activeFrom - 2 - behind.clock.now());
    ahead.clock.advance(activeFrom + 1 - ahead.clock.now());
    const fresh = await ahead.grant();
    const kidOf = ({ access_token: token }: TokenGrant): string =>
      JSON.parse(Buffer.from(token.split('.', 1)[0] ?? '', 'base64url').toString())['kid'];
    expect(kidOf(fresh)).not.toBe(kidOf(old));
    expect([await call(behind, fresh), await call(behind, old)]).toEqual([200, 200]);
    expect((await behind.refresh(fresh.refresh_token)).status).toBe(200);
    // Much earlier than that no such token can be.
    behind.clock.advance(-8);
    expect(await call(behind, await ahead.grant())).toBe(401);
  });
});

test('V14 a WebSocket at one gateway ends when its grant is revoked at another', async () => {
  const sockets = await webSocketUpstream();
  closing.push(() => sockets.close());
  const [one, other] = await two((settings) => ({
    ...settings,
    upstreams: { ...settings.upstreams, sockets: { url: `http://127.0.0.1:${sockets.port}` } },
    routes: [
      { path: '/ws/**', requires: 'files:read', websocket: true, upstream: 'sockets' },
      ...(settings.routes ?? []),
    ],
  }));
  const [grant, spared] = [await one.grant(), await one.grant()];
  const clients = await Promise.all(
    [grant, spared].map(({ access_token: token }) =>
      openWebSocket({ port: one.port, ca: one.ca.pem, path: '/ws/a', token }),
    ),
  );
  closing.push(() => clients.forEach((client) => client.destroy()));
  expect(clients.map(({ status }) => status)).toEqual([101, 101]);
  expect((await revoke(other, grant)).status).toBe(200);
  await soon(() => expect(clients[0]?.closed()?.code).toBe(1008));
  expect(clients[1]?.gone()).toBe(false);
});

describe('V13 all of an identity', () => {
  test('ends at every gateway, including tokens of the same second; tokens of the next second are valid', async () => {
    const [one, other] = await two();
    const [alice, bob] = [await one.grant(), await one.grant({ who: 'bob' })];
    await endAllOf(
      { store: other.gateway.store, now: () => other.clock.now() },
      { of: 'identity', identity: ALICE },
      86_400,
    );
    for (const house of [one, other]) {
      expect([await call(house, alice), await call(house, bob)]).toEqual([401, 200]);
      const { json } = await house.refresh(alice.refresh_token);
      expect(json['Error']).toBe('invalid_grant');
    }
    await soon(async () => expect(await call(other, await one.grant())).toBe(200));
  });

  test.each([1_000, 1_000.001, 1_000.999])('the end at %d rounds up', async (now) => {
    const store = memoryStore({ now: () => now });
    await endAllOf({ store, now: () => now }, { of: 'identity', identity: 'i' }, 3_600);
    const revokedAt = (issuedAt: number): boolean =>
      store.revocations.isRevoked({
        grantId: 'g',
        generation: 1,
        clientId: 'c',
        identity: 'i',
        issuedAt,
      });
    expect([revokedAt(999), revokedAt(1_000), revokedAt(1_001)]).toEqual([true, true, false]);
  });
});

const PAGE = readFileSync(join(import.meta.dirname, '../../docs/storage.md'), 'utf8');
/** The rules after the name, as docs/storage.md has them. */
const rulesOf = (more = ''): readonly string[] =>
  `${/^ACL SETUSER gatehouse (on .*)$/m.exec(PAGE)?.[1] ?? ''}${more}`.split(' ');

describe('S11 with exactly the rights that are documented', () => {
  const everything = async (house: House): Promise<void> => {
    const grant = await house.grant();
    const next = await house.refresh(grant.refresh_token);
    expect(next.status).toBe(200);
    const steps = deviceSteps(house);
    const codes = await steps.ask();
    expect((await steps.walk(codes)).status).toBe(200);
    expect((await steps.exchange(codes.device_code)).status).toBe(200);
    expect((await house.gateway.store.grantIndex.list({ identity: ALICE, limit: 10 })).grants).not.toEqual(
      [],
    );
    expect((await house.gateway.store.grantIndex.list({ limit: 10 })).grants).toBeDefined();
    expect((await revoke(house, grant)).status).toBe(200);
    await endAllOf(
      { store: house.gateway.store, now: () => house.clock.now() },
      { of: 'client', clientId: 'other-app' },
      60,
    );
    await house.gateway.store.sweep();
    await house.gateway.store.probe();
    await house.close();
    closing.splice(closing.length - 1, 1);
  };
  /** As docs/storage.md lists them: every key that is there must be one of these. */
  const documented = [...PAGE.matchAll(/^\| `(\{?gh[^`]*)` \|/gm)].map(
    ([, key = '']) =>
      new RegExp(
        `^${key
          .split(/<[^>]*>/)
          .map((part) => part.replace(/[{}]/g, String.raw`\$&`))
          .join('.+')}$`,
      ),
  );
  const undocumented = async (port: number): Promise<readonly string[]> =>
    (await at(port).keys('*')).filter((key) => !documented.some((form) => form.test(key)));
  const rated = (settings: SettingsInput): SettingsInput => ({ ...settings, limits: {} });
  const denied = async (port: number): Promise<readonly unknown[]> =>
    (await at(port).call('ACL', 'LOG')) as readonly unknown[];

  test('one server', async () => {
    const own = await serve();
    await at(own.port).call('ACL', 'SETUSER', 'gatehouse', ...rulesOf());
    await everything(await openOn(`redis://gatehouse:PASSWORD@127.0.0.1:${own.port}`, {}, rated));
    expect(documented).toHaveLength(12);
    expect(await undocumented(own.port)).toEqual([]);
    expect(await at(own.port).dbsize()).toBeGreaterThan(8);
    expect(await denied(own.port)).toEqual([]);
  });

  test('a primary and its replica, every write confirmed', async () => {
    const { primary } = await pairOf();
    await at(primary.port).call('ACL', 'SETUSER', 'gatehouse', ...rulesOf());
    const store = await openRedis({
      url: `redis://gatehouse:PASSWORD@127.0.0.1:${primary.port}`,
      maxStaleness: 60,
      ack: 'reachable',
      replicas: 1,
      commandTimeout: 20_000,
    });
    closing.push(() => store.close());
    const keepUntil = Math.floor(Date.now() / 1_000) + 3_600;
    expect(await store.grants.create('a', aGrant(), keepUntil)).toBe('created');
    const found = await store.grants.read('a');
    if (found === undefined) throw new Error('the grant is missing');
    expect(await store.grants.replace('a', found.version, aGrant(), keepUntil)).toBe('replaced');
    await store.revocations.announce({ of: 'grant', grantId: 'a', belowGeneration: 2, keepUntil });
    await store.settled?.();
    await store.sweep();
    await store.probe();
    expect(await denied(primary.port)).toEqual([]);
  });

  test('a cluster', async () => {
    const cluster = await redisCluster();
    closing.push(() => cluster.stop());
    for (const { port } of cluster.nodes)
      await at(port).call('ACL', 'SETUSER', 'gatehouse', ...rulesOf(' +cluster'));
    const url = cluster.url.replace('://', '://gatehouse:PASSWORD@');
    await everything(await openOn(url, {}, rated));
    for (const { port } of cluster.nodes) expect(await denied(port)).toEqual([]);
  });
});
