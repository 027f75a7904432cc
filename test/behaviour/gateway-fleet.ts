import { afterAll, afterEach, beforeAll, expect, vi } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { newKeyring, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { type House, openHouse, PATIENT_MS } from '../support/house.ts';
import { type RedisServer, redisServer } from '../support/redis-server.ts';
import { type FaultyWay, faultyWay } from '../support/tcp-fault.ts';
import { tempFolder } from '../support/temp-folder.ts';

/** Gateways on one Redis, for the tests of one file; closed after each test. */
export function gatewayFleets() {
  const folder = tempFolder('limits');
  const keys = folder.file('keys.json');
  writeKeyringFile(keys, newKeyring('EdDSA'), { replace: false });
  let server: RedisServer;
  beforeAll(async () => {
    server = await redisServer();
  });
  afterAll(async () => {
    await server?.stop();
    folder.remove();
  });
  const closing: (() => Promise<void>)[] = [];
  afterEach(async () => {
    for (const close of closing.splice(0).toReversed()) await close();
  });

  let fleets = 0;
  /** Each has a connection of its own to Redis and trusts `X-Forwarded-For`. */
  async function fleet(
    size: number,
    changes: Partial<SettingsInput>,
  ): Promise<{ readonly all: readonly House[]; readonly ways: readonly FaultyWay[] }> {
    fleets += 1;
    const prefix = `fleet${fleets}`;
    const ways = await Promise.all(Array.from({ length: size }, () => faultyWay(server.port)));
    closing.push(...ways.map((way) => () => way.close()));
    const all = await Promise.all(
      ways.map((way) =>
        openHouse(
          (settings) => ({
            ...settings,
            store: { type: 'redis', url: `redis://127.0.0.1:${way.port}`, prefix },
            keys: { file: keys },
            trustedProxies: ['127.0.0.1'],
            ...changes,
          }),
          undefined,
          PATIENT_MS,
        ),
      ),
    );
    closing.push(...all.map((house) => () => house.close()));
    // Each gateway has counted the heartbeats of all.
    await vi.waitFor(
      () => expect(all.map(({ gateway }) => gateway.store.limits?.sharers())).toEqual(all.map(() => size)),
      { timeout: 20_000, interval: 50 },
    );
    return { all, ways };
  }
  return { redis: () => server, fleet };
}

export const rates = (given: NonNullable<SettingsInput['limits']>['rates']): Partial<SettingsInput> => ({
  limits: { rates: { page: 'off', ...given } },
});
export const turn = <T>(all: readonly T[], index: number): T => all[index % all.length] as T;
