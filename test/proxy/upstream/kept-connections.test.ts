import type { Socket } from 'node:net';
import { createSecureContext, createServer, type Server, type TLSSocket } from 'node:tls';
import { describe, expect, onTestFinished, test, vi } from 'vitest';
import type { ResponseHandler, UpstreamConnection } from '../../../src/proxy/upstream/connection.ts';
import { ConnectionPool } from '../../../src/proxy/upstream/connection-pool.ts';
import { createCa, EKU, issue } from '../../support/pki.ts';
import { startProxyHarness } from '../../support/proxy-harness.ts';
import { rawRequest } from '../../support/raw-client.ts';
import { startRecordingUpstream } from '../../support/recording-upstream.ts';
import { listenTcp } from '../../support/tcp-server.ts';
import { until } from '../../support/until.ts';

interface TlsPool {
  readonly pool: ConnectionPool;
  readonly server: Server;
  /** Of each connection, in order: was its session resumed? */
  readonly resumed: boolean[];
  readonly freed: () => number;
}

/** A TLS server that sends this response to whatever it reads, and a pool of connections to it. */
async function startTlsPool(response: string, notAfter?: Date): Promise<TlsPool> {
  const ca = await createCa();
  const certificate = await issue(ca, {
    commonName: 'localhost',
    dnsNames: ['localhost'],
    extendedKeyUsage: [EKU.serverAuth],
    ...(notAfter && { notAfter }),
  });
  const resumed: boolean[] = [];
  const server = createServer({ cert: certificate.pem, key: certificate.keyPem }, (socket) => {
    resumed.push(socket.isSessionReused());
    socket.on('data', () => void socket.write(response));
  });
  const { port, close } = await listenTcp(server);
  const tls = { serverName: 'localhost', secureContext: createSecureContext({ ca: ca.pem }) };
  let free = 0;
  const pool = new ConnectionPool(`https://127.0.0.1:${port}`, tls, 10, () => {
    free += 1;
  });
  onTestFinished(async () => {
    await pool.close();
    await close();
  });
  return { pool, server, resumed, freed: () => free };
}

/** Sends a request; resolves to whether its connection is kept. */
async function send(connection: UpstreamConnection, more: Partial<ResponseHandler> = {}): Promise<boolean> {
  const ended = Promise.withResolvers<boolean>();
  const handler: ResponseHandler = {
    onConnected: () => connection.send({ method: 'GET', path: '/', fields: '', acceptsTrailers: false }, '', undefined),
    onDrain() {},
    onHead() {},
    onData: () => true,
    onReadEnd() {},
    onEnd: ended.resolve,
    onError: ended.reject,
    onInternalError: ended.reject,
    ...more,
  };
  connection.assign(handler, false, performance.now());
  if (connection.isConnected) handler.onConnected();
  return ended.promise;
}

const OK = 'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok';

test('a TLS connection whose reading was paused during the last read of a response can be used again', async () => {
  const { pool, freed } = await startTlsPool(`HTTP/1.1 200 OK\r\nContent-Length: 40000\r\n\r\n${'a'.repeat(40_000)}`);
  for (const [index, isSlow] of [false, true, false].entries()) {
    let reads = 0;
    const onData = (): boolean => !(isSlow && ++reads === 1);
    expect(await send(pool.acquire(false), { onData })).toBe(true);
    await until('the connection is free', () => freed() === index + 1);
  }
});

describe('an idle connection is reused by the clock, however late the timers are', () => {
  const KEPT_5_SECONDS = 'HTTP/1.1 200 OK\r\nKeep-Alive: timeout=5\r\nContent-Length: 2\r\n\r\nok';

  /** Time passes without a timer of the process, as while its event loop is blocked. */
  function holdClock(): (milliseconds: number) => void {
    const real = performance.now.bind(performance);
    let passed = 0;
    const spy = vi.spyOn(performance, 'now').mockImplementation(() => real() + passed);
    onTestFinished(() => spy.mockRestore());
    return (milliseconds) => {
      passed += milliseconds;
    };
  }

  test.each([
    // Two seconds less than the upstream says.
    ['reused within its idle time', 0, 2_500, true],
    ['not reused after it, although no timer has closed it', 0, 3_500, false],
    ['not reused if its response may have waited to be read', 2_000, 1_500, false],
    ['reused soon after a slow response', 2_000, 500, true],
  ])('%s', async (_, responseMs, idleMs, isReused) => {
    const pass = holdClock();
    const { pool, freed } = await startTlsPool(KEPT_5_SECONDS);
    const first = pool.acquire(false);
    expect(await send(first, { onHead: () => pass(responseMs) })).toBe(true);
    await until('the connection is free', () => freed() === 1);
    pass(idleMs);
    const next = pool.acquire(false);
    expect(next === first).toBe(isReused);
    expect(first.isClosed).toBe(!isReused);
    expect(await send(next)).toBe(true);
  });
});

describe('the TLS session of a target is resumed', () => {
  const MINUTE = 60_000;
  test.each([
    ['for an hour', undefined, 60 * MINUTE],
    ['until the certificate of the target expires', 30 * MINUTE, 30 * MINUTE],
  ])('%s', async (_, validFor, limit) => {
    const start = Date.now();
    const notAfter = validFor === undefined ? undefined : new Date(start + validFor);
    const { pool, resumed } = await startTlsPool(OK, notAfter);
    vi.useFakeTimers({ toFake: ['Date'], now: start });
    onTestFinished(() => void vi.useRealTimers());
    for (const time of [0, limit - MINUTE, limit + MINUTE, limit + MINUTE]) {
      vi.setSystemTime(start + time);
      await send(pool.acquire(true));
    }
    // A session that was not resumed is replaced by the next one, while its certificate is valid.
    expect(resumed).toEqual([false, true, false, validFor === undefined]);
  });
});

describe('an exception in an exchange ends that exchange', () => {
  const fail = (): never => {
    throw new Error('an exception in the exchange');
  };
  const request = Buffer.alloc(4 * 1_048_576);
  test.each<[string, string, (connection: UpstreamConnection) => Partial<ResponseHandler>]>([
    ['connected', OK, () => ({ onConnected: fail })],
    [
      'takes more of a request',
      '',
      (connection) => ({ onConnected: () => void connection.write(request, true), onDrain: fail }),
    ],
    ['has delivered a response', OK, () => ({ onEnd: fail })],
    ['is closed at the end of a response', 'HTTP/1.1 200 OK\r\n\r\nok', () => ({ onEnd: fail })],
    ['is closed before a response', 'HTTP/1.1 ', () => ({ onError: fail })],
  ])('when its connection %s', async (_, response, more) => {
    const { pool, server } = await startTlsPool(response);
    if (response !== '' && response !== OK)
      server.on('secureConnection', (socket: TLSSocket) => socket.on('data', () => void socket.end()));
    const connection = pool.acquire(false);
    await expect(send(connection, more(connection))).rejects.toThrow('an exception in the exchange');
    expect(connection.isClosed).toBe(true);
  });

  test('when its connection is reset', async () => {
    const { pool, server } = await startTlsPool('');
    server.on('connection', (socket: Socket) => socket.resetAndDestroy());
    const connection = pool.acquire(false);
    await expect(send(connection, { onError: fail })).rejects.toThrow('an exception in the exchange');
  });
});

test('an empty chunked body that is forwarded as it arrives is terminated upstream', async () => {
  const upstream = await startRecordingUpstream();
  const proxy = await startProxyHarness({
    upstream: upstream.url,
    upstreamSettings: { bodyBuffer: 0 },
  });
  onTestFinished(async () => {
    await proxy.close();
    await upstream.close();
  });
  const head = 'POST /files/1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer A\r\nTransfer-Encoding: chunked\r\n\r\n';
  expect((await rawRequest(proxy.port, `${head}0\r\n\r\n`)).status).toBe(200);
});
