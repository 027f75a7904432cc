import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { endAllOf } from '../../src/grants/revoke.ts';
import { openRedis } from '../../src/stores/redis.ts';
import { deviceSteps } from '../support/device-steps.ts';
import { ALICE, type House } from '../support/house.ts';
import { anAuthenticator } from '../support/record-keys.ts';
import { redisCluster } from '../support/redis-server.ts';
import { aGrant } from '../support/store-fixtures.ts';
import { gatewaysOnRedis, revoke } from './gateways-on-redis.ts';

const { closeLater, serve, at, openOn, pairOf } = gatewaysOnRedis();

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
      authenticator: anAuthenticator(),
      maxStaleness: 60,
      ack: 'reachable',
      replicas: 1,
      commandTimeout: 20_000,
    });
    closeLater(() => store.close());
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
    closeLater(() => cluster.stop());
    for (const { port } of cluster.nodes)
      await at(port).call('ACL', 'SETUSER', 'gatehouse', ...rulesOf(' +cluster'));
    const url = cluster.url.replace('://', '://gatehouse:PASSWORD@');
    await everything(await openOn(url, {}, rated));
    for (const { port } of cluster.nodes) expect(await denied(port)).toEqual([]);
  });
});
