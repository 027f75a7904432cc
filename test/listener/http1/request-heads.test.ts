import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { type ProxyHarness, rule, startProxyHarness } from '../../support/proxy-harness.ts';
import { connectRaw, isCompleteResponse, parseRawResponse, type RawResponse } from '../../support/raw-client.ts';
import { headerValues, type RecordingUpstream, startRecordingUpstream } from '../../support/recording-upstream.ts';

/** Which heads of HTTP/1.1 requests are accepted, and what the upstream receives; which are refused, and how. */
let upstream: RecordingUpstream;
let proxy: ProxyHarness;

beforeAll(async () => {
  upstream = await startRecordingUpstream();
  proxy = await startProxyHarness({
    upstream: upstream.url,
    publicUrl: 'http://gate.test',
    rules: [rule('/public/**', 'public'), rule('/files/**', 'files:read'), rule('/admin/**', 'admin:manage')],
  });
});
afterAll(async () => {
  await proxy.close();
  await upstream.close();
});
beforeEach(() => upstream.reset());

const AUTH = 'Host: gate.test\r\nAuthorization: Bearer A\r\n';
const get = (target = '/files/1', fields = ''): string => `GET ${target} HTTP/1.1\r\n${AUTH}${fields}\r\n`;
const getWith = (field: string): string => get('/files/1', `${field}\r\n`);
const post = (body: string, fields = ''): string =>
  `POST /files/1 HTTP/1.1\r\n${AUTH}Content-Length: ${body.length}\r\n${fields}\r\n${body}`;
const chunked = (body: string, fields = ''): string =>
  `POST /files/1 HTTP/1.1\r\n${AUTH}Transfer-Encoding: chunked\r\n${fields}\r\n${body}`;

const CONTINUE = 'HTTP/1.1 100 Continue\r\n\r\n';
const NEXT = get('/public/next');

interface Exchange {
  readonly response: RawResponse;
  readonly isClosed: boolean;
}

/** Sends a message and reads its response; and whether the connection can be used for another one. */
async function exchange(message: string): Promise<Exchange> {
  const client = await connectRaw(proxy.port);
  client.send(message);
  const isToHead = message.startsWith('HEAD');
  const getText = (all: string): string => (all.startsWith(CONTINUE) ? all.slice(CONTINUE.length) : all);
  const text = getText(await client.until((all) => isCompleteResponse(getText(all), isToHead)));
  client.send(NEXT);
  const all = await client.until((given) => given.endsWith('GET /public/next'));
  client.destroy();
  return { response: parseRawResponse(text), isClosed: !all.endsWith('GET /public/next') };
}

const getForwarded = () => upstream.requests.filter(({ target }) => target !== '/public/next');

interface Accepted {
  /** Method, target and body. */
  readonly forwarded: string;
  readonly fields?: Readonly<Record<string, readonly string[]>>;
  /** The connection is closed after the response. */
  readonly isClosed?: boolean;
  readonly trailers?: readonly string[];
}

const GET = { forwarded: 'GET /files/1 ' };
const LONG_BODY = 'x'.repeat(70_000);

const ACCEPTED: Readonly<Record<string, readonly [string, Accepted]>> = {
  GET: [get(), GET],
  'escapes and a query': [get('/files/a%20b/%7Ec?x=1&y=%2F'), { forwarded: 'GET /files/a%20b/~c?x=1&y=%2F ' }],
  HEAD: [get().replace('GET', 'HEAD'), { forwarded: 'HEAD /files/1 ' }],
  DELETE: [get().replace('GET', 'DELETE'), { forwarded: 'DELETE /files/1 ' }],
  OPTIONS: [get().replace('GET', 'OPTIONS'), { forwarded: 'OPTIONS /files/1 ' }],
  'a method with a dash': [get().replace('GET', 'M-SEARCH'), { forwarded: 'M-SEARCH /files/1 ' }],
  'no token on a public route': ['GET /public/a HTTP/1.1\r\nHost: gate.test\r\n\r\n', { forwarded: 'GET /public/a ' }],
  'absolute-form': [
    get('http://gate.test/files/1').replace('Host: gate.test', 'Host: other.test'),
    { ...GET, fields: { 'x-forwarded-host': ['gate.test'] } },
  ],
  'an empty line before the request': [`\r\n${get()}`, GET],
  'several empty lines before the request': [`\r\n\r\n\r\n${get()}`, GET],

  'a field without a space after the colon': [getWith('X-A:b'), { ...GET, fields: { 'x-a': ['b'] } }],
  'spaces and tabs around a value': [getWith('X-A: \t b\t '), { ...GET, fields: { 'x-a': ['b'] } }],
  'a tab in a value': [getWith('X-A: b\tc'), { ...GET, fields: { 'x-a': ['b\tc'] } }],
  'an empty value': [getWith('X-A:'), { ...GET, fields: { 'x-a': [''] } }],
  'obs-text': [getWith('X-A: \xe4\xff'), { ...GET, fields: { 'x-a': ['\xe4\xff'] } }],
  'all characters of a name': [
    getWith("!#$%&'*+-.^_`|~09azAZ: b"),
    { ...GET, fields: { "!#$%&'*+-.^_`|~09azaz": ['b'] } },
  ],
  'repeated fields': [get('/files/1', 'X-A: b\r\nx-a: c\r\n'), { ...GET, fields: { 'x-a': ['b', 'c'] } }],
  'a hundred fields': [
    get('/files/1', 'X-A: b\r\n'.repeat(98)),
    { ...GET, fields: { 'x-a': Array.from({ length: 98 }, () => 'b') } },
  ],
  'a cookie, a trace and reserved names': [
    get(
      '/files/1',
      `Cookie: a=b; __Host-gatehouse=c\r\ntraceparent: 00-${'a'.repeat(32)}-${'b'.repeat(16)}-01\r\nX-Forwarded-User: evil\r\nX_Forwarded_User: evil\r\nX-Real-IP: 6.6.6.6\r\n`,
    ),
    { ...GET, fields: { cookie: ['a=b'], x_forwarded_user: [], 'x-real-ip': [] } },
  ],

  'Connection: keep-alive': [getWith('Connection: keep-alive'), GET],
  'Connection: close': [getWith('Connection: Close'), { ...GET, isClosed: true }],
  'two Connection fields': [
    get('/files/1', 'Connection: x-a\r\nConnection: close\r\nX-A: b\r\n'),
    { ...GET, isClosed: true, fields: { 'x-a': [] } },
  ],
  'a Connection field with a name': [
    get('/files/1', 'Connection: X-A\r\nX-A: b\r\n'),
    { ...GET, fields: { 'x-a': [] } },
  ],
  'hop-by-hop fields': [
    get('/files/1', 'TE: trailers\r\nKeep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\nUpgrade: h2c\r\n'),
    { ...GET, fields: { te: [], 'keep-alive': [], 'proxy-connection': [], upgrade: [] } },
  ],
  'HTTP/1.0': [get().replace('1.1\r', '1.0\r'), { ...GET, isClosed: true }],
  'HTTP/1.0 without a Host': ['GET /public/a HTTP/1.0\r\n\r\n', { forwarded: 'GET /public/a ', isClosed: true }],
  'HTTP/1.0 with Connection: keep-alive': [getWith('Connection: keep-alive').replace('1.1\r', '1.0\r'), GET],

  POST: [post('hello'), { forwarded: 'POST /files/1 hello', fields: { 'content-length': ['5'] } }],
  PUT: [post('hello').replace('POST', 'PUT'), { forwarded: 'PUT /files/1 hello' }],
  PATCH: [post('hello').replace('POST', 'PATCH'), { forwarded: 'PATCH /files/1 hello' }],
  'a length of zero': [post(''), { forwarded: 'POST /files/1 ', fields: { 'content-length': ['0'] } }],
  'a length with leading zeros': [
    post('ab').replace(': 2', ': 002'),
    { forwarded: 'POST /files/1 ab', fields: { 'content-length': ['2'] } },
  ],
  'no length where there may be a body': [get().replace('GET', 'POST'), { forwarded: 'POST /files/1 ' }],
  'a length where no body is expected': [
    `${getWith('Content-Length: 2')}ab`,
    { forwarded: 'GET /files/1 ab', fields: { 'content-length': ['2'] } },
  ],
  'chunks where no body is expected': [
    chunked('2\r\nab\r\n0\r\n\r\n').replace('POST', 'GET'),
    { forwarded: 'GET /files/1 ab' },
  ],
  'a chunked body': [chunked('5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n'), { forwarded: 'POST /files/1 hello world' }],
  'an empty chunked body': [chunked('0\r\n\r\n'), { forwarded: 'POST /files/1 ' }],
  'a long chunked body': [chunked(`11170\r\n${LONG_BODY}\r\n0\r\n\r\n`), { forwarded: `POST /files/1 ${LONG_BODY}` }],
  'a transfer coding in other letters': [
    chunked('2\r\nab\r\n0\r\n\r\n').replace('chunked', 'Chunked'),
    { forwarded: 'POST /files/1 ab' },
  ],
  'a chunk extension': [chunked('2;a=b\r\nab\r\n0;c="d"\r\n\r\n'), { forwarded: 'POST /files/1 ab' }],
  'a chunk size with zeros and letters': [
    chunked('00A\r\n0123456789\r\n000\r\n\r\n'),
    { forwarded: 'POST /files/1 0123456789' },
  ],
  trailers: [
    chunked('2\r\nab\r\n0\r\nX-T: 1\r\nX-Forwarded-User: evil\r\n\r\n', 'Trailer: X-T\r\n'),
    { forwarded: 'POST /files/1 ab', fields: { 'x-t': [], trailer: [] }, trailers: ['X-T: 1'] },
  ],
  'Expect: 100-continue': [
    post('ab', 'Expect: 100-Continue\r\n'),
    { forwarded: 'POST /files/1 ab', fields: { expect: [] } },
  ],
};

describe('accepted', () => {
  test.each(Object.entries(ACCEPTED))('%s', async (_, [message, expected]) => {
    const { response, isClosed } = await exchange(message);
    expect(response.status).toBe(200);
    const [request, ...others] = getForwarded();
    expect([`${request?.method} ${request?.target} ${request?.body}`, others]).toEqual([expected.forwarded, []]);
    expect(request?.trailers).toEqual(expected.trailers ?? []);
    for (const [name, values] of Object.entries(expected.fields ?? {}))
      expect([name, headerValues(request, name)]).toEqual([name, values]);
    expect(isClosed).toBe(expected.isClosed ?? false);
  });
});

/** Each with its status. Where the next request begins is not certain: the connection is closed. */
const MALFORMED: Readonly<Record<string, readonly [string, number]>> = {
  'a fragment': [get('/files/1#a'), 400],
  'two spaces in the request line': [get().replace('GET ', 'GET  '), 400],
  'a tab in the request line': [get().replace('GET ', 'GET\t'), 400],
  'a space in the target': [get('/files/1 2'), 400],
  'a control character in the target': [get('/files/\x01'), 400],
  'a byte above 127 in the target': [get('/files/\xe4'), 400],
  'no target': [get('').replace('  ', ' '), 400],
  'a space before the request line': [` ${get()}`, 400],
  'an empty line without CR before the request': [`\n${get()}`, 400],
  'a method in lower case': [get().replace('GET', 'get'), 400],
  'an unknown method': [get().replace('GET', 'FOO'), 400],
  'a method with a separator': [get().replace('GET', 'G@T'), 400],
  'HTTP/1.2': [get().replace('1.1\r', '1.2\r'), 400],
  'HTTP/0.9': ['GET /files/1\r\n\r\n', 400],
  'HTTP/2': [get().replace('1.1\r', '2.0\r'), 505],
  'the preface of HTTP/2': ['PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', 400],
  'a folded line': [getWith('X-A: b\r\n c'), 400],
  'a space before the colon': [getWith('X-A : b'), 400],
  'a field without a name': [getWith(': b'), 400],
  'a line without a colon': [getWith('X-A'), 400],
  'a name with a byte above 127': [getWith('X-\xe4: b'), 400],
  'a space before the first field': [get().replace('Host', ' Host'), 400],
  'a control character in a value': [getWith('X-A: b\x01'), 400],
  'NUL in a value': [getWith('X-A: b\0c'), 400],
  'DEL in a value': [getWith('X-A: b\x7f'), 400],
  'a bare CR in a value': [getWith('X-A: b\rc'), 400],
  'a bare LF in a value': [getWith('X-A: b\nX-B: c'), 400],
  'lines that end in LF': [get().replaceAll('\r\n', '\n'), 400],
  'no fields at all': ['GET /files/1 HTTP/1.1\r\n\r\n', 400],
  'two Hosts': [getWith('Host: gate.test'), 400],
  'no Host': [get().replace('Host: gate.test\r\n', ''), 400],
  'an empty Host': [get().replace('gate.test', ''), 400],
  'a malformed Host': [get().replace('gate.test', 'a/b@c'), 400],
  'a malformed Host on HTTP/1.0': [get().replace('gate.test', 'a/b@c').replace('1.1\r', '1.0\r'), 400],
  'a long target': [get(`/files/${'a'.repeat(8_300)}`), 414],
  'more than a hundred fields': [get('/files/1', 'X-A: b\r\n'.repeat(101)), 431],
  'a head of more than 16 KiB': [getWith(`X-A: ${'b'.repeat(17_000)}`), 431],
  'a malformed chunk': [chunked('2\r\nabc\r\n0\r\n\r\n'), 400],
  'a chunk size with a sign': [chunked('+2\r\nab\r\n0\r\n\r\n'), 400],
  'a malformed trailer': [chunked('2\r\nab\r\n0\r\nX T: 1\r\n\r\n'), 400],
  'another transfer coding': [chunked('0\r\n\r\n').replace('chunked', 'gzip, chunked'), 501],
  'two transfer codings': [chunked('0\r\n\r\n', 'Transfer-Encoding: chunked\r\n'), 400],
  'both framings': [post('ab', 'Transfer-Encoding: chunked\r\n'), 400],
  'a transfer coding on HTTP/1.0': [chunked('0\r\n\r\n').replace('1.1\r', '1.0\r'), 400],
  'two lengths': [post('ab', 'Content-Length: 2\r\n'), 400],
  'a length with a sign': [post('ab').replace(': 2', ': +2'), 400],
  'a length of 16 digits': [post('ab').replace(': 2', ': 1000000000000000'), 400],
  'a length on HTTP/1.0 that is a list': [post('ab').replace(': 2', ': 2, 2').replace('1.1\r', '1.0\r'), 400],
  'a Connection field that names Content-Length': [post('ab', 'Connection: content-length\r\n'), 400],
  'another expectation': [post('ab', 'Expect: 200-ok\r\n'), 417],
  'two tokens': [getWith('Authorization: Bearer A'), 400],
  'a dot segment': [get('/files/../admin'), 400],
  'a token in the query': [get('/files/1?access_token=A'), 400],
  CONNECT: ['CONNECT gate.test:443 HTTP/1.1\r\nHost: gate.test:443\r\n\r\n', 405],
  TRACE: [get().replace('GET', 'TRACE'), 405],
};

/** Complete requests: the next one on the connection is served. */
const REFUSED: Readonly<Record<string, readonly [string, number]>> = {
  'no token': ['GET /files/1 HTTP/1.1\r\nHost: gate.test\r\n\r\n', 401],
  'no scope': [get('/admin/x'), 403],
  'no route': [get('/nowhere'), 404],
  'a body without a token': [post('ab').replace('Bearer A', 'Bearer B'), 401],
};

describe('refused', () => {
  test.each(Object.entries(MALFORMED))('%s; the connection is closed', async (_, [message, status]) => {
    const { response, isClosed } = await exchange(message);
    expect([response.status, isClosed]).toEqual([status, true]);
    expect(upstream.requests).toEqual([]);
  });

  test.each(Object.entries(REFUSED))('%s; the connection stays open', async (_, [message, status]) => {
    const { response, isClosed } = await exchange(message);
    expect([response.status, isClosed]).toEqual([status, false]);
    expect(getForwarded()).toEqual([]);
  });

  test('a name that some servers read as Content-Length is not forwarded', async () => {
    await exchange(getWith('Content_Length: 5'));
    expect(upstream.bytes()).not.toMatch(/content_length/i);
  });

  test('a body that is larger than allowed', async () => {
    const { response } = await exchange(post('x'.repeat(1_048_577)));
    expect(response.status).toBe(413);
    expect(getForwarded()).toEqual([]);
  });

  test('a body that has not arrived yet is discarded', async () => {
    const client = await connectRaw(proxy.port);
    client.send(`POST /admin/x HTTP/1.1\r\n${AUTH}Content-Length: 5\r\n\r\n`);
    expect(parseRawResponse(await client.until((all) => isCompleteResponse(all))).status).toBe(403);
    client.send(`hello${get()}`);
    const text = await client.until((all) => all.endsWith('GET /files/1'));
    expect(text.match(/HTTP\/1\.1 \d+/g)).toEqual(['HTTP/1.1 403', 'HTTP/1.1 200']);
    client.destroy();
  });
});
