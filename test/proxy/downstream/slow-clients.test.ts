import { once } from 'node:events';
import type { RequestListener } from 'node:http';
import { connect as connectHttp2 } from 'node:http2';
import { type AddressInfo, connect, createServer as createTcpServer, type Socket } from 'node:net';

import { connect as connectTls } from 'node:tls';
import { afterEach, describe, expect, test } from 'vitest';
import { startHttpUpstream } from '../../support/http-upstream.ts';
import { sendRequest } from '../../support/https-client.ts';
import {
  bearer,
  type ProxyHarness,
  rule,
  startProxyHarness,
  type TestUpstreamSettings,
} from '../../support/proxy-harness.ts';
import { until } from '../../support/until.ts';
import { chooseVariants } from '../../support/variants.ts';

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  while (cleanups.length > 0) await cleanups.pop()?.();
});

type Kind = 'HTTP/1.1' | 'HTTP/2' | 'TLS upstream';
const KINDS = chooseVariants<Kind>(['HTTP/1.1', 'HTTP/2', 'TLS upstream'], ['HTTP/1.1', 'HTTP/2']);

interface ProxySetup {
  readonly kind: Kind;
  readonly harness: ProxyHarness;
  /** Method and path of the requests that the upstream received. */
  readonly seen: string[];
  /** Sends the responses to `/files/held`. */
  release(): void;
}

async function startProxySetup(kind: Kind, settings: TestUpstreamSettings = {}): Promise<ProxySetup> {
  const seen: string[] = [];
  const held = Promise.withResolvers<void>();
  const listener: RequestListener = (request, response) => {
    seen.push(`${request.method} ${request.url}`);
    response.on('error', () => {});
    request.on('error', () => {}).resume();
    if (request.url === '/public/endless') {
      const write = (): void => {
        while (!response.destroyed && response.write(Buffer.alloc(65_536)));
      };
      response.on('drain', write);
      write();
    } else if (request.url === '/files/held') void held.promise.then(() => response.end('held'));
    else request.on('end', () => response.end('ok'));
  };
  const upstream = await startHttpUpstream(listener, kind === 'TLS upstream');
  cleanups.push(() => upstream.close());
  const isSecure = kind === 'HTTP/2';
  const harness = await startProxyHarness({
    upstream: upstream.url,
    upstreamSettings: { connections: 4, ...settings, ...upstream.settings },
    rules: [rule('/public/**', 'public'), rule('/files/**', 'files:read')],
    tokens: { A: bearer(), B: bearer({ identity: 'local:b', grantId: 'grant-b' }) },
    tls: isSecure,
    http2: isSecure,
  });
  cleanups.push(() => harness.close());
  return { kind, harness, seen, release: held.resolve };
}

interface SlowRequest {
  /** Sends more of the body. */
  send(bytes: number): void;
  readonly isClosed: () => boolean;
  /** The status of the response; undefined if the connection was closed without one. */
  readonly status: Promise<number | undefined>;
}

/** Sends a request with `bytes` of an incomplete body of `length`; without a body, the response is not read. */
function sendSlowly({ kind, harness }: ProxySetup, head: string, length: number, bytes: number): SlowRequest {
  const [method = '', path = ''] = head.split(' ');
  return kind === 'HTTP/2'
    ? sendSlowlyOverHttp2(harness, method, path, length, bytes)
    : sendSlowlyOverHttp1(harness, method, path, length, bytes);
}

function sendSlowlyOverHttp1(
  { port }: ProxyHarness,
  method: string,
  path: string,
  length: number,
  bytes: number,
): SlowRequest {
  const socket: Socket = connect(port, '127.0.0.1').on('error', () => {});
  cleanups.push(() => socket.destroy());
  const framing = length > 0 ? `Content-Length: ${length}\r\n` : '';
  socket.write(`${method} ${path} HTTP/1.1\r\nHost: gate.test\r\n${framing}\r\n`);
  const send = (count: number): void => void socket.write(Buffer.alloc(count));
  send(bytes);
  const status = Promise.withResolvers<number | undefined>();
  const isReading = length > 0;
  if (isReading)
    socket.once('data', (part: Buffer) => status.resolve(Number(/^HTTP\/1\.1 (\d+)/.exec(part.toString())?.[1])));
  let isClosed = false;
  socket.on('close', () => {
    isClosed = true;
    status.resolve(undefined);
  });
  return { send, isClosed: () => isClosed, status: status.promise };
}

function sendSlowlyOverHttp2(
  harness: ProxyHarness,
  method: string,
  path: string,
  length: number,
  bytes: number,
): SlowRequest {
  const session = connectHttp2(`https://localhost:${harness.port}`, {
    createConnection: () =>
      connectTls({
        host: '127.0.0.1',
        port: harness.port,
        servername: 'localhost',
        ca: harness.ca.pem,
        ALPNProtocols: ['h2'],
      }),
  }).on('error', () => {});
  cleanups.push(() => session.destroy());
  const fields = { ':method': method, ':path': path, ':authority': 'gate.test' };
  const stream = session.request(length > 0 ? { ...fields, 'content-length': length } : fields, {
    endStream: length === 0,
  });
  stream.on('error', () => {});
  const send = (count: number): void => void stream.write(Buffer.alloc(count));
  if (length > 0) send(bytes);
  const status = Promise.withResolvers<number | undefined>();
  stream.on('response', (head) => status.resolve(head[':status']));
  let isClosed = false;
  stream.on('close', () => {
    isClosed = true;
    status.resolve(undefined);
  });
  return { send, isClosed: () => isClosed, status: status.promise };
}

async function sendOrdinary({ kind, harness }: ProxySetup, path = '/public/small', token?: string): Promise<number> {
  const { status } = await sendRequest({
    port: harness.port,
    path,
    plain: kind !== 'HTTP/2',
    ca: harness.ca.pem,
    headers: token === undefined ? {} : { authorization: `Bearer ${token}` },
  });
  return status;
}

describe.each(KINDS)('%s', (kind) => {
  test.each(['GET', 'DELETE', 'POST'])('a %s body that has not arrived uses no upstream connection', async (method) => {
    const proxy = await startProxySetup(kind);
    for (let at = 0; at < 6; at += 1) sendSlowly(proxy, `${method} /public/slow`, 1_000, 1);
    await until('all requests have started', () => proxy.harness.notes.length >= 6);
    expect(await sendOrdinary(proxy)).toBe(200);
    expect(proxy.seen).toEqual(['GET /public/small']);
  });

  test('a body that arrives in parts is forwarded completely', async () => {
    const proxy = await startProxySetup(kind);
    const slow = sendSlowly(proxy, 'DELETE /public/slow', 3, 1);
    await until('the request has started', () => proxy.harness.notes.length === 1);
    slow.send(2);
    expect(await slow.status).toBe(200);
    expect(proxy.harness.notes[0]?.transfer?.bytesIn).toBe(3);
  });

  test('uploads use at most half of the connections', async () => {
    const proxy = await startProxySetup(kind, { bodyBuffer: 10 });
    for (let at = 0; at < 6; at += 1) sendSlowly(proxy, 'POST /public/slow', 1_000, 20);
    await until('two are forwarded', () => proxy.seen.length === 2);
    expect(await sendOrdinary(proxy)).toBe(200);
    expect(proxy.seen).toEqual(['POST /public/slow', 'POST /public/slow', 'GET /public/small']);
  });

  test('clients that do not read lose their upstream connection to waiting clients', async () => {
    const proxy = await startProxySetup(kind, { timeouts: { connect: 5, headers: 20, idle: 60 } });
    for (let at = 0; at < 4; at += 1) sendSlowly(proxy, 'GET /public/endless', 0, 0);
    await until('all requests are forwarded', () => proxy.seen.length === 4);
    expect(await sendOrdinary(proxy)).toBe(200);
    const evicted = proxy.harness.notes.filter(({ reason }) => reason === 'client_too_slow');
    expect(evicted.length).toBeGreaterThan(0);
  });

  test('a body below the minimum rate is refused even if it never pauses', async () => {
    const proxy = await startProxySetup(kind, {
      timeouts: { connect: 5, headers: 20, idle: 1 },
      minRate: 10_000,
    });
    const slow = sendSlowly(proxy, 'POST /public/slow', 1_000_000, 1);
    const timer = setInterval(() => slow.send(10), 100);
    cleanups.push(() => clearInterval(timer));
    expect(await slow.status).toBe(408);
  });

  test('a body that exceeds the total timeout is refused', async () => {
    const proxy = await startProxySetup(kind, {
      timeouts: { connect: 5, headers: 20, idle: 60, body: 1 },
      minRate: 0,
    });
    const slow = sendSlowly(proxy, 'POST /public/slow', 1_000_000, 1);
    const timer = setInterval(() => slow.send(10), 100);
    cleanups.push(() => clearInterval(timer));
    expect(await slow.status).toBe(408);
  });

  test('one client cannot use all connections', async () => {
    const proxy = await startProxySetup(kind, { connections: 8 });
    const held = Array.from({ length: 10 }, () => sendOrdinary(proxy, '/files/held', 'A'));
    await until('the client has reached its limit', () => proxy.seen.length === 7);
    expect(await sendOrdinary(proxy, '/files/1', 'B')).toBe(200);
    expect(proxy.seen.length).toBe(8);
    proxy.release();
    expect(await Promise.all(held)).toEqual(held.map(() => 200));
  });
});

test('an upload keeps its slot while its connection is being opened', async () => {
  // Accepts connections and never responds to the TLS handshake.
  let accepted = 0;
  const hadEnded: boolean[] = [];
  const server = createTcpServer((socket) => {
    accepted += 1;
    cleanups.push(() => socket.destroy());
    hadEnded.push(harness.notes.some(({ reason }) => reason !== undefined));
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  cleanups.push(() => server.close());
  const harness = await startProxyHarness({
    upstream: `https://127.0.0.1:${(server.address() as AddressInfo).port}`,
    upstreamSettings: { connections: 4, timeouts: { connect: 2, headers: 20, idle: 20 } },
    rules: [rule('/files/**', 'files:read')],
    tokens: { A: bearer(), B: bearer({ identity: 'local:b', grantId: 'grant-b' }) },
  });
  cleanups.push(() => harness.close());
  for (const token of ['A', 'A', 'B']) {
    const socket = connect(harness.port, '127.0.0.1').on('error', () => {});
    cleanups.push(() => socket.destroy());
    socket.write(
      `POST /files/1 HTTP/1.1\r\nHost: gate.test\r\nAuthorization: Bearer ${token}\r\nTransfer-Encoding: chunked\r\n\r\n`,
    );
    if (token === 'A') await until('the request has started', () => harness.notes.length > 0);
  }
  await until('the third request has a connection', () => accepted === 3);
  expect(hadEnded).toEqual([false, false, true]);
});

test('a stream of unknown length is forwarded as it arrives', async () => {
  const proxy = await startProxySetup('HTTP/1.1');
  const socket = connect(proxy.harness.port, '127.0.0.1').on('error', () => {});
  cleanups.push(() => socket.destroy());
  socket.write('POST /public/stream HTTP/1.1\r\nHost: gate.test\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n');
  await until('the request is forwarded', () => proxy.seen.length === 1);
});
