import type { IncomingMessage, ServerResponse } from 'node:http';
import { request as httpsRequest } from 'node:https';
import { connect as connectTls, type TLSSocket } from 'node:tls';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { randomBelow } from '../fuzz/mutations.ts';
import { eventLoopTurns } from '../support/event-loop-turns.ts';
import { anonymousMemory } from '../support/memory.ts';
import { createServeFolder, type ServeFolder, type ServeProcess, startServe, until } from '../support/serve-process.ts';

/** Large, slow and aborted bodies through a gatehouse process: rows X03, X04 and X12. */
const MIB = 1_048_576;
/** For all waits; far longer than needed, even on a busy machine. */
const DEADLINE_SECONDS = 60;

export interface Repetitions {
  /** Size of the large body: at least twice the allowed memory growth. */
  readonly bytes: number;
  readonly aborted: number;
}

let folder: ServeFolder;
let server: ServeProcess;
let activeRequests = 0;
let startedRequests = 0;
let receivedBytes = 0;
/** Bytes of downloads written to the sockets. */
let writtenBytes = 0;
const upstreamSockets = new Set<object>();

/** An upstream with large responses that can read slowly. */
function api(request: IncomingMessage, response: ServerResponse): void {
  activeRequests += 1;
  startedRequests += 1;
  const { socket } = request;
  if (!upstreamSockets.has(socket)) {
    upstreamSockets.add(socket);
    socket.once('close', () => upstreamSockets.delete(socket));
  }
  response.once('close', () => {
    activeRequests -= 1;
  });
  const { pathname, searchParams } = new URL(request.url ?? '', 'http://api');
  if (pathname === '/open/down') {
    request.resume();
    writeBody(response, Number(searchParams.get('bytes')));
    return;
  }
  // Pauses after every 32 parts.
  const pauseMs = Number(searchParams.get('breath') ?? 0);
  let parts = 0;
  request.on('data', (part: Buffer) => {
    receivedBytes += part.length;
    parts += 1;
    if (pauseMs === 0 || parts % 32 !== 0) return;
    request.pause();
    setTimeout(() => request.resume(), pauseMs);
  });
  request.on('end', () => response.end('ok'));
}

const PART = Buffer.alloc(64 * 1_024, 'x');

function writeBody(response: ServerResponse, total: number): void {
  let left = total;
  response.writeHead(200, { 'content-length': total });
  const more = (): void => {
    while (left > 0 && !response.destroyed) {
      const part = left < PART.length ? PART.subarray(0, left) : PART;
      left -= part.length;
      writtenBytes += part.length;
      if (!response.write(part)) {
        response.once('drain', more);
        return;
      }
    }
    response.end();
  };
  more();
}

const address = () => ({
  host: '127.0.0.1',
  servername: 'localhost',
  port: server.port,
  ca: folder.ca.pem,
});
const options = (path: string, method = 'GET') => ({
  ...address(),
  agent: false as const,
  path,
  method,
});

/** Measures the peak memory of the gateway process until `stop`. */
function watchMemory(): { stop(): number } {
  let peak = anonymousMemory(server.pid);
  const timer = setInterval(() => {
    peak = Math.max(peak, anonymousMemory(server.pid));
  }, 20);
  return {
    stop() {
      clearInterval(timer);
      return peak;
    },
  };
}

const download = (bytes: number, onPart?: (response: IncomingMessage) => void): Promise<number> =>
  new Promise((resolve, reject) => {
    let got = 0;
    const sent = httpsRequest(options(`/open/down?bytes=${bytes}`), (response) => {
      response.on('data', (part: Buffer) => {
        got += part.length;
        onPart?.(response);
      });
      response.on('end', () => resolve(got)).on('error', reject);
    });
    sent.on('error', reject).end();
  });

const upload = (bytes: number, path: string): Promise<number> =>
  new Promise((resolve, reject) => {
    let left = bytes;
    const sent = httpsRequest(options(path, 'POST'), (response) => {
      response.resume().on('end', () => resolve(response.statusCode ?? 0));
    });
    sent.on('error', reject);
    const more = (): void => {
      while (left > 0) {
        left -= PART.length;
        if (!sent.write(PART)) {
          sent.once('drain', more);
          return;
        }
      }
      sent.end();
    };
    more();
  });

export function testUpstreamStreams({ bytes, aborted }: Repetitions): void {
  beforeAll(async () => {
    folder = await createServeFolder((settings) => {
      const url = settings.upstreams?.['default']?.url ?? '';
      return {
        ...settings,
        upstreams: {
          default: { url },
          hasty: { url, timeouts: { idle: '1s' } },
        },
        routes: [
          { path: '/hasty/**', public: true, upstream: 'hasty', stripPrefix: '/hasty' },
          { path: '/open/**', public: true },
          ...(settings.routes ?? []),
        ],
        limits: { ...settings.limits, body: '1GiB' },
        log: { level: 'info', access: { enabled: false } },
      };
    }, api);
    server = await startServe(folder);
  });
  afterAll(() => folder?.remove());

  describe('X04 bodies of any size', () => {
    test(`${bytes / MIB} MiB to a slow reader: memory stays flat`, { timeout: 120_000 }, async () => {
      await download(32 * MIB);
      const before = anonymousMemory(server.pid);
      const memory = watchMemory();
      let parts = 0;
      const got = await download(bytes, (response) => {
        parts += 1;
        if (parts % 256 !== 0) return;
        response.pause();
        setTimeout(() => response.resume(), 20);
      });
      expect(got).toBe(bytes);
      expect(memory.stop() - before).toBeLessThan(64 * MIB);
    });

    test(`${bytes / MIB} MiB to an upstream that reads slowly: memory stays flat`, {
      timeout: 120_000,
    }, async () => {
      await upload(32 * MIB, '/open/up');
      const before = anonymousMemory(server.pid);
      const memory = watchMemory();
      receivedBytes = 0;
      expect(await upload(bytes, '/open/up?breath=5')).toBe(200);
      expect(receivedBytes).toBe(bytes);
      expect(memory.stop() - before).toBeLessThan(64 * MIB);
    });
  });

  describe('X03 clients that do not read', () => {
    function openSilentClients(count: number, path: string): TLSSocket[] {
      return Array.from({ length: count }, () => {
        const socket = connectTls(address());
        onTestFinished(() => void socket.destroy());
        socket.on('error', () => {});
        socket.pause();
        socket.write(`GET ${path} HTTP/1.1\r\nHost: localhost\r\n\r\n`);
        return socket;
      });
    }

    test('slow the upstream down instead of filling memory', { timeout: 60_000 }, async () => {
      await download(32 * MIB);
      const before = anonymousMemory(server.pid);
      writtenBytes = 0;
      const clients = openSilentClients(20, `/open/down?bytes=${1_024 * MIB}`);
      await until('all responses have started', () => activeRequests === 20, DEADLINE_SECONDS);
      let last = -1;
      let still = 0;
      await until(
        'the upstream has stopped writing',
        () => {
          still = writtenBytes === last ? still + 1 : 0;
          last = writtenBytes;
          return still > 50;
        },
        DEADLINE_SECONDS,
      );
      expect(anonymousMemory(server.pid) - before).toBeLessThan(20 * 5 * MIB);
      for (const socket of clients) socket.destroy();
      await until('the upstream requests have ended', () => activeRequests === 0, DEADLINE_SECONDS);
    });

    test('are disconnected after the idle timeout, and their upstream connections are closed', async () => {
      startedRequests = 0;
      openSilentClients(5, `/hasty/open/down?bytes=${1_024 * MIB}`);
      await until('all requests have reached the upstream', () => startedRequests === 5, DEADLINE_SECONDS);
      await until('all clients are disconnected', () => activeRequests === 0, DEADLINE_SECONDS);
    });
  });

  test('X04 a request whose Content-Length exceeds the limit never reaches the upstream', async () => {
    startedRequests = 0;
    const status = await new Promise((resolve, reject) => {
      const sent = httpsRequest(options('/open/up', 'POST'), (response) => {
        resolve(response.statusCode);
        sent.destroy();
      });
      sent.setHeader('content-length', 1_024 * MIB + 1);
      sent.on('error', reject).flushHeaders();
    });
    expect([status, startedRequests]).toEqual([413, 0]);
  });

  test(`X12 ${aborted} requests aborted at random points leave no connection open`, {
    timeout: 180_000,
  }, async () => {
    await until('no request is in progress', () => activeRequests === 0, DEADLINE_SECONDS);
    startedRequests = 0;
    const randomInt = randomBelow(42);
    const upload = `POST /open/up HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\n${'x'.repeat(200_000)}`;
    const fetch = 'GET /open/down?bytes=1000000 HTTP/1.1\r\nHost: localhost\r\n\r\n';
    let readers = 0;
    const abort = (): Promise<void> =>
      new Promise((resolve) => {
        const socket = connectTls(address());
        const [afterBytes, polls] = [randomInt(300_000), randomInt(20)];
        const kind = (['upload', 'fetch', 'read'] as const)[randomInt(3)];
        let got = 0;
        socket.on('error', () => {}).on('close', () => resolve());
        socket.on('data', (part: Buffer) => {
          got += part.length;
          if (got < afterBytes) return;
          if (kind === 'read') readers += 1;
          socket.destroy();
        });
        socket.once('secureConnect', () => {
          if (kind === 'read') return void socket.write(fetch);
          // Disconnects whether or not a response has started.
          const message = kind === 'upload' ? upload.slice(0, afterBytes) : fetch.slice(0, 1 + (afterBytes % 100));
          socket.write(message, () => void eventLoopTurns(polls).then(() => socket.destroy()));
        });
      });
    for (let round = 0; round < aborted / 40; round += 1) await Promise.all(Array.from({ length: 40 }, abort));
    // Clients that read part of the response must have reached the upstream.
    expect(readers).toBeGreaterThan(aborted / 5);
    expect(startedRequests).toBeGreaterThanOrEqual(readers);
    await until('no request is left upstream', () => activeRequests === 0, DEADLINE_SECONDS);
    // Idle connections are kept for four seconds.
    await until('no connection is left upstream', () => upstreamSockets.size === 0, DEADLINE_SECONDS);
    expect(await download(MIB)).toBe(MIB);
  });
}
