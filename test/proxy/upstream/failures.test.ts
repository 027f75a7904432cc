import { mkdtempSync, rmSync } from 'node:fs';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, onTestFinished, test, vi } from 'vitest';
import { waitUntilStable } from '../../support/event-loop-turns.ts';
import { type ProxyHarness, startProxyHarness } from '../../support/proxy-harness.ts';
import { connectRaw, isCompleteResponse, type RawResponse, rawRequest } from '../../support/raw-client.ts';
import { type RecordingUpstream, type Responder, startRecordingUpstream } from '../../support/recording-upstream.ts';
import { listenTcp } from '../../support/tcp-server.ts';
import { until } from '../../support/until.ts';

let upstream: RecordingUpstream;
let proxy: ProxyHarness;

beforeAll(async () => {
  upstream = await startRecordingUpstream();
  proxy = await startProxyHarness({
    upstream: upstream.url,
    upstreamSettings: { timeouts: { connect: 60, headers: 60, idle: 60 } },
  });
});
afterAll(async () => {
  await proxy.close();
  await upstream.close();
});
beforeEach(() => upstream.reset());

const get = (path: string, method = 'GET', version = '1.1'): string =>
  `${method} ${path} HTTP/${version}\r\nHost: gate.test\r\nAuthorization: Bearer A\r\n\r\n`;
const send = (path: string, method?: string, port = proxy.port): Promise<RawResponse> =>
  rawRequest(port, get(path, method));

const TIMEOUT_MS = 1_000;
/** Deadlines are checked every 200 ms: a timeout fires up to two ticks late. */
const TICKS_MS = 400;

/** Starts a proxy with timeouts of one second each, whose timers advance only with the test. */
async function startWithStoppedTimers(
  more: { readonly events?: number } = {},
  target = upstream.url,
): Promise<ProxyHarness> {
  vi.useFakeTimers({
    toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval', 'performance'],
  });
  const stopped = await startProxyHarness({
    upstream: target,
    upstreamSettings: { timeouts: { connect: 1, headers: 1, idle: 1, ...more }, bodyBuffer: 0, minRate: 0 },
  });
  onTestFinished(async () => {
    vi.useRealTimers();
    await stopped.close();
  });
  return stopped;
}

/** In steps: a jump would look like a stall of the event loop, which does not count. */
function advanceInTicks(milliseconds: number): void {
  for (let passed = 0; passed < milliseconds; passed += 200) vi.advanceTimersByTime(200);
}

/** Expects that a truncated response is incomplete for the client and its connection is closed. */
async function expectTruncated(
  respond: Responder,
  version = '1.1',
): Promise<{ text: string; ending: string | undefined }> {
  upstream.respondWith(respond);
  const client = await connectRaw(proxy.port);
  client.send(get('/files/1', 'GET', version));
  const text = await client.closed(30_000);
  client.destroy();
  expect(isCompleteResponse(text)).toBe(false);
  upstream.reset();
  expect((await send('/files/next')).status).toBe(200);
  return { text, ending: client.closeKind() };
}

const begin = (socket: Socket, head: string): void => void socket.write(`HTTP/1.1 200 OK\r\n${head}\r\n\r\n`, () => {});

describe('a truncated response is also truncated for the client', () => {
  test('U01 a reset in a body of known length', async () => {
    const { text } = await expectTruncated((socket) => {
      socket.write('HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf', () => socket.resetAndDestroy());
    });
    expect(text === '' || text.startsWith('HTTP/1.1 200') || text.startsWith('HTTP/1.1 502')).toBe(true);
  });
  test('U02 an end in a body of known length', async () => {
    const { text } = await expectTruncated((socket) =>
      socket.end('HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf'),
    );
    expect(text).toContain('200 OK');
  });
  test('U03 an end between chunks', async () => {
    const { text } = await expectTruncated((socket) =>
      socket.end('HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n'),
    );
    expect(text).not.toContain('\r\n0\r\n');
  });
  test('U03 an end between chunks, to an HTTP/1.0 client that relies on the close: a reset', async () => {
    const { ending } = await expectTruncated(
      (socket) => socket.end('HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n'),
      '1.0',
    );
    expect(ending).toBe('reset');
  });
  test('U04 a malformed chunk', async () => {
    await expectTruncated((socket) => {
      begin(socket, 'Transfer-Encoding: chunked');
      socket.write('4\r\nhalf\r\nzz\r\nmore\r\n');
    });
  });
  test('U11 a body that stalls', async () => {
    const { port } = await startWithStoppedTimers();
    upstream.respondWith((socket) => begin(socket, 'Content-Length: 10'));
    const client = await connectRaw(port);
    client.send(get('/files/1'));
    await until('the response begins', () => client.text().includes('200 OK'));
    vi.advanceTimersByTime(TIMEOUT_MS + TICKS_MS);
    await until("the client's connection is closed", () => client.closeKind() !== undefined);
    expect(isCompleteResponse(client.text())).toBe(false);
    upstream.reset();
    expect((await send('/files/next', 'GET', port)).status).toBe(200);
  });
});

describe('an upstream that sends no response', () => {
  const expectGenericError = async (response: Promise<RawResponse>, status: number): Promise<void> => {
    const { status: got, body } = await response;
    expect(got).toBe(status);
    expect(Object.keys(JSON.parse(body) as object)).toEqual(['error', 'error_description', 'request_id']);
    expect(body).not.toMatch(/127\.0\.0\.1|ECONN|localhost|invalid\.test/);
  };

  test('U06 a length and a transfer coding in a response are 502', async () => {
    upstream.respondWith((socket) =>
      socket.write('HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n'),
    );
    await expectGenericError(send('/files/1'), 502);
  });

  test('U07 garbage is 502', async () => {
    upstream.respondWith((socket) => socket.write('SSH-2.0-OpenSSH\r\n\r\n'));
    await expectGenericError(send('/files/1'), 502);
  });

  test('U09 an unrequested protocol switch is 502', async () => {
    upstream.respondWith((socket) =>
      socket.write('HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n'),
    );
    await expectGenericError(send('/files/1'), 502);
  });

  test('U11 a missing response head is 504, for requests with and without a body', async () => {
    const { port } = await startWithStoppedTimers();
    const post = 'POST /files/1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer A\r\nContent-Length: 2\r\n\r\nab';
    for (const message of [get('/files/1'), post]) {
      upstream.reset();
      upstream.respondWith(() => {});
      const response = rawRequest(port, message);
      await until('the upstream has the request', () => upstream.requests.length === 1);
      vi.advanceTimersByTime(TIMEOUT_MS + TICKS_MS);
      await expectGenericError(response, 504);
    }
    await until('no upstream connection is open', () => upstream.openConnections() === 0);
  });

  test('U11 a connection that is not established in time is 504', async () => {
    // Accepts the connection and never responds to the TLS handshake.
    const silentServer = createServer((socket) => void socket.on('error', () => {}).resume());
    await new Promise<void>((resolve) => {
      silentServer.listen(0, '127.0.0.1', resolve);
    });
    const { port } = silentServer.address() as AddressInfo;
    const unreachable = await startProxyHarness({
      upstream: `https://127.0.0.1:${port}`,
      upstreamSettings: { timeouts: { connect: 0.1, headers: 60, idle: 60 } },
    });
    await expectGenericError(send('/files/1', 'GET', unreachable.port), 504);
    await unreachable.close();
    await new Promise((resolve) => silentServer.close(resolve));
  });

  test('U12 a refused connection and an unknown name are 502', async () => {
    const closedUpstream = await startRecordingUpstream();
    await closedUpstream.close();
    for (const url of [closedUpstream.url, 'http://nowhere.invalid:80']) {
      const unreachable = await startProxyHarness({ upstream: url });
      await expectGenericError(send('/files/1', 'GET', unreachable.port), 502);
      await unreachable.close();
    }
  });

  test('a complete response sent before the request body ends is forwarded', async () => {
    upstream.reset();
    const early = createServer((socket) => {
      socket.on('error', () => {});
      socket.once('data', () => socket.write('HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno'));
    });
    await new Promise<void>((resolve) => {
      early.listen(0, '127.0.0.1', resolve);
    });
    const { port } = early.address() as AddressInfo;
    const earlyProxy = await startProxyHarness({
      upstream: `http://127.0.0.1:${port}`,
      upstreamSettings: { bodyBuffer: 0 },
    });
    const client = await connectRaw(earlyProxy.port);
    client.send(
      'POST /files/1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer A\r\nContent-Length: 200000\r\n\r\nthe beginning',
    );
    const text = await client.until((all) => isCompleteResponse(all));
    expect(text).toContain('403 Forbidden');
    client.send('x'.repeat(200_000 - 13));
    client.send(get('/files/2'));
    await client.until((all) => (all.match(/403 Forbidden/g) ?? []).length === 2);
    client.destroy();
    await earlyProxy.close();
    early.close();
  });
});

describe('the meaning of a response is preserved', () => {
  test('U08 interim responses are not mistaken for the final response', async () => {
    upstream.respondWith((socket) =>
      socket.write(
        'HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok',
      ),
    );
    const { status, body } = await send('/files/1');
    expect([status, body]).toEqual([200, 'ok']);
  });

  test('U15 HEAD keeps the length and has no body', async () => {
    upstream.respondWith((socket) => socket.write('HTTP/1.1 200 OK\r\nContent-Length: 42\r\n\r\n'));
    const { status, head, body } = await send('/files/1', 'HEAD');
    expect([status, body]).toEqual([200, '']);
    expect(head).toMatch(/content-length: 42/i);
  });

  test('U15 a 204 and a 304 have no body, and the connection stays open', async () => {
    const client = await connectRaw(proxy.port);
    try {
      upstream.respondWith((socket) => socket.write('HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n'));
      client.send(get('/files/1'));
      const first = await client.until((text) => isCompleteResponse(text));
      expect(first).not.toMatch(/content-length|transfer-encoding/i);
      upstream.respondWith((socket) =>
        socket.write('HTTP/1.1 304 Not Modified\r\nETag: "x"\r\nContent-Length: 9\r\n\r\n'),
      );
      client.send(get('/files/1'));
      const second = await client.until((text) => isCompleteResponse(text.slice(first.length)));
      expect(second.slice(first.length)).toMatch(/304 Not Modified[\s\S]*etag: "x"/i);
      upstream.reset();
      client.send(get('/files/3'));
      await client.until((text) => text.endsWith('GET /files/3'));
    } finally {
      client.destroy();
    }
  });

  test('U16 a redirect is forwarded, never followed', async () => {
    upstream.respondWith((socket) =>
      socket.write(`HTTP/1.1 302 Found\r\nLocation: ${upstream.url}/admin\r\nContent-Length: 0\r\n\r\n`),
    );
    const { status, head } = await send('/files/1');
    expect(status).toBe(302);
    expect(head).toContain(`Location: http://127.0.0.1:${proxy.port}/admin\r\n`);
    expect(upstream.requests).toHaveLength(1);
  });

  test('a response delimited by the connection close arrives complete', async () => {
    upstream.respondWith((socket) => socket.end('HTTP/1.1 200 OK\r\n\r\nall of it'));
    const { head, body } = await send('/files/1');
    expect(head).toMatch(/transfer-encoding: chunked/i);
    expect(body).toBe('9\r\nall of it\r\n0\r\n\r\n');
  });
});

describe('when one side disconnects', () => {
  test('the upstream request is aborted when its client disconnects', async () => {
    upstream.respondWith((socket) => begin(socket, 'Content-Length: 1000000'));
    const client = await connectRaw(proxy.port);
    client.send(get('/files/1'));
    await client.until((text) => text.includes('200 OK'));
    client.destroy();
    await until('no upstream connection is open', () => upstream.openConnections() === 0);
    await until('the reason is recorded', () => proxy.notes.at(-1)?.reason === 'client_disconnected');
  });

  test('a client that disconnects in the middle of its body leaves no complete request upstream', async () => {
    const client = await connectRaw(proxy.port);
    client.send(
      'POST /files/1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer A\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n',
    );
    await until('the upstream has the first chunk', () => upstream.bytes().includes('hello'));
    client.destroy();
    await until('no upstream connection is open', () => upstream.openConnections() === 0);
    expect(upstream.requests).toEqual([]);
  });

  test('a slow reader slows the upstream down instead of filling memory', async () => {
    const total = 64 * 1_048_576;
    let written = 0;
    upstream.respondWith((socket) => {
      begin(socket, `Content-Length: ${total}`);
      const part = Buffer.alloc(1_048_576);
      const pump = (): void => {
        while (written < total) {
          written += part.length;
          if (!socket.write(part)) {
            socket.once('drain', pump);
            return;
          }
        }
      };
      pump();
    });
    const client = await connectRaw(proxy.port);
    client.socket.pause();
    client.send(get('/files/1'));
    await until('the response is being read', () => written > 0);
    await waitUntilStable(() => written, 1_000);
    expect(written).toBeLessThan(total / 2);
    client.destroy();
    await until('no upstream connection is open', () => upstream.openConnections() === 0);
  });
});

describe('a transfer longer than every timeout is not aborted while it makes progress', () => {
  const STEP_MS = 0.8 * TIMEOUT_MS;

  test('events arrive one by one', async () => {
    const { port } = await startWithStoppedTimers();
    const sender = Promise.withResolvers<Socket>();
    upstream.respondWith((socket) => {
      begin(socket, 'Content-Type: text/event-stream');
      sender.resolve(socket);
    });
    const client = await connectRaw(port);
    client.send(get('/files/events'));
    const socket = await sender.promise;
    for (let count = 0; count < 12; count += 1) {
      socket.write(`data: ${count}\n\n`);
      await until('the event arrives', () => client.text().includes(`data: ${count}\n`));
      vi.advanceTimersByTime(STEP_MS);
    }
    socket.end();
    await until('the response is complete', () => isCompleteResponse(client.text()));
    client.destroy();
  });

  test.each(['text/event-stream', 'Text/Event-Stream; charset=utf-8'])(
    'a silent event stream (%s) stays open for timeouts.events, other responses for timeouts.idle',
    async (contentType) => {
      const { port } = await startWithStoppedTimers({ events: 30 });
      const senders: Socket[] = [];
      upstream.respondWith((socket) => {
        begin(socket, `Content-Type: ${senders.length === 0 ? contentType : 'text/plain'}`);
        senders.push(socket);
      });
      const events = await connectRaw(port);
      events.send(get('/files/events'));
      await until('the stream has begun', () => events.text().includes('200 OK'));
      const other = await connectRaw(port);
      other.send(get('/files/1'));
      await until('the response has begun', () => other.text().includes('200 OK'));
      advanceInTicks(20 * TIMEOUT_MS);
      await until('the response is aborted', () => other.closeKind() !== undefined);
      senders[0]?.write('data: late\n\n');
      await until('the event arrives', () => events.text().includes('data: late\n'));
      // The pause begins again with each event.
      advanceInTicks(20 * TIMEOUT_MS);
      senders[0]?.write('data: later\n\n');
      await until('the event arrives', () => events.text().includes('data: later\n'));
      advanceInTicks(31 * TIMEOUT_MS + TICKS_MS);
      await until('the stream is aborted', () => events.closeKind() !== undefined);
      expect(isCompleteResponse(events.text())).toBe(false);
      other.destroy();
      events.destroy();
    },
  );

  test('an event stream is not allowed a longer pause while its request is incomplete', async () => {
    const early = await listenTcp(
      createServer((socket) => {
        socket.once('data', () => begin(socket, 'Content-Type: text/event-stream'));
      }),
    );
    onTestFinished(() => early.close());
    const { port } = await startWithStoppedTimers({ events: 30 }, `http://127.0.0.1:${early.port}`);
    const client = await connectRaw(port);
    client.send('POST /files/1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer A\r\nContent-Length: 12\r\n\r\nhalf');
    await until('the stream has begun', () => client.text().includes('200 OK'));
    advanceInTicks(TIMEOUT_MS + TICKS_MS);
    await until('the stream is aborted', () => client.closeKind() !== undefined);
    client.destroy();
  });

  test('an upload in small parts arrives completely', async () => {
    const { port } = await startWithStoppedTimers();
    const client = await connectRaw(port);
    client.send('POST /files/1 HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer A\r\nContent-Length: 12\r\n\r\n');
    for (let count = 1; count <= 12; count += 1) {
      client.send('x');
      await until('the upstream has the chunk', () => upstream.bytes().endsWith(`\r\n\r\n${'x'.repeat(count)}`));
      if (count < 12) vi.advanceTimersByTime(STEP_MS);
    }
    await until('the response is complete', () => isCompleteResponse(client.text()));
    expect(client.text()).toMatch(/^HTTP\/1\.1 200/);
    expect(upstream.requests.at(-1)?.body).toBe('x'.repeat(12));
    client.destroy();
  });
});

describe('upstream addresses', () => {
  test('an upstream may be a Unix socket', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'gatehouse-'));
    onTestFinished(() => rmSync(folder, { recursive: true }));
    const path = join(folder, 'api.sock');
    const local = await startRecordingUpstream(path);
    onTestFinished(() => local.close());
    const gateway = await startProxyHarness({ upstream: `unix:${path}` });
    onTestFinished(() => gateway.close());
    expect((await send('/files/1', 'GET', gateway.port)).body).toBe('GET /files/1');
  });

  test('the upstream gets its own name in Host, and the gateway’s in X-Forwarded-Host', async () => {
    await send('/files/1');
    const [seen] = upstream.requests;
    const headers = Object.fromEntries(seen?.headers ?? []);
    expect([headers['host'], headers['x-forwarded-host']]).toEqual([`127.0.0.1:${upstream.port}`, 'gate.test']);
  });
});
