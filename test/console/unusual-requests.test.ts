import { afterAll, beforeAll, expect, test } from 'vitest';
import { type ConsoleHarness, readGrantId, startConsole } from '../support/console-harness.ts';
import { type FormBrowser, formToken } from '../support/form-browser.ts';
import { connectRaw, rawRequest } from '../support/raw-client.ts';

/** Requests that no browser sends, but proxies, scripts and attackers do. */
let harness: ConsoleHarness;
let operator: FormBrowser;
beforeAll(async () => {
  harness = await startConsole();
  operator = await harness.signedIn();
});
afterAll(() => harness?.close());

const send = (lines: readonly string[], body = '') =>
  rawRequest(harness.gateway.adminPort, [...lines, 'Connection: close', '', body].join('\r\n'));
const host = () => `Host: 127.0.0.1:${harness.gateway.adminPort}`;
const cookie = () => `Cookie: ${operator.cookie}`;

test('absolute targets, other spellings of the path and path traversal open no page', async () => {
  const port = harness.gateway.adminPort;
  for (const target of [
    `http://127.0.0.1:${port}/console`,
    'http://evil.example/console',
    '//console',
    '/./console',
    '/x/../console',
    '/console/../metrics',
    '/console/../console/grants',
    '/console/%2e%2e/metrics',
    '/console/..%2f..%2fetc/passwd',
    '/console/console.js/../console.css',
    '/console//grants',
    '/console/grants//',
    '/CONSOLE',
    '/%63onsole',
    '/console;x',
    '/console\\grants',
    '/console/__proto__',
    '/console/constructor',
  ]) {
    const { status } = await send([`GET ${target} HTTP/1.1`, host(), cookie()]);
    expect([target, status]).toEqual([target, 404]);
  }
});

test('only IP addresses and known names are served, on every path including files', async () => {
  for (const path of ['/console', '/console/console.css', '/console/nowhere'])
    for (const [name, expected] of [
      ['evil.example', 421],
      ['localhost.evil.example', 421],
      ['127.0.0.1.nip.example:9443', 421],
      ['evil.example@127.0.0.1', 421],
      ['127.0.0.1#', 421],
      ['0x7f.0.0.1', 421],
      ['2130706433', 421],
      ['[::1', 421],
      ['[::1%25lo]', 421],
      ['', 421],
      ['[::1]:9443', undefined],
      ['LOCALHOST.:9443', undefined],
    ] as const) {
      const { status } = await send([`GET ${path} HTTP/1.1`, `Host: ${name}`]);
      if (expected === undefined) expect([path, name, status]).not.toEqual([path, name, 421]);
      else expect([path, name, [400, 421].includes(status)]).toEqual([path, name, true]);
    }
  const twice = await send(['GET /console HTTP/1.1', host(), 'Host: evil.example']);
  expect([400, 421]).toContain(twice.status);
  expect((await send(['GET /console/sign-in HTTP/1.0'])).status).toBe(403);
});

test('methods other than GET, HEAD and the form methods do nothing; TRACE does not echo the cookie', async () => {
  for (const method of ['TRACE', 'OPTIONS', 'PUT', 'DELETE', 'PATCH', 'PROPFIND', 'QUERY']) {
    const { status, body, head } = await send([`${method} /console/grants HTTP/1.1`, host(), cookie()]);
    expect([method, status]).toEqual([method, 405]);
    expect(head).toMatch(/\r\nallow: GET, HEAD\r\n/i);
    expect(body + head).not.toContain(operator.cookie.split('=')[1]);
  }
  const head = await send(['HEAD /console HTTP/1.1', host(), cookie()]);
  expect([head.status, head.body]).toEqual([200, '']);
  const connect = await connectRaw(harness.gateway.adminPort);
  connect.send(`CONNECT evil.example:443 HTTP/1.1\r\n${host()}\r\n\r\n`);
  expect(await connect.closed()).not.toMatch(/^HTTP\/1.1 200/);
});

test('HTTP/2 is not spoken, so :authority cannot differ from Host', async () => {
  const client = await connectRaw(harness.gateway.adminPort);
  client.send('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n');
  expect(await client.closed()).toMatch(/^HTTP\/1.1 400/);
  const upgrade = await send([
    'GET /console/sign-in HTTP/1.1',
    host(),
    'Upgrade: h2c',
    'HTTP2-Settings: AAMAAABkAAQAAP__',
  ]);
  expect(upgrade.status).toBe(200);
});

test('a form is read as a form only: no other content type, encoding, method override or query', async () => {
  const { access_token: token } = await harness.gateway.grant();
  const id = readGrantId(token);
  const { text } = await operator.get(`/console/revoke?by=grant&q=${id}`);
  const fields = new URLSearchParams({
    by: 'grant',
    q: id,
    form_token: formToken(text, '/console/revoke'),
  }).toString();
  const origin = `Origin: ${harness.url}`;
  const post = (path: string, headers: readonly string[], body: string) =>
    send([`POST ${path} HTTP/1.1`, host(), cookie(), origin, ...headers, `Content-Length: ${body.length}`], body);
  const FORM = 'Content-Type: application/x-www-form-urlencoded';
  const attempts = {
    'text/plain': await post('/console/revoke', ['Content-Type: text/plain'], fields),
    multipart: await post('/console/revoke', ['Content-Type: multipart/form-data; boundary=a'], fields),
    json: await post('/console/revoke', ['Content-Type: application/json'], `{"by":"grant","q":"${id}"}`),
    'no type': await post('/console/revoke', [], fields),
    'two types': await post('/console/revoke', [FORM, 'Content-Type: text/plain'], fields),
    charset: await post('/console/revoke', [`${FORM}; charset=utf-7`], fields),
    gzip: await post('/console/revoke', [FORM, 'Content-Encoding: gzip'], fields),
    query: await post(`/console/revoke?${fields}`, [FORM], ''),
    'raw bytes': await post('/console/revoke', [FORM], `${fields}&x=\u00ff`),
    'broken escape': await post('/console/revoke', [FORM], `${fields}&x=%zz`),
    'invalid UTF-8': await post('/console/revoke', [FORM], `${fields}&x=%ff`),
    'two fields': await post('/console/revoke', [FORM], `${fields}&by=client`),
    override: await send([
      `GET /console/revoke?${fields}&_method=POST HTTP/1.1`,
      host(),
      cookie(),
      origin,
      'X-HTTP-Method-Override: POST',
    ]),
    'cross-site': await post('/console/revoke', [FORM, 'Sec-Fetch-Site: cross-site'], fields),
    framed: await post(
      '/console/revoke',
      [FORM, 'Sec-Fetch-Site: same-origin', 'Sec-Fetch-Mode: navigate', 'Sec-Fetch-Dest: iframe'],
      fields,
    ),
  };
  for (const [name, { status }] of Object.entries(attempts))
    expect([name, status === 200 ? 'page' : status >= 400]).toEqual([name, name === 'override' ? 'page' : true]);
  expect((await harness.gateway.api('/files/a', token)).status).toBe(200);
  const accepted = await post('/console/revoke', [FORM], fields);
  expect([accepted.status, (await harness.gateway.api('/files/a', token)).status]).toEqual([303, 401]);
});

test('a second request after an unread form is not taken from its body', async () => {
  const client = await connectRaw(harness.gateway.adminPort);
  const smuggled = `GET /console/configuration HTTP/1.1\r\n${host()}\r\n${cookie()}\r\n\r\n`;
  client.send(
    `POST /console/nowhere HTTP/1.1\r\n${host()}\r\nContent-Type: text/plain\r\nContent-Length: ${smuggled.length + 5}\r\n\r\n${smuggled}`,
  );
  const text = await client.closed();
  expect(text.match(/HTTP\/1\.1 /g)).toHaveLength(1);
  expect(text).toMatch(/^HTTP\/1.1 404/);
});

test('an unreadable or oversized query of any page is a page or a refusal, never an internal error', async () => {
  const values = ['', '%', '%ff', '%00', '\u00e9', 'a'.repeat(9_000), '[', '::', '%F0%9F%92%A9', '*'];
  for (const page of ['grants', 'grant', 'revoke', 'refusals', 'refusal', 'explain', 'audit', 'sign-in'])
    for (const value of values) {
      const names = ['q', 'by', 'id', 'after', 'ended', 'method', 'path', 'scope', 'client', 'host', 'next'];
      const target = `/console/${page}?${names.map((name) => `${name}=${name === 'by' ? 'serial' : value.slice(0, 1_000)}`).join('&')}`;
      const { status } = await send([`GET ${target} HTTP/1.1`, host(), cookie()]);
      expect([page, value.slice(0, 8), status < 500]).toEqual([page, value.slice(0, 8), true]);
    }
  expect(harness.gateway.log.filter(({ event }) => event === 'console_failed')).toEqual([]);
});
