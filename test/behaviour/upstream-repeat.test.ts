import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import type { AddressInfo, Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createServer as createTlsServer } from 'node:tls';
import { afterEach, describe, expect, test } from 'vitest';
import { issueServer, makeCa } from '../support/pki.ts';
import { type ProxyHarness, proxyHarness } from '../support/proxy-harness.ts';
import { rawRequest } from '../support/raw-client.ts';
import { ok, type RecordingUpstream, type Reply, recordingUpstream } from '../support/recording-upstream.ts';

/** U05: what is asked a second time, and what never is. */
const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  while (cleanups.length > 0) await cleanups.pop()?.();
});

type Lane = 'full' | 'fast';

async function setUp(firstLane: Lane): Promise<{ upstream: RecordingUpstream; gate: ProxyHarness }> {
  const upstream = await recordingUpstream();
  const upstreamSettings = { connections: 1 };
  const gate = await proxyHarness({ upstream: upstream.url, upstreamSettings, firstLane });
  cleanups.push(
    () => upstream.close(),
    () => gate.close(),
  );
  return { upstream, gate };
}

const message = (method: string, more = '\r\n'): string =>
  `${method} /files/1 HTTP/1.1\r\nHost: gate.test\r\nAuthorization: Bearer A\r\n${more}`;

/** The first connection answers once, and from then on does this to whatever comes on it. */
function onceThen(upstream: RecordingUpstream, fate: Reply): void {
  let answered = 0;
  upstream.reply((socket, request) => {
    if (request.connection > 1 || answered++ === 0) ok(socket, request);
    else fate(socket, request);
  });
}

const FATES: readonly (readonly [string, (socket: Socket) => void])[] = [
  ['closed', (socket) => void socket.end()],
  ['reset', (socket) => void socket.resetAndDestroy()],
];

const NO_BODY = 'Content-Length: 0\r\n\r\n';
/** Each lane has connections of its own: what is asked first must have come the same way. */
const REPEATED: readonly (readonly [Lane, string, string])[] = [
  ['full', 'GET', '\r\n'],
  ['full', 'OPTIONS', '\r\n'],
  ['full', 'DELETE', '\r\n'],
  ['full', 'PUT', '\r\n'],
  ['fast', 'GET', '\r\n'],
  ['fast', 'DELETE', '\r\n'],
  ['fast', 'PUT', NO_BODY],
];
const BODY = 'Content-Length: 2\r\n\r\nab';
const SENT_ONCE: readonly (readonly [Lane, string, string])[] = [
  ...(['full', 'fast'] as const).flatMap((lane) => [
    [lane, 'POST', BODY] as const,
    [lane, 'POST', NO_BODY] as const,
    [lane, 'PATCH', BODY] as const,
    [lane, 'PUT', BODY] as const,
  ]),
  ['full', 'DELETE', 'Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n'],
];

describe.each(FATES)('U05 a connection that was used before and is %s before an answer', (_, fate) => {
  test.each(REPEATED)(
    '%s lane: %s with %j is asked once more, on a fresh connection',
    async (lane, method, rest) => {
      const { upstream, gate } = await setUp(lane);
      onceThen(upstream, fate);
      expect((await rawRequest(gate.port, message('GET'))).status).toBe(200);
      const answer = await rawRequest(gate.port, message(method, rest));
      expect([answer.status, answer.body]).toEqual([200, `${method} /files/1`]);
      expect(upstream.requests.map(({ method: one, connection }) => `${one} ${connection}`)).toEqual([
        'GET 1',
        `${method} 1`,
        `${method} 2`,
      ]);
      expect(gate.log.join('')).toContain('upstream_asked_again');
    },
  );

  test.each(SENT_ONCE)('%s lane: %s with %j is 502 and was sent once', async (lane, method, rest) => {
    const { upstream, gate } = await setUp(lane);
    onceThen(upstream, fate);
    await rawRequest(gate.port, message('GET'));
    expect((await rawRequest(gate.port, message(method, rest))).status).toBe(502);
    expect(upstream.requests.filter((request) => request.method === method)).toHaveLength(1);
  });
});

describe.each(['full', 'fast'] as const)('U05 no second time, %s lane', (lane) => {
  test('on a fresh connection: the upstream saw the request and left', async () => {
    const { upstream, gate } = await setUp(lane);
    upstream.reply((socket) => socket.destroy());
    expect((await rawRequest(gate.port, message('GET'))).status).toBe(502);
    expect(upstream.requests).toHaveLength(1);
  });

  test('when a part of the answer had come', async () => {
    const { upstream, gate } = await setUp(lane);
    onceThen(upstream, (socket) => socket.end('HTT'));
    await rawRequest(gate.port, message('GET'));
    expect((await rawRequest(gate.port, message('GET'))).status).toBe(502);
    expect(upstream.requests).toHaveLength(2);
  });

  test('a third time', async () => {
    const { upstream, gate } = await setUp(lane);
    let answered = 0;
    upstream.reply((socket, request) => {
      if (answered++ === 0) ok(socket, request);
      else socket.destroy();
    });
    await rawRequest(gate.port, message('GET'));
    expect((await rawRequest(gate.port, message('GET'))).status).toBe(502);
    expect(upstream.requests).toHaveLength(3);
  });
});

test('U05 the same over TLS, where a fresh connection has read a handshake and yet served nobody', async () => {
  const ca = await makeCa();
  const own = await issueServer(ca);
  const folder = mkdtempSync(join(tmpdir(), 'gatehouse-'));
  const trusted = join(folder, 'ca.pem');
  writeFileSync(trusted, ca.pem);
  let heads = 0;
  let fate: (socket: Socket, count: number) => void = (socket) => void socket.destroy();
  const server = createTlsServer({ cert: own.pem, key: own.keyPem }, (socket) => {
    let count = 0;
    socket.on('error', () => {});
    socket.on('data', () => {
      heads += 1;
      count += 1;
      fate(socket, count);
    });
  });
  await new Promise<void>((resolve) => {
    server.listen(0, '127.0.0.1', resolve);
  });
  const { port } = server.address() as AddressInfo;
  const gate = await proxyHarness({
    upstream: `https://127.0.0.1:${port}`,
    upstreamSettings: { ca: trusted, connections: 1 },
  });
  cleanups.push(
    () => rmSync(folder, { recursive: true }),
    () => new Promise((resolve) => server.close(resolve)),
    () => gate.close(),
  );
  expect((await rawRequest(gate.port, message('GET'))).status).toBe(502);
  expect(heads).toBe(1);
  fate = (socket, count) =>
    count === 1 ? void socket.write('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok') : void socket.destroy();
  expect((await rawRequest(gate.port, message('GET'))).body).toBe('ok');
  expect((await rawRequest(gate.port, message('GET'))).body).toBe('ok');
  expect(heads).toBe(4);
});
