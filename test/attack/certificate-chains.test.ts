import { afterAll, beforeAll, expect, test } from 'vitest';
import { connect as connectClient } from '../support/serve-process.ts';
import {
  type ChainTarget,
  observe,
  readProcessorTime,
  startChainFlood,
  startChainTarget,
} from './certificate-chains.ts';

let target: ChainTarget;
beforeAll(async () => {
  target = await startChainTarget();
});
afterAll(() => target.folder.remove());

/** Processor time of the gateway for this many handshakes with a chain of the largest keys. */
async function measureHandshakes(handshakes: number): Promise<number> {
  const { pid, port } = target.server;
  const before = readProcessorTime(pid);
  const client = await startChainFlood(port, 1, 22, handshakes);
  await client.ended;
  expect(client.stdout()).toContain(`{"handshakes":${handshakes}}`);
  return readProcessorTime(pid) - before;
}

test('C19 after one chain of worthless certificates, no further one of the network is verified', async () => {
  const first = await measureHandshakes(1);
  const others = await measureHandshakes(20);
  expect(first).toBeGreaterThan(40);
  // Each one that is verified costs as much as the first.
  expect(others / 20).toBeLessThan(first / 4);
});

test('C19 clients of that network are served as before, also with a certificate and a large request', async () => {
  const { folder, server } = target;
  const client = connectClient(folder, server.port, folder.alice);
  const reply = await client.request({
    method: 'POST',
    path: '/public/upload',
    body: 'x'.repeat(200_000),
  });
  const token = await client.request({
    method: 'POST',
    path: '/authsvc/Authorize/Certificate',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ client_id: 'report-runner', scope: 'files:read' }),
  });
  client.close();
  expect([reply.status, token.status]).toEqual([200, 200]);
});

test('C19 other networks are served during a flood of such chains', async () => {
  const flood = await startChainFlood(target.server.port, 10, 22);
  const { statuses } = await observe(target, 100);
  await flood.stop('SIGKILL');
  expect(statuses).toEqual({ 200: 100 });
});
