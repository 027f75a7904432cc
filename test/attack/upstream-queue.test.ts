import { once } from 'node:events';
import { createServer } from 'node:http';
import { type AddressInfo, connect } from 'node:net';
import { expect, onTestFinished, test } from 'vitest';
import { type ProxyHarness, startProxyHarness, type TestUpstreamSettings } from '../support/proxy-harness.ts';
import { connectRaw, type RawClient } from '../support/raw-client.ts';
import { until } from '../support/serve-process.ts';

const REQUEST = 'GET /public/large HTTP/1.1\r\nHost: a\r\n\r\n';
const HELD = 'GET /public/held HTTP/1.1\r\nHost: a\r\n\r\n';

/** Starts a proxy and occupies all its upstream connections with requests that get no response, or an endless one that is not read. */
async function startExhaustedProxy(
  upstreamSettings: Required<Pick<TestUpstreamSettings, 'connections' | 'timeouts'>>,
  request: string,
): Promise<ProxyHarness> {
  let requests = 0;
  const upstream = createServer(({ url: path }, response) => {
    requests += 1;
    if (path === '/public/held') return;
    const part = Buffer.alloc(1_048_576);
    const write = (): void => {
      while (!response.destroyed && response.write(part));
    };
    response.on('drain', write);
    write();
  }).listen(0, '127.0.0.1');
  onTestFinished(() => {
    upstream.closeAllConnections();
    upstream.close();
  });
  await once(upstream, 'listening');
  const url = `http://127.0.0.1:${(upstream.address() as AddressInfo).port}`;
  const proxy = await startProxyHarness({ upstream: url, upstreamSettings });
  onTestFinished(() => proxy.close());
  for (let count = 0; count < upstreamSettings.connections; count += 1) {
    const socket = connect(proxy.port, '127.0.0.1');
    onTestFinished(() => void socket.destroy());
    socket.on('error', () => {}).pause();
    socket.write(request);
  }
  await until('all upstream connections are taken', () => requests === upstreamSettings.connections);
  return proxy;
}

async function openClient(proxy: ProxyHarness): Promise<RawClient> {
  const client = await connectRaw(proxy.port);
  onTestFinished(() => client.destroy());
  return client;
}

test('X03 clients that read nothing lose their upstream connections to waiting clients', async () => {
  const proxy = await startExhaustedProxy({ connections: 2, timeouts: { connect: 1, headers: 30, idle: 60 } }, REQUEST);
  const reader = await openClient(proxy);
  reader.send(REQUEST);
  expect(await reader.until((text) => text.length > 0)).toMatch(/^HTTP\/1\.1 200 /);
});

test('a request that gets no upstream connection in time gets 503', async () => {
  const proxy = await startExhaustedProxy({ connections: 1, timeouts: { connect: 1, headers: 2, idle: 60 } }, HELD);
  const late = await openClient(proxy);
  late.send(REQUEST);
  expect(await late.until((text) => text.length > 0)).toMatch(/^HTTP\/1\.1 503 /);
});

test('a client that leaves the connection queue frees its slot, and one client takes at most 448 of 512 slots', async () => {
  const proxy = await startExhaustedProxy({ connections: 1, timeouts: { connect: 1, headers: 60, idle: 60 } }, HELD);
  let sent = 1;
  const sendEight = async (): Promise<readonly RawClient[]> => {
    const clients = await Promise.all(Array.from({ length: 8 }, () => openClient(proxy)));
    for (const client of clients) client.send(REQUEST);
    sent += 8;
    await until('the requests have arrived', () => proxy.notes.length >= sent);
    return clients;
  };
  const countOverloaded = (): number => proxy.notes.filter(({ reason }) => reason === 'overloaded').length;
  // More clients disconnect than the queue has slots.
  for (let round = 0; round < 70; round += 1) {
    for (const client of await sendEight()) client.destroy();
    await until('the disconnected clients have left the queue', () =>
      proxy.notes.slice(1).every(({ reason }) => reason === 'client_disconnected'),
    );
  }
  for (let round = 0; round < 448 / 8; round += 1) await sendEight();
  expect(countOverloaded()).toBe(0);
  await sendEight();
  await until('the others are refused', () => countOverloaded() === 8);
});
