import type { IncomingMessage, ServerResponse } from 'node:http';
import { request as httpsRequest } from 'node:https';
import { connect as connectTls, type TLSSocket } from 'node:tls';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { anonymousMemory } from '../support/memory.ts';
import {
  makeServeFolder,
  type ServeFolder,
  type ServeProcess,
  startServe,
  until,
} from '../support/serve-process.ts';

/** Large, slow and broken-off bodies through the real program: rows X03, X04 and X12. */
const MIB = 1_048_576;
const BIG = 512 * MIB;

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
    pour(response, Number(searchParams.get('bytes')));
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

function pour(response: ServerResponse, total: number): void {
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

beforeAll(async () => {
  folder = await makeServeFolder((settings) => {
    const url = settings.upstreams?.['default']?.url ?? '';
    return {
      ...settings,
      upstreams: {
        default: { url },
        hasty: { url, timeouts: { idle: '2s' } },
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
afterAll(async () => {
  await server.stop();
  await folder.remove();
});

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

describe('X04 bodies of any size', () => {
  test('512 MB to a slow reader: memory stays flat', { timeout: 120_000 }, async () => {
    await download(32 * MIB);
    const before = anonymousMemory(server.pid);
    const memory = watchMemory();
    let parts = 0;
    const got = await download(BIG, (response) => {
      parts += 1;
      if (parts % 256 !== 0) return;
      response.pause();
      setTimeout(() => response.resume(), 20);
    });
    expect(got).toBe(BIG);
    expect(memory.stop() - before).toBeLessThan(64 * MIB);
  });

  test('512 MB to an upstream that reads slowly: memory stays flat', { timeout: 120_000 }, async () => {
    await upload(32 * MIB, '/open/up');
    const before = anonymousMemory(server.pid);
    const memory = watchMemory();
    taken = 0;
    expect(await upload(BIG, '/open/up?breath=5')).toBe(200);
    expect(taken).toBe(BIG);
    expect(memory.stop() - before).toBeLessThan(64 * MIB);
  });
});

describe('X03 clients that read nothing', () => {
  function silentClients(count: number, path: string): TLSSocket[] {
    return Array.from({ length: count }, () => {
      const socket = connectTls(address());
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
    await until('all are being answered', () => busy === 20);
    let last = -1;
    let still = 0;
    await until('nothing moves any more', () => {
      still = given === last ? still + 1 : 0;
      last = given;
      return still > 50;
    });
    expect(anonymousMemory(server.pid) - before).toBeLessThan(20 * 5 * MIB);
    for (const socket of clients) socket.destroy();
    await until('the upstream is told', () => busy === 0);
  });

  test('are cut off after the longest silence, and their connections upstream are free again', async () => {
    const clients = silentClients(5, `/hasty/open/down?bytes=${1_024 * MIB}`);
    await until('all are being answered', () => busy === 5);
    await until('they are cut off', () => busy === 0, 10);
    for (const socket of clients) socket.destroy();
  });
});

test('X04 a body that is too large by its own account never reaches the upstream', async () => {
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

test('X12 2,000 requests that are broken off anywhere leave no connection behind', {
  timeout: 120_000,
}, async () => {
  await until('nothing is under way', () => busy === 0);
  begun = 0;
  let seed = 42;
  const random = (below: number): number => {
    seed = (seed * 1_103_515_245 + 12_345) % 2_147_483_648;
    return seed % below;
  };
  const upload = `POST /open/up HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\n${'x'.repeat(200_000)}`;
  const fetch = 'GET /open/down?bytes=1000000 HTTP/1.1\r\nHost: localhost\r\n\r\n';
  const breakOff = (): Promise<void> =>
    new Promise((resolve) => {
      const socket = connectTls(address());
      const afterBytes = random(300_000);
      const message = random(2) === 0 ? upload : fetch;
      let got = 0;
      socket.on('error', () => {}).on('close', () => resolve());
      socket.on('data', (part: Buffer) => {
        got += part.length;
        if (got >= afterBytes) socket.destroy();
      });
      socket.once('secureConnect', () => {
        if (message === fetch)
          socket.write(afterBytes < 1_000 ? fetch.slice(0, random(fetch.length)) : fetch);
        else socket.write(upload.slice(0, afterBytes));
        // Some leave before anything came back.
        if (random(3) === 0 || message === upload || afterBytes < 1_000)
          setTimeout(() => socket.destroy(), random(20));
      });
    });
  for (let round = 0; round < 50; round += 1) await Promise.all(Array.from({ length: 40 }, breakOff));
  expect(begun).toBeGreaterThan(1_000);
  await until('no request is left upstream', () => busy === 0, 5);
  // What is left are idle connections, which are kept for four seconds.
  await until('no connection is left upstream', () => upstreamSockets.size === 0, 10);
  expect(await download(MIB)).toBe(MIB);
});
