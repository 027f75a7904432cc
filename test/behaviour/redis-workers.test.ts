import { afterAll, beforeAll, expect, test } from 'vitest';
import { newKeyring, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { type RedisServer, redisServer } from '../support/redis-server.ts';
import { makeServeFolder, type ServeFolder, startServe } from '../support/serve-process.ts';

let server: RedisServer;
let folder: ServeFolder;
beforeAll(async () => {
  server = await redisServer();
  folder = await makeServeFolder((settings) => ({
    ...settings,
    store: { type: 'redis', url: server.url },
    keys: { file: 'keys.json' },
  }));
  writeKeyringFile(folder.file('keys.json'), newKeyring('EdDSA'), { replace: false });
});
afterAll(async () => {
  await folder.remove();
  await server.stop();
});

test('two machines with two workers each run on one Redis, take no lock from each other, and leave in order', async () => {
  const [one, two] = await Promise.all([
    startServe(folder, { set: ['listen.workers=2'] }),
    startServe(folder, { set: ['listen.workers=2'] }),
  ]);
  for (const { adminPort } of [one, two])
    expect((await fetch(`http://127.0.0.1:${adminPort}/readyz`)).status).toBe(200);
  expect(one.workers).toHaveLength(2);
  expect(await Promise.all([one.stop(), two.stop()])).toEqual([0, 0]);
});

test('a Redis that is not fit ends it with 78 and says why', async () => {
  const unfit = await redisServer(['--maxmemory-policy', 'allkeys-random']);
  try {
    await expect(startServe(folder, { set: [`store.url=${unfit.url}`] })).rejects.toThrow(
      /store\.url: its maxmemory-policy is allkeys-random/,
    );
  } finally {
    await unfit.stop();
  }
});
