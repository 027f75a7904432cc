import { Redis } from 'ioredis';
import { afterAll, afterEach, beforeAll, expect, vi } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { newKeyring, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { type House, openHouse, PATIENT_MS, type Reply, type TokenGrant } from '../support/house.ts';
import { type RedisServer, redisServer } from '../support/redis-server.ts';
import { type FaultyWay, faultyWay } from '../support/tcp-fault.ts';
import { tempFolder } from '../support/temp-folder.ts';

export const soon = <T>(check: () => T): Promise<T> => vi.waitFor(check, { timeout: 20_000, interval: 25 });
export const through = ({ port }: { readonly port: number }): string => `redis://127.0.0.1:${port}`;
export const call = async (house: House, { access_token: token }: TokenGrant): Promise<number> =>
  (await house.api('/files/a', token)).status;
export const revoke = (house: House, { access_token: token }: TokenGrant): Promise<Reply> =>
  house.api('/authsvc/Revoke/Token', token);

/** Gateways with the same keys on Redis, for the tests of one file; each test's own are closed after it. */
export function gatewaysOnRedis() {
  const folder = tempFolder('redis-gateways');
  const keys = folder.file('keys.json');
  writeKeyringFile(keys, newKeyring('EdDSA'), { replace: false });
  const closing: (() => unknown)[] = [];
  /** Closes it after the test. */
  const closeLater = (close: () => unknown): void => void closing.push(close);
  let common: RedisServer;
  beforeAll(async () => {
    common = await redisServer();
  });
  afterEach(async () => {
    for (const close of closing.splice(0).toReversed()) await close();
  });
  afterAll(async () => {
    await common?.stop();
    folder.remove();
  });

  const serve = async (...settings: string[]): Promise<RedisServer> => {
    const one = await redisServer(['--repl-diskless-sync-delay', '0', ...settings]);
    closeLater(() => one.stop());
    return one;
  };
  const at = (port: number): Redis => {
    const redis = new Redis(port, '127.0.0.1');
    closeLater(() => redis.disconnect());
    return redis;
  };
  const openOn = async (
    url: string,
    store: SettingsInput['store'] = {},
    change: (settings: SettingsInput) => SettingsInput = (settings) => settings,
    commandTimeout = PATIENT_MS,
  ): Promise<House> => {
    const house = await openHouse(
      (settings) => change({ ...settings, store: { type: 'redis', url, ...store }, keys: { file: keys } }),
      undefined,
      commandTimeout,
    );
    closeLater(() => house.close());
    return house;
  };
  let prefixes = 0;
  return {
    folder,
    closeLater,
    /** The Redis of all tests of the file. */
    common: () => common,
    serve,
    at,
    openOn,
    async wayTo(port: number): Promise<FaultyWay> {
      const way = await faultyWay(port);
      closeLater(() => way.close());
      return way;
    },
    /** Two gateways on the common Redis, alone with each other. */
    async two(change?: (settings: SettingsInput) => SettingsInput): Promise<readonly [House, House]> {
      prefixes += 1;
      const store = { prefix: `pair${prefixes}` };
      return [await openOn(through(common), store, change), await openOn(through(common), store, change)];
    },
    async pairOf(): Promise<{ readonly primary: RedisServer; readonly replica: RedisServer }> {
      const primary = await serve();
      const replica = await serve('--replicaof', '127.0.0.1', String(primary.port));
      await soon(async () => expect(await at(primary.port).info('replication')).toMatch(/state=online/));
      return { primary, replica };
    },
  };
}
