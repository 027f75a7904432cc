import { afterAll, afterEach, beforeAll, expect, vi } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { createKeyringFile, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { type FaultyRelay, startFaultyRelay } from './faulty-relay.ts';
import { type RedisServer, startRedis } from './redis-server.ts';
import { tempFolder } from './temp-folder.ts';
import { REDIS_TIMEOUT_MS, startGateway, type TestGateway } from './test-gateway.ts';

/** Gateways that share one Redis, for the tests of one file. They are closed after each test. */
export function gatewayFleets() {
  const folder = tempFolder('limits');
  const keys = folder.file('keys.json');
  writeKeyringFile(keys, createKeyringFile('EdDSA'), { replace: false });
  let server: RedisServer;
  beforeAll(async () => {
    server = await startRedis();
  });
  afterAll(async () => {
    await server?.stop();
    folder.remove();
  });
  const cleanups: (() => Promise<void>)[] = [];
  afterEach(async () => {
    for (const close of cleanups.splice(0).toReversed()) await close();
  });

  let fleets = 0;
  /** Each gateway has its own connection to Redis and trusts `X-Forwarded-For`. */
  async function fleet(
    size: number,
    changes: Partial<SettingsInput>,
  ): Promise<{ readonly all: readonly TestGateway[]; readonly relays: readonly FaultyRelay[] }> {
    fleets += 1;
    const prefix = `fleet${fleets}`;
    const relays = await Promise.all(Array.from({ length: size }, () => startFaultyRelay(server.port)));
    cleanups.push(...relays.map((relay) => () => relay.close()));
    const all = await Promise.all(
      relays.map((relay) =>
        startGateway(
          (settings) => ({
            ...settings,
            store: { type: 'redis', url: `redis://127.0.0.1:${relay.port}`, prefix },
            keys: { file: keys },
            trustedProxies: ['127.0.0.1'],
            ...changes,
          }),
          undefined,
          REDIS_TIMEOUT_MS,
        ),
      ),
    );
    cleanups.push(...all.map((gateway) => () => gateway.close()));
    // Otherwise each gateway waits for its last Redis command until it times out.
    cleanups.push(async () => {
      for (const relay of relays) relay.set('pass');
    });
    // Wait until each gateway has counted the heartbeats of all.
    await vi.waitFor(
      () => expect(all.map(({ server: gateway }) => gateway.store.limits?.processCount())).toEqual(all.map(() => size)),
      { timeout: 20_000, interval: 50 },
    );
    return { all, relays };
  }
  return { redis: () => server, fleet };
}

export const rates = (given: NonNullable<SettingsInput['limits']>['rates']): Partial<SettingsInput> => ({
  limits: { rates: { page: 'off', ...given } },
});
export const atIndex = <T>(all: readonly T[], index: number): T => all[index % all.length] as T;
