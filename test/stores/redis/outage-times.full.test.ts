import { afterEach, describe, expect, test } from 'vitest';
import type { SettingsInput } from '../../../src/config/schema.ts';
import { createKeyringFile, writeKeyringFile } from '../../../src/tokens/keyring-file.ts';
import type { Reply, TokenGrant } from '../../support/https-client.ts';
import { type RedisServer, startRedis } from '../../support/redis-server.ts';
import { connect, createServeFolder, startServe } from '../../support/serve-process.ts';

/** As documented in docs/storage.md. */
const MAX_SECONDS = 2.5;

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of cleanups.splice(0).toReversed()) await close();
});

async function startOnRedis(store: SettingsInput['store'] = {}) {
  const redis = await startRedis();
  cleanups.push(() => redis.stop());
  const folder = await createServeFolder(({ limits: _default, ...settings }) => ({
    ...settings,
    store: { type: 'redis', url: redis.url, ...store },
    keys: { file: 'keys.json' },
  }));
  cleanups.push(() => folder.remove());
  writeKeyringFile(folder.file('keys.json'), createKeyringFile('EdDSA'), { replace: false });
  const server = await startServe(folder);
  const client = connect(folder, server.port, folder.alice);
  cleanups.push(() => client.close());
  return { redis, client };
}

const OPERATIONS = {
  revoke: (client, { access_token: token }) => client.revoke(token),
  refresh: (client, { refresh_token: token }) => client.refresh(token),
  issue: (client) => client.post('/Authorize/Certificate', { client_id: 'report-runner', scope: 'files:read' }),
} as const satisfies Record<string, (client: ReturnType<typeof connect>, grant: TokenGrant) => Promise<Reply>>;

const STOPS = {
  'does not respond': (redis: RedisServer) => redis.pause(),
  'was killed': (redis: RedisServer) => redis.kill(),
} as const;

describe.each(Object.keys(STOPS) as (keyof typeof STOPS)[])('while Redis %s', (name) => {
  test.each(Object.keys(OPERATIONS) as (keyof typeof OPERATIONS)[])(
    'V05 %s gets a temporary error with Retry-After within 2.5 s',
    async (operation) => {
      const { redis, client } = await startOnRedis();
      const grant = await client.grant();
      await STOPS[name](redis);
      for (let attempt = 0; attempt < 4; attempt += 1) {
        const startedAt = performance.now();
        const reply = await OPERATIONS[operation](client, grant);
        const seconds = (performance.now() - startedAt) / 1_000;
        expect(reply.headers['retry-after']).toMatch(/^[1-9]\d*$/);
        expect(reply.text).not.toContain('invalid_grant');
        expect(reply.status).toBe(operation === 'revoke' ? 503 : 400);
        expect(seconds).toBeLessThanOrEqual(MAX_SECONDS);
      }
    },
  );
});
