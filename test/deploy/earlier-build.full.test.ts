import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { createKeyringFile, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { checkOutEarlierBuild, EARLIER_COMMIT, hasEarlierBuild } from '../support/earlier-build.ts';
import { recordFigures } from '../support/figures.ts';
import type { TokenGrant } from '../support/https-client.ts';
import { startRedis } from '../support/redis-server.ts';
import {
  type Client,
  connect,
  createServeFolder,
  type ServeFolder,
  type ServeProcess,
  startServe,
} from '../support/serve-process.ts';

/**
 * Upgrade and downgrade: this build uses the store of an earlier one and the other way round, also while replicas of both
 * run on the same Redis, as during a rolling upgrade.
 */
const MANY = Number(process.env['EARLIER_GRANTS'] ?? 20);

/** The grants of one build, as its clients know them. */
interface Grants {
  readonly active: readonly TokenGrant[];
  readonly revoked: readonly TokenGrant[];
}

async function createGrants(client: Client): Promise<Grants> {
  const grants: TokenGrant[] = [];
  for (let count = 0; count < 2 * MANY; count += 1) grants.push(await client.grant('files:read'));
  const [active, revoked] = [grants.slice(0, MANY), grants.slice(MANY)];
  for (const { access_token } of revoked) expect((await client.revoke(access_token)).status).toBe(200);
  return { active, revoked };
}

/** Refreshes the active grants, and returns them as they are now. */
async function useGrants(client: Client, { active, revoked }: Grants): Promise<Grants> {
  const refreshed: TokenGrant[] = [];
  for (const grant of active) {
    expect(await client.isAccepted(grant.access_token)).toBe(true);
    const reply = await client.refresh(grant.refresh_token);
    expect(reply.status, reply.text).toBe(200);
    refreshed.push(reply.json as unknown as TokenGrant);
  }
  for (const grant of revoked) {
    expect(await client.isAccepted(grant.access_token)).toBe(false);
    const reply = await client.refresh(grant.refresh_token);
    expect(reply).toMatchObject({ status: 400, json: { Error: 'invalid_grant' } });
  }
  return { active: refreshed, revoked };
}

/** The earlier build refuses settings that it does not know. */
function removeNewSettings({ limits, ...settings }: SettingsInput): SettingsInput {
  const {
    par: _par,
    tokenGuesses: _tokens,
    clientGuesses: _clients,
    allClientGuesses: _all,
    ...rates
  } = limits?.rates ?? {};
  return { ...settings, limits: { ...limits, rates } };
}

describe.skipIf(!hasEarlierBuild())(`an earlier build (${EARLIER_COMMIT})`, () => {
  let earlier: ReturnType<typeof checkOutEarlierBuild>;
  const folders: ServeFolder[] = [];
  beforeAll(() => {
    earlier = checkOutEarlierBuild();
  });
  afterAll(async () => {
    for (const folder of folders) await folder.remove();
    earlier.remove();
  });

  const createFolder = async (more: Partial<SettingsInput> = {}): Promise<ServeFolder> => {
    const folder = await createServeFolder((settings) => ({ ...removeNewSettings(settings), ...more }));
    folders.push(folder);
    return folder;
  };

  test('its embedded store is used by this build, and the other way round', async () => {
    const folder = await createFolder();
    const run = async <T>(entry: string | undefined, work: (client: Client) => Promise<T>): Promise<T> => {
      const server = await startServe(folder, entry === undefined ? {} : { entry });
      const client = connect(folder, server.port, folder.alice);
      try {
        return await work(client);
      } finally {
        client.close();
        expect(await server.stop()).toBe(0);
      }
    };
    const first = await run(earlier.entry, createGrants);
    const [upgraded, second] = await run(undefined, async (client) => [
      await useGrants(client, first),
      await createGrants(client),
    ]);
    const [downgraded, downgradedSecond] = await run(earlier.entry, async (client) => [
      await useGrants(client, upgraded),
      await useGrants(client, second),
    ]);
    await run(undefined, async (client) => {
      await useGrants(client, downgraded);
      await useGrants(client, downgradedSecond);
    });
    recordFigures('earlier-build-embedded', {
      'grants used after an upgrade, a downgrade and a second upgrade': 2 * MANY,
      lost: 0,
      'revoked grants accepted': 0,
    });
  }, 300_000);

  test('its replicas and those of this build run on one Redis', async () => {
    const redis = await startRedis();
    try {
      const folder = await createFolder({
        store: { type: 'redis', url: redis.url },
        keys: { file: 'keys.json' },
      });
      writeKeyringFile(folder.file('keys.json'), createKeyringFile('EdDSA'), { replace: false });
      const servers: ServeProcess[] = [await startServe(folder, { entry: earlier.entry })];
      servers.push(await startServe(folder));
      const [old, current] = servers.map(({ port }) => connect(folder, port, folder.alice));
      if (old === undefined || current === undefined) throw new Error('two clients are needed');
      for (const [one, other] of [
        [old, current],
        [current, old],
      ] as const) {
        const grants = await useGrants(other, await createGrants(one));
        await useGrants(one, grants);
        await refreshOnBoth(one, other);
      }
      for (const client of [old, current]) client.close();
      for (const server of servers) expect(await server.stop()).toBe(0);
      recordFigures('earlier-build-redis', {
        'grants used by replicas of both builds': 4 * MANY,
        lost: 0,
        'revoked tokens accepted by the other replica': 0,
      });
    } finally {
      await redis.stop();
    }
  }, 300_000);
});

/** Concurrent refreshes of one token get the same tokens from both builds. */
async function refreshOnBoth(one: Client, other: Client): Promise<void> {
  for (let round = 0; round < MANY; round += 1) {
    const { refresh_token } = await one.grant('files:read');
    const replies = await Promise.all(
      [one, other, one, other].map((client) => client.refresh(refresh_token)),
    );
    expect(replies.map(({ status }) => status)).toEqual([200, 200, 200, 200]);
    expect(new Set(replies.map(({ json }) => json['refresh_token'])).size).toBe(1);
  }
}
