import type { IncomingMessage, ServerResponse } from 'node:http';
import { request as httpsRequest } from 'node:https';
import { connect as connectTls, type TLSSocket } from 'node:tls';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { randomBelow } from '../fuzz/mutations.ts';
import { eventLoopTurns } from '../support/event-loop-turns.ts';
import { anonymousMemory } from '../support/memory.ts';
import {
  createServeFolder,
  type ServeFolder,
  type ServeProcess,
  startServe,
  until,
} from '../support/serve-process.ts';

/** Large, slow and aborted bodies through the real program: rows X03, X04 and X12. */
const MIB = 1_048_576;
/** Of the waits: far longer than anything takes, on a busy machine too. */
const DEADLINE_SECONDS = 60;

export interface Repetitions {
  /** Of the large body: more than twice what memory may grow. */
  readonly bytes: number;
  readonly aborted: number;
}

let folder: ServeFolder;
let server: ServeProcess;
let busy = 0;
let begun = 0;
let taken = 0;
/** Bytes written to clients that ask for an endless answer. */
let given = 0;
const upstreamSockets = new Set<object>();

/** An API with large answers and a slow hand. */
function api(request: IncomingMessage, response: ServerResponse): void {
  busy += 1;
  begun += 1;
  const { socket } = request;
  if (!upstreamSockets.has(socket)) {
    upstreamSockets.add(socket);
    socket.once('close', () => upstreamSockets.delete(socket));
  }
  response.once('close', () => {
    busy -= 1;
  });
  const { pathname, searchParams } = new URL(request.url ?? '', 'http://api');
  if (pathname === '/open/down') {
    request.resume();
    writeEndlessly(response, Number(searchParams.get('bytes')));
    return;
  }
  // Takes some parts, and a breath.
  const breath = Number(searchParams.get('breath') ?? 0);
  let parts = 0;
  request.on('data', (part: Buffer) => {
    taken += part.length;
    parts += 1;
    if (breath === 0 || parts % 32 !== 0) return;
    request.pause();
    setTimeout(() => request.resume(), breath);
  });
  request.on('end', () => response.end('ok'));
}

const PART = Buffer.alloc(64 * 1_024, 'x');

function writeEndlessly(response: ServerResponse, total: number): void {
  let left = total;
  response.writeHead(200, { 'content-length': total });
  const more = (): void => {
    while (left > 0 && !response.destroyed) {
      const part = left < PART.length ? PART.subarray(0, left) : PART;
      left -= part.length;
      given += part.length;
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

/** The most memory the gateway has held since. */
function watchMemory(): { stop(): number } {
  let most = anonymousMemory(server.pid);
  const timer = setInterval(() => {
    most = Math.max(most, anonymousMemory(server.pid));
  }, 20);
  return {
    stop() {
      clearInterval(timer);
      return most;
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
      taken = 0;
      expect(await upload(bytes, '/open/up?breath=5')).toBe(200);
      expect(taken).toBe(bytes);
      expect(memory.stop() - before).toBeLessThan(64 * MIB);
    });
  });

  describe('X03 clients that do not read', () => {
    function silentClients(count: number, path: string): TLSSocket[] {
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
      given = 0;
      const clients = silentClients(20, `/open/down?bytes=${1_024 * MIB}`);
      await until('all have a response under way', () => busy === 20, DEADLINE_SECONDS);
      let last = -1;
      let still = 0;
      await until(
        'the upstream writes no more',
        () => {
          still = given === last ? still + 1 : 0;
          last = given;
          return still > 50;
        },
        DEADLINE_SECONDS,
      );
      expect(anonymousMemory(server.pid) - before).toBeLessThan(20 * 5 * MIB);
      for (const socket of clients) socket.destroy();
      await until('the upstream requests have ended', () => busy === 0, DEADLINE_SECONDS);
    });

    test('are disconnected after the idle timeout, and their upstream connections end', async () => {
      begun = 0;
      silentClients(5, `/hasty/open/down?bytes=${1_024 * MIB}`);
      await until('all have reached the upstream', () => begun === 5, DEADLINE_SECONDS);
      await until('all were disconnected', () => busy === 0, DEADLINE_SECONDS);
    });
  });

  test('X04 a request whose Content-Length exceeds the limit never reaches the upstream', async () => {
    begun = 0;
    const status = await new Promise((resolve, reject) => {
      const sent = httpsRequest(options('/open/up', 'POST'), (response) => {
        resolve(response.statusCode);
        sent.destroy();
      });
      sent.setHeader('content-length', 1_024 * MIB + 1);
      sent.on('error', reject).flushHeaders();
    });
    expect([status, begun]).toEqual([413, 0]);
  });

  test(`X12 ${aborted} requests aborted anywhere leave no connection behind`, {
    timeout: 180_000,
  }, async () => {
    await until('nothing is under way', () => busy === 0, DEADLINE_SECONDS);
    begun = 0;
    const below = randomBelow(42);
    const upload = `POST /open/up HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\n${'x'.repeat(200_000)}`;
    const fetch = 'GET /open/down?bytes=1000000 HTTP/1.1\r\nHost: localhost\r\n\r\n';
    let readers = 0;
    const abort = (): Promise<void> =>
      new Promise((resolve) => {
        const socket = connectTls(address());
        const [afterBytes, polls] = [below(300_000), below(20)];
        const kind = (['upload', 'fetch', 'read'] as const)[below(3)];
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
          // Disconnects whether a response has begun or not.
          const message =
            kind === 'upload' ? upload.slice(0, afterBytes) : fetch.slice(0, 1 + (afterBytes % 100));
          socket.write(message, () => void eventLoopTurns(polls).then(() => socket.destroy()));
        });
      });
    for (let round = 0; round < aborted / 40; round += 1)
      await Promise.all(Array.from({ length: 40 }, abort));
    // Those that read part of the response certainly reached the upstream.
    expect(readers).toBeGreaterThan(aborted / 5);
    expect(begun).toBeGreaterThanOrEqual(readers);
    await until('no request is left upstream', () => busy === 0, DEADLINE_SECONDS);
    // What is left are idle connections, which are kept for four seconds.
    await until('no connection is left upstream', () => upstreamSockets.size === 0, DEADLINE_SECONDS);
    expect(await download(MIB)).toBe(MIB);
  });
}
