import { rmSync } from 'node:fs';
import { expect, onTestFinished, test } from 'vitest';
import { connectToEachWorker } from '../../support/connect-to-each-worker.ts';
import {
  connectMany,
  createServeFolder,
  groupByWorker,
  readiness,
  startServe,
  until,
} from '../../support/serve-process.ts';

/** Blocks the start of workers while the file `hold` exists. */
const HOLD = `
import cluster from 'node:cluster';
import { existsSync } from 'node:fs';
import { setTimeout } from 'node:timers/promises';
while (cluster.isWorker && existsSync('hold')) await setTimeout(10);
`;

test('a killed worker is replaced, and no request fails while it is missing or afterwards', async () => {
  const folder = await createServeFolder((settings) => ({ ...settings, log: { level: 'info' } }));
  onTestFinished(() => folder.remove());
  folder.write('hold.mjs', HOLD);
  const server = await startServe(folder, {
    set: ['listen.workers=2'],
    nodeOptions: ['--import', folder.file('hold.mjs')],
  });
  const connectClients = async (count: number) => {
    const clients = await connectMany(folder, server, count, folder.alice);
    onTestFinished(() => clients.forEach((client) => client.close()));
    return clients;
  };
  const before = await connectClients(20);
  const grants = await Promise.all(before.map((client) => client.grant()));
  const [victim = 0, survivor = 0] = server.workers;
  folder.write('hold', '');
  process.kill(victim, 'SIGKILL');
  await until('the supervisor has noticed the exit', () => server.log.some(({ event }) => event === 'worker_exited'));

  const meanwhile = await connectClients(10);
  expect([...groupByWorker(meanwhile).keys()]).toEqual([survivor]);
  expect(await readiness(server)).toBe(503);
  for (const client of before.filter(({ worker }) => worker === survivor))
    expect((await client.grant()).token_type).toBe('Bearer');

  rmSync(folder.file('hold'));
  await until('the process is ready again', async () => (await readiness(server)) === 200, 30);
  const after = await connectToEachWorker(folder, server, folder.alice);
  onTestFinished(() => after.forEach((client) => client.close()));
  expect(after.map(({ worker }) => worker)).toContain(survivor);
  expect(after.map(({ worker }) => worker)).not.toContain(victim);
  // Grants issued by the killed worker are accepted by the others.
  for (const [index, grant] of grants.entries()) {
    const client = after[index % 2];
    expect(await client?.isAccepted(grant.access_token)).toBe(true);
    expect((await client?.refresh(grant.refresh_token))?.status).toBe(200);
  }
  expect(await server.stop()).toBe(0);
});
