import { once } from 'node:events';
import { connect as connectNet } from 'node:net';
import { connect as connectTls } from 'node:tls';
import { afterEach, describe, expect, test } from 'vitest';
import { createRateLimiter } from '../../src/lib/rate-limiter.ts';
import { heapAfterCollection } from '../support/heap.ts';
import { FLAG, FRAME, frame, frameClient, requestFields } from '../support/http2-frames.ts';
import { until } from '../support/serve-process.ts';
import { abortRequests } from './aborted-requests.ts';
import { useAttackGateway } from './attack-gateway.ts';
import { OWN } from './matrix-settings.ts';
import { waitUntilSettled } from './wait-until-settled.ts';

/** Rows X03, X05, X06, X08, X09, X12 and X13: resources that one client can use. X01, X02: stalled-connections. */
const attack = useAttackGateway((settings) => ({
  ...settings,
  limits: { ...settings.limits, connections: 200, headers: '16KiB' },
}));

const openClients: { destroy(): void }[] = [];
afterEach(() => {
  for (const client of openClients.splice(0)) client.destroy();
  attack.upstream.reset();
});

const MiB = 1_048_576;

test('X03 while ten clients read nothing of a large response, the upstream is throttled and the gateway buffers little', async () => {
  const part = Buffer.alloc(65_536, 'x');
  const total = 256 * MiB;
  let written = 0;
  attack.upstream.respondWith((socket) => {
    socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${total}\r\n\r\n`);
    const more = (): void => {
      while (!socket.destroyed) {
        written += part.length;
        if (!socket.write(part)) {
          socket.once('drain', more);
          return;
        }
      }
    };
    more();
  });
  const before = process.memoryUsage().rss;
  const { gateway, token } = attack;
  for (let index = 0; index < 10; index += 1) {
    const socket = connectTls({
      port: gateway.port,
      host: '127.0.0.1',
      servername: 'localhost',
      ca: gateway.ca.pem,
    });
    openClients.push(socket);
    socket.on('error', () => {});
    await once(socket, 'secureConnect');
    socket.pause();
    socket.write(`GET /files/1 HTTP/1.1\r\nHost: ${OWN}\r\nAuthorization: Bearer ${token}\r\n\r\n`);
  }
  await waitUntilSettled(() => written, gateway, '/authsvc/Authorize/Verify');
  // Most of it is in socket buffers; both ends of each socket are in this process.
  expect(written).toBeLessThan(10 * 24 * MiB);
  expect(process.memoryUsage().rss - before).toBeLessThan(150 * MiB);
  for (const client of openClients.splice(0)) client.destroy();
  await until('the upstream connections are closed', () => attack.upstream.openConnections() === 0);
  await attack.expectHealthy();
});

describe('sizes', () => {
  test('X05 a body of the token service beyond 16 KiB is 413, with and without a length', async () => {
    const { gateway } = attack;
    const body = JSON.stringify({ client_id: 'report-runner', refresh_token: 'x'.repeat(16_384) });
    expect(
      (
        await gateway.request({
          path: '/authsvc/Authorize/Token',
          method: 'POST',
          body,
          headers: { 'content-type': 'application/json' },
        })
      ).status,
    ).toBe(413);
    const chunked = await gateway.request({
      path: '/authsvc/Authorize/Token',
      method: 'POST',
      body,
      headers: { 'content-type': 'application/json', 'transfer-encoding': 'chunked' },
    });
    expect(chunked.status).toBe(413);
    const client = await frameClient(gateway.port, { ca: gateway.ca.pem });
    openClients.push(client);
    const stream = client.request(
      [...requestFields('/authsvc/Authorize/Token', 'POST'), ['content-type', 'application/json']],
      { end: false },
    );
    client.send(
      frame(FRAME.data, 0, stream, Buffer.alloc(10_000, 'x')),
      frame(FRAME.data, FLAG.endStream, stream, Buffer.alloc(10_000, 'x')),
    );
    await client.until(() => client.outcome(stream) !== undefined);
    expect(client.outcome(stream)).toEqual({ status: 413 });
    await attack.expectHealthy();
  });

  test('X06 a head beyond 16 KiB, or of more than a hundred fields, is 431; a target beyond 8 KiB is 414', async () => {
    const fields = (count: number): [string, string][] =>
      Array.from({ length: count }, (_, index) => [`X-${index}`, '1']);
    const write = (more: readonly (readonly [string, string])[], target = '/files/1'): string =>
      [
        `GET ${target} HTTP/1.1`,
        `Host: ${OWN}`,
        `Authorization: Bearer ${attack.token}`,
        ...more.map(([name, value]) => `${name}: ${value}`),
        '',
        '',
      ].join('\r\n');
    for (const [bytes, status] of [
      [write([['X-Large', 'a'.repeat(16_384)]]), 431],
      [write(fields(99)), 431],
      [write(fields(98)), 200],
      [write([], `/files/${'a'.repeat(8_200)}`), 414],
      [write([], `/files/${'a'.repeat(8_000)}`), 200],
    ] as const) {
      attack.upstream.reset();
      const response = await attack.send(bytes);
      expect([bytes.length, response.status]).toEqual([bytes.length, status]);
      expect(attack.upstream.requests.length).toBe(status === 200 ? 1 : 0);
      await attack.expectHealthy();
    }
  });
});

test('X08 connections beyond the limit are closed, those within it are served, and closed ones make room for new ones', async () => {
  // The clients of the harness have a few connections open.
  const many = await Promise.allSettled(
    Array.from({ length: 260 }, async () => {
      const socket = connectNet(attack.gateway.port, '127.0.0.1');
      openClients.push(socket);
      socket.on('error', () => {}).resume();
      await once(socket, 'connect');
      return socket;
    }),
  );
  const sockets = many.flatMap((result) => (result.status === 'fulfilled' ? [result.value] : []));
  await until(
    'connections beyond the limit are closed',
    () => sockets.filter((socket) => socket.destroyed).length >= 60,
  );
  expect(sockets.filter((socket) => !socket.destroyed).length).toBeLessThanOrEqual(200);
  for (const client of openClients.splice(0)) client.destroy();
  await until('a new connection is accepted', async () => {
    try {
      return (await attack.gateway.api('/files/1', attack.token)).status === 200;
    } catch {
      return false;
    }
  });
  await until('the limit is logged', () => attack.gateway.log.some(({ event }) => event === 'connections_dropped'));
  expect(attack.gateway.log.filter(({ event }) => event === 'connections_dropped').length).toBeLessThan(10);
  await attack.expectHealthy();
});

test('X09 JSON nested thousands of levels deep, or with thousands of names, is refused', async () => {
  const deep = '{"a":'.repeat(3_000);
  const wide = `{${Array.from({ length: 1_200 }, (_, index) => `"${'k'.repeat(3)}${index}":1`).join(',')}}`;
  const twice = '{"client_id":"a","client_id":"b"}';
  for (const body of [deep, '['.repeat(8_000), wide, twice, `{"client_id":${'9'.repeat(10_000)}}`]) {
    const reply = await attack.gateway.request({
      path: '/authsvc/Authorize/Token',
      method: 'POST',
      body,
      headers: { 'content-type': 'application/json' },
    });
    expect([body.slice(0, 20), reply.status]).toEqual([body.slice(0, 20), 400]);
  }
  await attack.expectHealthy();
});

test('X12 a hundred requests aborted by their clients at a random byte leave no upstream connection open', () =>
  abortRequests(attack, 100));

test('X13 the rate limiter stays bounded with 50,000 names, and still limits each name', () => {
  let now = 0;
  const limit = createRateLimiter({ burst: 2, perSecond: 1 }, () => now, 1_000);
  const before = heapAfterCollection();
  for (let index = 0; index < 50_000; index += 1) limit.take(`name-${index}`);
  expect(heapAfterCollection() - before).toBeLessThan(20 * MiB);
  expect([limit.take('me'), limit.take('me'), limit.take('me') > 0]).toEqual([0, 0, true]);
  now += 10;
  expect(limit.take('me')).toBe(0);
});

test('X13 two hundred unknown clients all get the same response', async () => {
  const responses = new Set<string>();
  for (let index = 0; index < 200; index += 10)
    await Promise.all(
      Array.from({ length: 10 }, async (_, more) => {
        const body = { client_id: `unknown-${index + more}`, scope: 'files:read' };
        const { status, json } = await attack.gateway.post('/Authorize/Device', body);
        responses.add(`${status} ${String(json['Error'])}`);
      }),
    );
  expect([...responses]).toEqual([expect.stringMatching(/^40[01] /)]);
  await attack.expectHealthy();
});
