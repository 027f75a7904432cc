import type { Socket } from 'node:net';
import { gzipSync } from 'node:zlib';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { type ProxyHarness, proxyHarness, rule } from '../support/proxy-harness.ts';
import { type RawAnswer, rawClient, rawRequest, wholeAnswer } from '../support/raw-client.ts';
import { type RecordingUpstream, type Reply, recordingUpstream } from '../support/recording-upstream.ts';

/**
 * An upstream that breaks, lies or is under somebody else's control: rows U and H33. `npm run test:long` asks as often as
 * the rows say.
 */
const REQUESTS = Number(process.env['ROW_COUNT'] ?? 2_000);
const EACH = Math.ceil(REQUESTS / 8);
const LONG = { timeout: 60_000 + REQUESTS * 30 };

let upstream: RecordingUpstream;
let gate: ProxyHarness;

beforeAll(async () => {
  upstream = await recordingUpstream();
  gate = await proxyHarness({
    upstream: upstream.url,
    publicUrl: 'https://api.example.test',
    rules: [
      rule('/cut/*/**', 'files:read', { stripPrefix: '/cut/*' }),
      rule('/hosted/**', 'files:read', { host: 'other.test' }),
      rule('/untouched/**', 'files:read', { upstream: 'untouched' }),
      rule('/files/**', 'files:read'),
    ],
    more: {
      untouched: {
        targets: [upstream.url],
        timeouts: { connect: 1, headers: 5, idle: 5 },
        connections: 2,
        rewriteLocation: false,
      },
    },
  });
});
afterAll(async () => {
  await gate.close();
  await upstream.close();
});
beforeEach(() => upstream.reset());

const get = (path: string, method = 'GET', host = 'gate.test'): string =>
  `${method} ${path} HTTP/1.1\r\nHost: ${host}\r\nAuthorization: Bearer A\r\n\r\n`;
const ask = (path = '/files/1', method = 'GET', host?: string): Promise<RawAnswer> =>
  rawRequest(gate.port, get(path, method, host));

describe('U01-U04 truncated answers', () => {
  const half = 'x'.repeat(500);
  const WAYS: readonly Reply[] = [
    (socket) =>
      void socket.write(`HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n${half}`, () =>
        socket.resetAndDestroy(),
      ),
    (socket) => void socket.end(`HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n${half}`),
    (socket) => void socket.end(`HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1f4\r\n${half}\r\n`),
    (socket) =>
      void socket.write(
        `HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1f4\r\n${half}\r\nzz\r\nmore\r\n`,
      ),
  ];

  test('1,000 of them are all seen as truncated, each within a second', { timeout: 60_000 }, async () => {
    upstream.reply((socket, request) => {
      const way = WAYS[Number(request.target.split('/').at(-1)) % WAYS.length];
      way?.(socket, request);
    });
    const one = async (number: number): Promise<'truncated' | 'refused' | 'whole'> => {
      const client = await rawClient(gate.port);
      client.send(get(`/files/${number}`));
      const text = await client.until((all) => wholeAnswer(all), 1_000);
      client.destroy();
      if (!wholeAnswer(text)) return 'truncated';
      // A reset may overtake the head: then there is no answer, and the client is told so.
      return text.startsWith('HTTP/1.1 502') && number % WAYS.length === 0 ? 'refused' : 'whole';
    };
    const ends = { truncated: 0, refused: 0, whole: 0 };
    for (let from = 0; from < 1_000; from += 8)
      for (const end of await Promise.all(Array.from({ length: 8 }, (_, at) => one(from + at))))
        ends[end] += 1;
    expect(ends.whole).toBe(0);
    expect(ends.truncated).toBeGreaterThanOrEqual(750);
  });
});

test('H11 a request without a single field is refused, and the next one on another connection is served', async () => {
  expect((await rawRequest(gate.port, 'GET /files/1 HTTP/1.1\r\n\r\n')).status).toBe(400);
  expect(upstream.requests).toEqual([]);
  expect((await ask('/files/next')).status).toBe(200);
});

describe('answers that are none', () => {
  test.each([
    [
      'U06 both lengths',
      'HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
    ],
    ['U06 two lengths', 'HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!'],
    ['U07 garbage', 'SSH-2.0-OpenSSH\r\n\r\n'],
    ['U07 a status of four digits', 'HTTP/1.1 1000 OK\r\nContent-Length: 0\r\n\r\n'],
    ['U07 a head of 20 KB', `HTTP/1.1 200 OK\r\nX: ${'x'.repeat(20_000)}\r\nContent-Length: 0\r\n\r\n`],
    ['U07 a folded line', 'HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 0\r\n\r\n'],
    ['U07 a name with a space', 'HTTP/1.1 200 OK\r\nX : a\r\nContent-Length: 0\r\n\r\n'],
    [
      'U09 an upgrade nobody asked for',
      'HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n',
    ],
    [
      'U08 21 steps',
      `${'HTTP/1.1 102 Processing\r\n\r\n'.repeat(21)}HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok`,
    ],
    [
      'U08 21 times 100 Continue',
      `${'HTTP/1.1 100 Continue\r\n\r\n'.repeat(21)}HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok`,
    ],
    ['U08 a 100 Continue without end', `HTTP/1.1 100 Continue\r\nX: ${'x'.repeat(20_000)}`],
    ['U08 10,000 steps', 'HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n'.repeat(10_000)],
  ])('%s: 502, and the next request has a connection of its own', async (_, bytes) => {
    upstream.reply((socket) => void socket.write(bytes));
    expect((await ask()).status).toBe(502);
    upstream.reset();
    expect((await ask('/files/next')).body).toBe('GET /files/next');
  });

  test('U08 twenty steps are put up with, and none of them reaches the client', async () => {
    const steps = 'HTTP/1.1 103 Early Hints\r\nLink: </secret>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n'.repeat(
      10,
    );
    upstream.reply((socket) => void socket.write(`${steps}HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok`));
    const { status, head, body } = await ask();
    expect([status, body]).toEqual([200, 'ok']);
    expect(head).not.toContain('secret');
  });
});

describe('U08 100 Continue that nobody asked for', () => {
  const OK = 'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok';
  const CONTINUE = 'HTTP/1.1 100 Continue\r\n\r\n';
  const inParts = async (socket: Socket, parts: readonly string[]): Promise<void> => {
    for (const part of parts) {
      socket.write(part);
      await new Promise((resolve) => setTimeout(resolve, 2));
    }
  };
  test.each([
    ['one', [CONTINUE + OK]],
    ['twenty, with fields', ['HTTP/1.1 100 Continue\r\nX-Secret: 1\r\n\r\n'.repeat(20) + OK]],
    ['among other steps', [`HTTP/1.1 102 Processing\r\n\r\n${CONTINUE}HTTP/1.1 103 Early Hints\r\n\r\n`, OK]],
    ['without a reason', ['HTTP/1.1 100\r\n\r\n', OK]],
    ['byte by byte', (CONTINUE + CONTINUE + OK).split('')],
  ])(
    'U08 %s: the answer is the answer, also to the next request on the same connection',
    async (_, parts) => {
      upstream.reply((socket) => void inParts(socket, parts));
      for (let count = 0; count < 3; count += 1) {
        const { status, head, body } = await ask();
        expect([status, body]).toEqual([200, 'ok']);
        expect(head).not.toContain('Secret');
      }
    },
  );

  test('U08 to a request with a body', async () => {
    upstream.reply((socket) => void socket.write(CONTINUE + OK));
    const { status, body } = await rawRequest(
      gate.port,
      'PUT /files/1 HTTP/1.1\r\nHost: gate.test\r\nAuthorization: Bearer A\r\nContent-Length: 5\r\n\r\nhello',
    );
    expect([status, body]).toEqual([200, 'ok']);
  });

  test('U08 inside a body it is the body', async () => {
    upstream.reply(
      (socket) => void inParts(socket, ['HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n', CONTINUE.repeat(2)]),
    );
    expect((await ask()).body).toBe(CONTINUE.repeat(2));
  });

  test('U08 on an idle connection it ends that connection, and the next answer is not taken from it', async () => {
    upstream.reply((socket) => {
      socket.write(OK);
      setTimeout(() => socket.write(`${CONTINUE}HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\npoisoned`), 20);
    });
    expect((await ask()).body).toBe('ok');
    await new Promise((resolve) => setTimeout(resolve, 60));
    expect((await ask()).body).toBe('ok');
  });
});

describe('U10 more than one answer to a request', () => {
  const poison = 'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\npoisoned';
  const WAYS: readonly ((socket: Socket, body: string) => void)[] = [
    (socket, body) =>
      void socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${body.length}\r\n\r\n${body}${poison}`),
    (socket, body) =>
      void socket.write(
        `HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n${body.length.toString(16)}\r\n${body}\r\n0\r\n\r\n${poison}`,
      ),
    (socket, body) =>
      void socket.write(
        `HTTP/1.1 304 Not Modified\r\nETag: "${body}"\r\nContent-Length: ${poison.length}\r\n\r\n${poison}`,
      ),
    (socket, body) => void socket.write(`HTTP/1.1 204 No Content\r\nETag: "${body}"\r\n\r\n${poison}`),
    (socket, body) => void socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${body.length}\r\n\r\n${body}`),
    (socket, body) =>
      void socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${body.length}\r\n\r\n${body}\r\n\r\n`),
  ];

  test(
    `U10 ${REQUESTS} requests by eight clients: each gets its own nonce and never the poison`,
    LONG,
    async () => {
      upstream.reply((socket, { target }) => {
        const nonce = target.split('/').at(-1) ?? '';
        WAYS[Number(nonce.split('-')[1]) % WAYS.length]?.(socket, nonce);
      });
      const client = async (name: number): Promise<number> => {
        let right = 0;
        for (let count = 0; count < EACH; count += 1) {
          const nonce = `${name}-${count}-${Math.random().toString(36).slice(2)}`;
          const { head, body } = await ask(`/files/${nonce}`);
          expect(head + body).not.toContain('poisoned');
          if ((head + body).includes(nonce)) right += 1;
        }
        return right;
      };
      const right = await Promise.all(Array.from({ length: 8 }, (_, name) => client(name)));
      expect(right).toEqual(Array.from({ length: 8 }, () => EACH));
    },
  );

  test(
    `H33 chunked requests and plain ones of many clients on pooled connections: ${REQUESTS} echoes, none swapped`,
    LONG,
    async () => {
      upstream.reply((socket, { body, target }) => {
        const echo = `${target}|${body}`;
        socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${echo.length}\r\n\r\n${echo}`);
      });
      const client = async (name: number): Promise<void> => {
        const connection = await rawClient(gate.port);
        for (let count = 0; count < EACH; count += 1) {
          const nonce = `${name}-${count}`;
          const before = connection.text().length;
          if (count % 2 === 0)
            connection.send(
              `POST /files/${nonce} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer A\r\nTransfer-Encoding: chunked\r\n\r\n` +
                `${nonce.length.toString(16)}\r\n${nonce}\r\n0\r\n\r\n`,
            );
          else connection.send(get(`/files/${nonce}`));
          const text = await connection.until((all) => wholeAnswer(all.slice(before)));
          expect(text.slice(before)).toContain(`\r\n\r\n/files/${nonce}|${count % 2 === 0 ? nonce : ''}`);
        }
        connection.destroy();
      };
      await Promise.all(Array.from({ length: 8 }, (_, name) => client(name)));
      expect(upstream.connections()).toBeLessThanOrEqual(16);
    },
  );
});

describe('U14 redirects', () => {
  const redirected = async (
    location: string,
    path = '/files/1',
    host?: string,
  ): Promise<string | undefined> => {
    upstream.reply(
      (socket) =>
        void socket.write(`HTTP/1.1 302 Found\r\nLocation: ${location}\r\nContent-Length: 0\r\n\r\n`),
    );
    const { status, head } = await ask(path, 'GET', host);
    expect(status).toBe(302);
    return /^location: (.*)$/im.exec(head)?.[1];
  };

  test('to the upstream itself lead to us', async () => {
    const { port, url } = upstream;
    expect(await redirected(`${url}/a?b#c`)).toBe('https://api.example.test/a?b#c');
    expect(await redirected(`HTTP://127.0.0.1:${port}/a`)).toBe('https://api.example.test/a');
    expect(await redirected(`//127.0.0.1:${port}/a`)).toBe('https://api.example.test/a');
    expect(await redirected(url)).toBe('https://api.example.test/');
    expect(await redirected(`${url}?q`)).toBe('https://api.example.test/?q');
  });

  test('get back the prefix that was taken off', async () => {
    const { url } = upstream;
    expect(await redirected(`${url}/a`, '/cut/x/1')).toBe('https://api.example.test/cut/x/a');
    expect(await redirected('/a', '/cut/x/1')).toBe('/cut/x/a');
    expect(await redirected(url, '/cut/x/1')).toBe('https://api.example.test/cut/x');
    expect(await redirected('a', '/cut/x/1')).toBe('a');
  });

  test('on a route with a host of its own stay there', async () => {
    expect(await redirected(`${upstream.url}/a`, '/hosted/1', 'other.test:8443')).toBe(
      'https://other.test:8443/a',
    );
  });

  test.each([
    '/a',
    'a?b',
    'https://elsewhere.test/a',
    'http://127.0.0.1:1/a',
    'http://127.0.0.1/a',
    'http://user@127.0.0.1/a',
    '//elsewhere.test/a',
    '/\\elsewhere.test',
  ])('elsewhere are passed on to the letter: %s', async (location) => {
    expect(await redirected(location)).toBe(location);
  });

  test('are left alone where that was set', async () => {
    expect(await redirected(`${upstream.url}/a`, '/untouched/1')).toBe(`${upstream.url}/a`);
  });

  test('U16 are never followed', async () => {
    await redirected(`${upstream.url}/files/admin`);
    expect(upstream.requests).toHaveLength(1);
  });
});

test('X11 a compressed answer, a bomb too, is passed on unread, byte for byte', async () => {
  const bomb = gzipSync(Buffer.alloc(64 * 1_048_576));
  const before = process.memoryUsage().arrayBuffers;
  upstream.reply((socket) => {
    socket.write(`HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: ${bomb.length}\r\n\r\n`);
    socket.write(bomb);
  });
  const { head, body } = await ask();
  expect(head).toMatch(/content-encoding: gzip/i);
  expect(Buffer.from(body, 'latin1').equals(bomb)).toBe(true);
  expect(process.memoryUsage().arrayBuffers - before).toBeLessThan(16 * 1_048_576);
});
