import { randomUUID } from 'node:crypto';
import { Redis } from 'ioredis';
import { getGrantRecordExpiry } from '../../src/domain/grant.ts';
import { createGrant, randomGrantId } from '../../src/grants/issue.ts';
import { createLogger } from '../../src/observability/logger.ts';
import { openRedisStore, type RedisStore } from '../../src/stores/redis/store.ts';
import { freePort } from '../../test/support/front-proxy.ts';
import { testAuthenticator } from '../../test/support/record-keys.ts';
import { openGrantDeps } from './grant-deps.ts';
import { launch, stopProcess } from './programs.ts';

/** A Redis server pinned to a core. */
export interface BenchRedis {
  readonly url: string;
  readonly admin: Redis;
  /** A value of `INFO`, or the sum of several. */
  infoValue(...names: readonly string[]): Promise<number>;
  stop(): Promise<void>;
}

const START_MS = 20_000;

export async function startRedis(core: number | string, output: string): Promise<BenchRedis> {
  const port = await freePort();
  const child = launch(core, ['redis-server', '--port', String(port), '--bind', '127.0.0.1', '--save', ''], output);
  const admin = new Redis(port, '127.0.0.1', { lazyConnect: true, retryStrategy: () => 100 });
  admin.on('error', () => {});
  const deadline = performance.now() + START_MS;
  for (;;) {
    try {
      await admin.connect().catch(() => {});
      await admin.ping();
      break;
    } catch (error) {
      if (performance.now() > deadline) throw error;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
  }
  return {
    url: `redis://127.0.0.1:${port}`,
    admin,
    async infoValue(...names) {
      const info = await admin.info();
      const readValue = (name: string): number => Number(new RegExp(`^${name}:([\\d.]+)`, 'm').exec(info)?.[1] ?? 0);
      return names.reduce((sum, name) => sum + readValue(name), 0);
    },
    async stop() {
      admin.disconnect();
      await stopProcess(child);
    },
  };
}

export const openStore = (url: string): Promise<RedisStore> =>
  openRedisStore({
    url,
    authenticator: testAuthenticator(),
    maxStaleness: 60,
    ack: 'reachable',
    commandTimeout: 30_000,
  });

const BATCH_SIZE = 1_000;

/** Writes live grants, two per identity; returns the refresh tokens of the first `tokensWanted`. */
export async function fillRedis(folder: string, grants: number, tokensWanted: number): Promise<string[]> {
  const logger = createLogger({ level: 'error', format: 'json', write: () => {} });
  const { deps, store } = await openGrantDeps(folder, logger);
  const integration = deps.integrations.get('report-runner');
  if (integration === undefined) throw new Error('report-runner is missing in the settings');
  const tokens: string[] = [];
  let identity = '';
  const create = async (index: number, grantIdentity: string): Promise<void> => {
    const now = deps.now();
    const grant = createGrant(deps, {
      id: randomGrantId(),
      integration,
      // Only the known identity can refresh; the others only fill the store.
      identity: grantIdentity,
      grantType: 'certificate',
      scope: 'files:read',
      now,
    });
    await store.grants.create(grant.id, grant, getGrantRecordExpiry(grant));
    if (index < tokensWanted) tokens[index] = deps.tokenIssuer.issueTokens(grant, now).refreshToken;
  };
  for (let done = 0; done < grants; done += BATCH_SIZE)
    await Promise.all(
      Array.from({ length: Math.min(BATCH_SIZE, grants - done) }, (_, more) => {
        if (more % 2 === 0) identity = `local:{${randomUUID()}}`;
        return create(done + more, done + more < tokensWanted ? KNOWN_IDENTITY : identity);
      }),
    );
  await store.close();
  return tokens;
}

const KNOWN_IDENTITY = 'local:{5f0c2a52-6d0e-4d0c-9c3e-0d5a3c1f2b11}';

/** Writes revocations as another gatehouse would have announced them. */
export async function revokeMany(store: RedisStore, count: number): Promise<void> {
  const keepUntil = Math.floor(Date.now() / 1_000) + 30 * 86_400;
  for (let done = 0; done < count; done += 100)
    await store.revocations.announceImported(
      Array.from({ length: Math.min(100, count - done) }, () => ({
        of: 'grant' as const,
        grantId: randomGrantId(),
        belowGeneration: Number.POSITIVE_INFINITY,
        keepUntil,
      })),
    );
}
