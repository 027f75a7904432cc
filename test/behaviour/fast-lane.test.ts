import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import type { HandOver } from '../../src/proxy/fast/grammar.ts';
import { NOW, type ProxyHarness, proxyHarness, rule } from '../support/proxy-harness.ts';
import { rawClient, rawRequest, readAnswer, wholeAnswer } from '../support/raw-client.ts';
import { type RecordingUpstream, recordingUpstream } from '../support/recording-upstream.ts';
import { until } from '../support/serve-process.ts';

/** What the fast lane takes, what it gives to the full lane, and that nothing is lost or read twice in between. */
let upstream: RecordingUpstream;
let gate: ProxyHarness;
/** The same without a fast lane. */
let full: ProxyHarness;
const RULES = [
  rule('/public/**', 'public'),
  rule('/files/**', 'files:read'),
  rule('/admin/**', 'admin:manage'),
  rule('/pages/**', 'files:read', {
    cors: { origins: 'any', headers: [], exposeHeaders: [], credentials: false, maxAge: 1 },
  }),
  rule('/tried/**', 'admin:manage', { reportOnly: true }),
  rule('/secure/**', 'files:read', { upstream: 'secure' }),
];

beforeAll(async () => {
  upstream = await recordingUpstream();
  const secure = {
    targets: ['https://127.0.0.1:1'],
    timeouts: { connect: 1, headers: 1, idle: 1 },
    connections: 1,
  };
  const options = { upstream: upstream.url, rules: RULES, more: { secure } };
  gate = await proxyHarness({ ...options, firstLane: 'fast' });
  full = await proxyHarness({ ...options, firstLane: 'full' });
});
afterAll(async () => {
  await gate.close();
  await full.close();
  await upstream.close();
});
beforeEach(() => upstream.reset());

const AUTH = 'Host: gate.test\r\nAuthorization: Bearer A\r\n';
const get = (path = '/files/1', more = ''): string => `GET ${path} HTTP/1.1\r\n${AUTH}${more}\r\n`;
const post = (body: string, more = ''): string =>
  `POST /files/1 HTTP/1.1\r\n${AUTH}Content-Length: ${body.length}\r\n${more}\r\n${body}`;
const counts = () => {
  if (gate.lane === undefined) throw new Error('this gate has a fast lane');
  return gate.lane.counts;
};
const handedOver = (): Record<HandOver, number> => ({ ...counts().handedOver });
/** Both ends are in this process: bytes that were written have been read after two turns of the event loop. */
const delivered = async (): Promise<void> => {
  await new Promise(setImmediate);
  await new Promise(setImmediate);
};

describe('what the fast lane takes', () => {
  test.each([
    ['GET', get()],
    ['a path with escapes and a query', get('/files/a%20b/%7Ec?x=1&y=%2F')],
    ['HEAD', get().replace('GET', 'HEAD')],
    ['DELETE', get().replace('GET', 'DELETE')],
    ['POST', post('hello')],
    ['POST without a body', post('')],
    ['PUT', post('hello').replace('POST', 'PUT')],
    ['PATCH', post('hello').replace('POST', 'PATCH')],
    ['Connection: keep-alive', get('/files/1', 'Connection: keep-alive\r\n')],
    ['Connection: close', get('/files/1', 'Connection: Close\r\n')],
    ['no token on a public route', 'GET /public/a HTTP/1.1\r\nHost: gate.test\r\n\r\n'],
    [
      'a cookie, a trace, and names that are ours',
      get(
        '/files/1',
        `Cookie: a=b; __Host-gatehouse=c\r\ntraceparent: 00-${'a'.repeat(32)}-${'b'.repeat(16)}-01\r\nX-Forwarded-User: evil\r\nX_Forwarded_User: evil\r\nX-Real-IP: 6.6.6.6\r\n`,
      ),
    ],
  ])('%s: the upstream gets the same request as by the full lane', async (_, message) => {
    const before = counts().fast;
    const answer = await rawRequest(gate.port, message);
    expect([answer.status, counts().fast - before]).toEqual([200, 1]);
    const other = await rawRequest(full.port, message);
    expect(other.status).toBe(200);
    const [mine, theirs] = upstream.requests.map(({ connection: _connection, headers, ...rest }) => ({
      ...rest,
      headers: headers
        .map(([name, value]) =>
          /^(?:x-request-id|traceparent)$/.test(name) && !value.startsWith('00-aaaa')
            ? name
            : `${name}: ${value.replace(/:\d+$/, '')}`,
        )
        .toSorted(),
    }));
    expect(mine).toEqual(theirs);
  });

  test('a refusal for want of a token or a scope, and the connection stays', async () => {
    const before = counts().fast;
    const client = await rawClient(gate.port);
    client.send('GET /files/1 HTTP/1.1\r\nHost: a\r\n\r\n');
    client.send(get('/admin/x') + get('/nowhere') + get('/files/2'));
    const text = await client.until((all) => all.includes('GET /files/2'));
    expect(text.match(/HTTP\/1\.1 \d+/g)).toEqual([
      'HTTP/1.1 401',
      'HTTP/1.1 403',
      'HTTP/1.1 404',
      'HTTP/1.1 200',
    ]);
    expect(counts().fast - before).toBe(4);
    client.destroy();
    const [mine, theirs] = await Promise.all(
      [gate, full].map(async ({ port }) => readAnswer(await rawText(port, get('/admin/x')))),
    );
    const plain = (text = ''): string[] =>
      text
        .split('\r\n')
        .filter((line) => !/^(?:x-request-id|content-length|date|keep-alive):/i.test(line))
        .map((line) => line.replace(/^[^:]*/, (name) => name.toLowerCase()))
        .toSorted();
    expect(plain(mine?.head)).toEqual(plain(theirs?.head));
  });
});

const rawText = async (port: number, message: string): Promise<string> => {
  const client = await rawClient(port);
  client.send(message);
  const text = await client.until((all) => wholeAnswer(all));
  client.destroy();
  return text;
};

/** Each is read by the full lane as if nobody had looked at it before. */
const HANDED_OVER: readonly (readonly [HandOver, string, string])[] = [
  ['head', 'HTTP/1.0', get().replace('1.1\r', '1.0\r')],
  ['head', 'a method that is less usual', get().replace('GET', 'OPTIONS')],
  ['head', 'absolute-form', get('http://gate.test/files/1')],
  ['head', 'a fragment', get('/files/1#a')],
  ['head', 'two spaces in the request line', get('/files/1').replace('GET ', 'GET  ')],
  ['head', 'no space behind the colon', get('/files/1', 'X-A:b\r\n')],
  ['head', 'a tab in a value', get('/files/1', 'X-A: b\tc\r\n')],
  ['head', 'a space behind a value', get('/files/1', 'X-A: b \r\n')],
  ['head', 'an empty value', get('/files/1', 'X-A: \r\n')],
  ['head', 'obs-text', get('/files/1', 'X-A: \xe4\r\n')],
  ['head', 'a folded line', get('/files/1', 'X-A: b\r\n c\r\n')],
  ['head', 'a space before the colon', get('/files/1', 'X-A : b\r\n')],
  ['head', 'a control character', get('/files/1', 'X-A: b\x01\r\n')],
  ['head', 'two Hosts', get('/files/1', 'Host: gate.test\r\n')],
  ['head', 'no Host', get().replace('Host: gate.test\r\n', '')],
  ['head', 'a strange Host', get().replace('gate.test', 'a/b@c')],
  ['head', 'two tokens', get('/files/1', 'Authorization: Bearer A\r\n')],
  ['head', 'lines that end in LF', get().replaceAll('\r\n', '\n')],
  ['head', 'no fields at all', 'GET /files/1 HTTP/1.1\r\n\r\n'],
  ['head', 'an empty line before the request', `\r\n${get()}`],
  ['size', 'a long target', get(`/files/${'a'.repeat(8_300)}`)],
  ['size', 'more than a hundred fields', get('/files/1', 'X-A: b\r\n'.repeat(101))],
  ['size', 'a body that is larger than allowed', post('x'.repeat(1_048_577))],
  [
    'framing',
    'a chunked body',
    get('/files/1', 'Transfer-Encoding: chunked\r\n').replace('GET', 'POST') + '0\r\n\r\n',
  ],
  ['framing', 'both framings', post('ab', 'Transfer-Encoding: chunked\r\n')],
  ['framing', 'TE', get('/files/1', 'TE: trailers\r\n')],
  ['framing', 'Expect', post('ab', 'Expect: 100-continue\r\n')],
  ['framing', 'Upgrade', get('/files/1', 'Upgrade: h2c\r\n')],
  ['framing', 'Keep-Alive', get('/files/1', 'Keep-Alive: timeout=5\r\n')],
  ['framing', 'Proxy-Connection', get('/files/1', 'Proxy-Connection: keep-alive\r\n')],
  ['framing', 'a name that some read as Content-Length', get('/files/1', 'Content_Length: 5\r\n')],
  ['framing', 'a length of a body that nobody expects', get('/files/1', 'Content-Length: 2\r\n') + 'ab'],
  ['framing', 'no length where there may be a body', get().replace('GET', 'POST')],
  ['framing', 'two lengths', post('ab', 'Content-Length: 2\r\n')],
  ['framing', 'a length with a sign', post('ab').replace(': 2', ': +2')],
  ['connection', 'Connection with a name', get('/files/1', 'Connection: X-A\r\n')],
  ['connection', 'two Connection fields', get('/files/1', 'Connection: close\r\nConnection: close\r\n')],
  ['refused', 'a dot segment', get('/files/../admin')],
  ['refused', 'a token in the query', get('/files/1?access_token=A')],
  ['rule', 'a rule about other origins', get('/pages/1')],
  ['rule', 'a rule that only reports', get('/tried/1')],
  ['upstream', 'an upstream over TLS', get('/secure/1')],
];

describe('what it hands over', () => {
  test.each(HANDED_OVER)('%s: %s', async (reason, _, message) => {
    const before = handedOver();
    const toHead = message.startsWith('HEAD');
    const ask = async (port: number): Promise<string> => {
      const client = await rawClient(port);
      client.send(message);
      const text = await client.until((all) =>
        wholeAnswer(all.replace(/^HTTP\/1\.1 100 Continue\r\n\r\n/, ''), toHead),
      );
      client.destroy();
      return text.replace(/^HTTP\/1\.1 100 Continue\r\n\r\n/, '');
    };
    const mine = readAnswer(await ask(gate.port));
    expect(handedOver()).toEqual({ ...before, [reason]: before[reason] + 1 });
    const theirs = readAnswer(await ask(full.port));
    expect(mine.status).toBe(theirs.status);
    expect(upstream.requests.length % 2).toBe(0);
  });

  test('refused: a body that is still to come', async () => {
    const before = counts().handedOver.refused;
    const client = await rawClient(gate.port);
    client.send(`POST /admin/x HTTP/1.1\r\n${AUTH}Content-Length: 5\r\n\r\n`);
    await until('it was handed over', () => counts().handedOver.refused === before + 1);
    client.send('hello');
    expect(readAnswer(await client.until((all) => wholeAnswer(all))).status).toBe(403);
    client.send(get());
    expect((await client.until((all) => all.includes('GET /files/1'))).match(/HTTP\/1\.1 \d+/g)).toEqual([
      'HTTP/1.1 403',
      'HTTP/1.1 200',
    ]);
    client.destroy();
  });

  test('a connection that was handed over stays where it is, and everything on it is answered in its order', async () => {
    const before = counts().fast;
    const client = await rawClient(gate.port);
    client.send(get('/files/1') + get('/files/2', 'TE: trailers\r\n') + get('/files/3') + get('/files/4'));
    const text = await client.until((all) => all.includes('GET /files/4'));
    expect(text.match(/GET \/files\/\d/g)).toEqual([1, 2, 3, 4].map((at) => `GET /files/${at}`));
    expect(upstream.requests.map(({ target }) => target).toSorted()).toEqual(
      [1, 2, 3, 4].map((at) => `/files/${at}`),
    );
    expect(counts().fast - before).toBe(1);
    client.destroy();
  });
});

describe('however the bytes come', () => {
  const MESSAGES = `${get('/files/1')}${post('hello')}${get('/files/2', 'TE: trailers\r\n')}${get('/files/3')}`;
  const ANSWERS = ['GET /files/1', 'POST /files/1', 'GET /files/2', 'GET /files/3'];

  test('cut in two at every place, each is answered once and in its order', async () => {
    const split = async (at: number): Promise<void> => {
      const client = await rawClient(gate.port);
      client.socket.setNoDelay(true);
      client.send(MESSAGES.slice(0, at));
      await delivered();
      client.send(MESSAGES.slice(at));
      const text = await client.until((all) => all.includes('GET /files/3'));
      expect([at, text.match(/(?:GET|POST) \/files\/\d/g)]).toEqual([at, ANSWERS]);
      client.destroy();
    };
    for (let at = 1; at < MESSAGES.length; at += 24)
      await Promise.all(
        Array.from({ length: Math.min(24, MESSAGES.length - at) }, (_, index) => split(at + index)),
      );
    const bodies = upstream.requests.filter(({ method }) => method === 'POST').map(({ body }) => body);
    expect(new Set(bodies)).toEqual(new Set(['hello']));
    expect(upstream.requests).toHaveLength((MESSAGES.length - 1) * 4);
  });

  test('byte by byte', async () => {
    const client = await rawClient(gate.port);
    client.socket.setNoDelay(true);
    for (const byte of MESSAGES) {
      client.send(byte);
      await new Promise(setImmediate);
    }
    const text = await client.until((all) => all.includes('GET /files/3'));
    expect(text.match(/(?:GET|POST) \/files\/\d/g)).toEqual(ANSWERS);
    client.destroy();
  });

  test('a head whose rest does not come goes to the full lane, which waits for it as long as it may', async () => {
    const before = counts().handedOver.head;
    const client = await rawClient(gate.port);
    client.send(get().slice(0, 40));
    await until('it was handed over', () => counts().handedOver.head === before + 1);
    client.send(get().slice(40));
    expect(readAnswer(await client.until((all) => wholeAnswer(all))).status).toBe(200);
    client.destroy();
  });

  test('broken off at every place: nothing is left behind, and no request that is not whole is taken for one', async () => {
    const message = post('hello');
    const fast = counts().fast;
    for (let at = 0; at < message.length; at += 1) {
      const client = await rawClient(gate.port);
      client.send(message.slice(0, at));
      await delivered();
      client.destroy();
    }
    await until(
      'all have ended',
      () => upstream.streams().every(({ unfinished }) => unfinished === '') || upstream.open() <= 2,
    );
    expect(upstream.requests).toEqual([]);
    expect((await rawRequest(gate.port, get())).status).toBe(200);
    // Those whose body broke off had begun.
    expect(counts().fast - fast).toBeLessThanOrEqual(6);
  });
});

test('a token that is seen for the first time is waited for, and what comes meanwhile keeps its order', async () => {
  const asked = Promise.withResolvers<void>();
  const known = Promise.withResolvers<void>();
  const table = await proxyHarness({
    upstream: upstream.url,
    firstLane: 'fast',
    readAccess: async (token) => {
      asked.resolve();
      await known.promise;
      return token === 'A'
        ? {
            grantId: 'g',
            generation: 1,
            clientId: 'report-runner',
            identity: 'i',
            scope: new Map([['files', new Set(['read'])]]),
            issuedAt: NOW - 1,
            expires: NOW + 60,
            keyId: 'k',
          }
        : undefined;
    },
  });
  try {
    const client = await rawClient(table.port);
    client.send(get('/files/1'));
    await asked.promise;
    client.send(get('/files/2') + get('/files/3').replace('Bearer A', 'Bearer B'));
    await delivered();
    known.resolve();
    const text = await client.until((all) => all.includes('invalid_token'));
    expect(text.match(/GET \/files\/\d|HTTP\/1\.1 401/g)).toEqual([
      'GET /files/1',
      'GET /files/2',
      'HTTP/1.1 401',
    ]);
    client.destroy();
  } finally {
    await table.close();
  }
});
