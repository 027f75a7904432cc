import { Redis } from 'ioredis';
import { afterAll, afterEach, beforeAll, expect, vi } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { createKeyringFile, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { type FaultyRelay, startFaultyRelay } from './faulty-relay.ts';
import { type RedisServer, startRedis } from './redis-server.ts';
import { tempFolder } from './temp-folder.ts';
import { REDIS_TIMEOUT_MS, type Reply, startGateway, type TestGateway, type TokenGrant } from './test-gateway.ts';

export const eventually = <T>(check: () => T): Promise<T> => vi.waitFor(check, { timeout: 20_000, interval: 25 });
export const redisUrl = ({ port }: { readonly port: number }): string => `redis://127.0.0.1:${port}`;
export const call = async (gateway: TestGateway, { access_token: token }: TokenGrant): Promise<number> =>
  (await gateway.api('/files/a', token)).status;
export const revoke = (gateway: TestGateway, { access_token: token }: TokenGrant): Promise<Reply> =>
  gateway.api('/authsvc/Revoke/Token', token);

/** Gateways with the same keys on Redis, for the tests of one file; those of a test are closed after it. */
export function gatewaysOnRedis() {
  const folder = tempFolder('redis-gateways');
  const keys = folder.file('keys.json');
  writeKeyringFile(keys, createKeyringFile('EdDSA'), { replace: false });
  const cleanups: (() => unknown)[] = [];
  /** Registers a cleanup that runs after the test. */
  const closeLater = (close: () => unknown): void => void cleanups.push(close);
  let common: RedisServer;
  beforeAll(async () => {
    common = await startRedis();
  });
  afterEach(async () => {
    for (const close of cleanups.splice(0).toReversed()) await close();
  });
  afterAll(async () => {
    await common?.stop();
    folder.remove();
  });

  const startServer = async (...settings: string[]): Promise<RedisServer> => {
    const server = await startRedis(['--repl-diskless-sync-delay', '0', ...settings]);
    closeLater(() => server.stop());
    return server;
  };
  const connectTo = (port: number): Redis => {
    const redis = new Redis(port, '127.0.0.1');
    closeLater(() => redis.disconnect());
    return redis;
  };
  const startGatewayOn = async (
    url: string,
    store: SettingsInput['store'] = {},
    change: (settings: SettingsInput) => SettingsInput = (settings) => settings,
    commandTimeout = REDIS_TIMEOUT_MS,
  ): Promise<TestGateway> => {
    const gateway = await startGateway(
      (settings) => change({ ...settings, store: { type: 'redis', url, ...store }, keys: { file: keys } }),
      undefined,
      commandTimeout,
    );
    closeLater(() => gateway.close());
    return gateway;
  };
  const startRelay = async (port: number): Promise<FaultyRelay> => {
    const relay = await startFaultyRelay(port);
    closeLater(() => relay.close());
    return relay;
  };
  let prefixes = 0;
  /** Starts two gateways on the common Redis with their own prefix. */
  const startTwoGateways = async (
    change?: (settings: SettingsInput) => SettingsInput,
  ): Promise<readonly [TestGateway, TestGateway]> => {
    prefixes += 1;
    const store = { prefix: `pair${prefixes}` };
    return [
      await startGatewayOn(redisUrl(common), store, change),
      await startGatewayOn(redisUrl(common), store, change),
    ];
  };
  const startPair = async (): Promise<{ readonly primary: RedisServer; readonly replica: RedisServer }> => {
    const primary = await startServer();
    const replica = await startServer('--replicaof', '127.0.0.1', String(primary.port));
    await eventually(async () => expect(await connectTo(primary.port).info('replication')).toMatch(/state=online/));
    return { primary, replica };
  };
  return {
    folder,
    closeLater,
    common: () => common,
    startServer,
    connectTo,
    startGatewayOn,
    startRelay,
    startTwoGateways,
    startPair,
  };
}
