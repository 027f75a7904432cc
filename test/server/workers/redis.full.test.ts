import { afterAll, beforeAll, expect, test } from 'vitest';
import { createKeyringFile, writeKeyringFile } from '../../../src/tokens/keyring-file.ts';
import { type RedisServer, startRedis } from '../../support/redis-server.ts';
import { createServeFolder, type ServeFolder, startServe } from '../../support/serve-process.ts';

let server: RedisServer;
let folder: ServeFolder;
beforeAll(async () => {
  server = await startRedis();
  folder = await createServeFolder((settings) => ({
    ...settings,
    store: { type: 'redis', url: server.url },
    keys: { file: 'keys.json' },
  }));
  writeKeyringFile(folder.file('keys.json'), createKeyringFile('EdDSA'), { replace: false });
});
afterAll(async () => {
  await folder.remove();
  await server.stop();
});

test('two processes with two workers each run on one Redis and stop cleanly', async () => {
  const [first, second] = await Promise.all([
    startServe(folder, { set: ['listen.workers=2'] }),
    startServe(folder, { set: ['listen.workers=2'] }),
  ]);
  for (const { adminPort } of [first, second])
    expect((await fetch(`http://127.0.0.1:${adminPort}/readyz`)).status).toBe(200);
  expect(first.workers).toHaveLength(2);
  expect(await Promise.all([first.stop(), second.stop()])).toEqual([0, 0]);
});

test('the start fails with a reason if Redis has an unsuitable configuration', async () => {
  const unsuitable = await startRedis(['--maxmemory-policy', 'allkeys-random']);
  try {
    await expect(startServe(folder, { set: [`store.url=${unsuitable.url}`] })).rejects.toThrow(
      /store\.url: its maxmemory-policy is allkeys-random/,
    );
  } finally {
    await unsuitable.stop();
  }
});
