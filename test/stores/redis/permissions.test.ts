import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import type { SettingsInput } from '../../../src/config/schema.ts';
import { revokeAllGrants } from '../../../src/grants/revoke.ts';
import { openRedisStore } from '../../../src/stores/redis/store.ts';
import { createDeviceClient } from '../../support/device-client.ts';
import { gatewaysOnRedis, revoke } from '../../support/gateways-on-redis.ts';
import { testAuthenticator } from '../../support/record-keys.ts';
import { startRedisCluster } from '../../support/redis-server.ts';
import { testGrant } from '../../support/store-fixtures.ts';
import { ALICE, type TestGateway } from '../../support/test-gateway.ts';

const { closeLater, startServer, connectTo, startGatewayOn, startPair } = gatewaysOnRedis();

const DOCS = join(import.meta.dirname, '../../../docs');
const PAGE = readFileSync(join(DOCS, 'storage.md'), 'utf8');
/** The ACL rules of docs/storage.md, without the user name. */
const readRules = (more = ''): readonly string[] =>
  `${/^ACL SETUSER gatehouse (on .*)$/m.exec(PAGE)?.[1] ?? ''}${more}`.split(' ');

describe('S11 with exactly the documented permissions', () => {
  const useGateway = async (gateway: TestGateway): Promise<void> => {
    const grant = await gateway.grant();
    const next = await gateway.refresh(grant.refresh_token);
    expect(next.status).toBe(200);
    const steps = createDeviceClient(gateway);
    const codes = await steps.requestCodes();
    expect((await steps.decideInBrowser(codes)).status).toBe(200);
    expect((await steps.exchange(codes.device_code)).status).toBe(200);
    expect((await gateway.server.store.grantIndex.list({ identity: ALICE, limit: 10 })).grants).not.toEqual([]);
    expect((await gateway.server.store.grantIndex.list({ limit: 10 })).grants).toBeDefined();
    expect((await revoke(gateway, grant)).status).toBe(200);
    await revokeAllGrants(
      { store: gateway.server.store, now: () => gateway.clock.now() },
      { of: 'client', clientId: 'other-app' },
      60,
    );
    await gateway.server.store.sweep();
    await gateway.server.store.probe();
    await gateway.close();
  };
  /** The key patterns in docs/internals/redis.md; every key must match one of them. */
  const keysPage = readFileSync(join(DOCS, 'internals/redis.md'), 'utf8');
  const documentedKeys = [...keysPage.matchAll(/^\| `(\{?gh[^`]*)` \|/gm)].map(
    ([, key = '']) =>
      new RegExp(
        `^${key
          .split(/<[^>]*>/)
          .map((part) => part.replace(/[{}]/g, String.raw`\$&`))
          .join('.+')}$`,
      ),
  );
  const listUndocumentedKeys = async (port: number): Promise<readonly string[]> =>
    (await connectTo(port).keys('*')).filter((key) => !documentedKeys.some((pattern) => pattern.test(key)));
  const withRateLimits = (settings: SettingsInput): SettingsInput => ({ ...settings, limits: {} });
  const getDeniedCommands = async (port: number): Promise<readonly unknown[]> =>
    (await connectTo(port).call('ACL', 'LOG')) as readonly unknown[];

  test('one server', async () => {
    const server = await startServer();
    await connectTo(server.port).call('ACL', 'SETUSER', 'gatehouse', ...readRules());
    await useGateway(await startGatewayOn(`redis://gatehouse:PASSWORD@127.0.0.1:${server.port}`, {}, withRateLimits));
    expect(documentedKeys).toHaveLength(15);
    expect(await listUndocumentedKeys(server.port)).toEqual([]);
    expect(await connectTo(server.port).dbsize()).toBeGreaterThan(8);
    expect(await getDeniedCommands(server.port)).toEqual([]);
  });

  test('a primary and its replica, every write confirmed', async () => {
    const { primary } = await startPair();
    await connectTo(primary.port).call('ACL', 'SETUSER', 'gatehouse', ...readRules());
    const store = await openRedisStore({
      url: `redis://gatehouse:PASSWORD@127.0.0.1:${primary.port}`,
      authenticator: testAuthenticator(),
      maxStaleness: 60,
      ack: 'reachable',
      replicas: 1,
      commandTimeout: 20_000,
    });
    closeLater(() => store.close());
    const keepUntil = Math.floor(Date.now() / 1_000) + 3_600;
    expect(await store.grants.create('a', testGrant(), keepUntil)).toBe('created');
    const found = await store.grants.read('a');
    if (found === undefined) throw new Error('grant not found');
    expect(await store.grants.replace('a', found.version, testGrant(), keepUntil)).toBe('replaced');
    await store.revocations.announce({ of: 'grant', grantId: 'a', belowGeneration: 2, keepUntil });
    await store.waitUntilDurable?.();
    await store.sweep();
    await store.probe();
    expect(await getDeniedCommands(primary.port)).toEqual([]);
  });

  test('a cluster', async () => {
    const cluster = await startRedisCluster();
    closeLater(() => cluster.stop());
    for (const { port } of cluster.nodes)
      await connectTo(port).call('ACL', 'SETUSER', 'gatehouse', ...readRules(' +cluster'));
    const url = cluster.url.replace('://', '://gatehouse:PASSWORD@');
    await useGateway(await startGatewayOn(url, {}, withRateLimits));
    for (const { port } of cluster.nodes) expect(await getDeniedCommands(port)).toEqual([]);
  });
});
