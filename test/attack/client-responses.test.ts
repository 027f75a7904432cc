import { chmodSync, mkdirSync, writeFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { createServer as createTlsServer } from 'node:https';
import { gzipSync } from 'node:zlib';
import { beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { type Client, createClient } from '../../src/client/client.ts';
import { memoryCredentialStore } from '../../src/client/credential-store.ts';
import { fileCredentialStore } from '../../src/client/file-credential-store.ts';
import type { StoredGrant } from '../../src/client/grant.ts';
import { runCommand } from '../support/command-in-process.ts';
import { createCa, type IssuedCertificate, issue, issueServer } from '../support/pki.ts';
import { listenTcp } from '../support/tcp-server.ts';
import { tempFolder } from '../support/temp-folder.ts';

let alice: IssuedCertificate;
let server: IssuedCertificate;
beforeAll(async () => {
  const ca = await createCa();
  [alice, server] = [await issue(ca, { commonName: 'alice' }), await issueServer(ca)];
});

const ESCAPE = '\u001b[2J';
const GRANT = {
  access_token: 'eyJ.abc-_~+/==',
  refresh_token: 'r.1',
  token_type: 'Bearer',
  expires_in: 600,
  expires: 1_800_000_600,
  refresh_until: 1_800_086_400,
  scope: 'files:read',
  identity: 'local:{1}',
};
const CODES = {
  device_code: 'd.1',
  user_code: 'BCDF-GHJK',
  verification_uri: 'https://api.example.test/device',
  verification_uri_complete: 'https://api.example.test/device?user_code=BCDF-GHJK',
  expires_in: 600,
  interval: 1,
};

type Respond = (response: ServerResponse, request: IncomingMessage) => void;
const json =
  (body: unknown, status = 200): Respond =>
  (response) =>
    void response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));

/** Starts a token service on a loopback address that handles every request with `respond`. */
async function startService(respond: Respond): Promise<string> {
  const { port, close } = await listenTcp(createServer((request, response) => respond(response, request)));
  onTestFinished(close);
  return `http://127.0.0.1:${port}`;
}

function createTestClient(url: string, more: Partial<Parameters<typeof createClient>[0]> = {}): Client {
  const certificate = { cert: alice.pem, key: alice.keyPem };
  const client = createClient({ url, clientId: 'report-runner', scope: 'files:read', certificate, ...more });
  onTestFinished(() => client.close());
  return client;
}

describe('a token response', () => {
  test('with valid fields becomes a grant', async () => {
    const grant = await createTestClient(await startService(json(GRANT))).login();
    expect(grant).toMatchObject({
      accessToken: GRANT.access_token,
      refreshToken: 'r.1',
      identity: 'local:{1}',
    });
  });

  const tokens = ['', 'a\nb', `a${ESCAPE}`, 'a b', 'a"b', 'a$(id)', 'a\r\nx: y', 'ä', 'a'.repeat(9_000), 7, null];
  test.each([
    ...tokens.flatMap((token) => [{ access_token: token }, { refresh_token: token }]),
    { token_type: 'mac' },
    { token_type: undefined },
    ...['600', -1, 1.5, 1e300, null].map((expires_in) => ({ expires_in })),
    ...['1', -1, 1e300].flatMap((at) => [{ expires: at }, { refresh_until: at }]),
    ...[`files:read${ESCAPE}`, 'files:read\nx', '', 7, 'a'.repeat(5_000)].map((scope) => ({ scope })),
    ...[`alice${ESCAPE}`, 'a\nb', '\u202ealice', '', 7].map((identity) => ({ identity })),
  ])('is refused with %j', async (wrong) => {
    const store = memoryCredentialStore();
    const client = createTestClient(await startService(json({ ...GRANT, ...wrong })), { store });
    await expect(client.login()).rejects.toMatchObject({
      name: 'ServiceUnavailableError',
      message: 'the response is not that of a gatehouse token service',
    });
    expect(await store.read()).toBeUndefined();
  });

  test.each<[string, Respond]>([
    [
      'compressed',
      (response) =>
        void response
          .writeHead(200, { 'content-encoding': 'gzip' })
          .end(gzipSync(JSON.stringify(GRANT) + ' '.repeat(1_048_576))),
    ],
    ['too long', (response) => void response.end(JSON.stringify(GRANT) + ' '.repeat(70_000))],
    [
      'with a duplicate member',
      (response) => void response.end(`{"access_token":"x",${JSON.stringify(GRANT).slice(1)}`),
    ],
    ['nested 60,000 levels deep', (response) => void response.end('['.repeat(60_000))],
  ])('is refused when it is %s', async (_what, respond) => {
    await expect(createTestClient(await startService(respond)).login()).rejects.toMatchObject({
      name: 'ServiceUnavailableError',
    });
  });
});

describe('a device authorization response', () => {
  const getPrompt = async (wrong: object): Promise<unknown> => {
    let shown: unknown;
    const client = createTestClient(await startService(json({ ...CODES, ...wrong })), {
      certificate: undefined,
    });
    const stop = new AbortController();
    await client
      .login({
        signal: stop.signal,
        onDevice(prompt) {
          shown = prompt;
          stop.abort();
        },
      })
      .catch((error: Error) => {
        if (error.name !== 'AbortError') throw error;
      });
    return shown;
  };

  test('with valid fields is shown', async () => {
    expect(await getPrompt({})).toEqual({
      userCode: CODES.user_code,
      verificationUri: CODES.verification_uri,
      verificationUriComplete: CODES.verification_uri_complete,
      expiresIn: 600,
    });
  });

  test.each([
    ...[`BCDF${ESCAPE}`, 'BCDF\nGHJK', '', 'B'.repeat(65), 7].map((user_code) => ({ user_code })),
    ...['d\n1', '', 'd'.repeat(2_000), null].map((device_code) => ({ device_code })),
    ...[
      'javascript:alert(1)',
      'file:///etc/passwd',
      'https://user:password@api.example.test/',
      'https:api.example.test',
      'https:///api.example.test',
      `https://api.example.test/${ESCAPE}`,
      'https://api.example.test/\u202e',
      'https://api.example.test/a b',
    ].flatMap((uri) => [{ verification_uri: uri }, { verification_uri_complete: uri }]),
    ...['600', -1, 0, 1e300].map((expires_in) => ({ expires_in })),
  ])('is refused with %j', async (wrong) => {
    await expect(getPrompt(wrong)).rejects.toMatchObject({ name: 'ServiceUnavailableError' });
  });
});

test('a token file with malformed tokens is refused', async () => {
  const folder = tempFolder('client-keep');
  onTestFinished(() => folder.remove());
  const grant: StoredGrant = {
    service: 'https://api.example.test/authsvc/',
    clientId: 'report-runner',
    scope: 'files:read',
    accessToken: 'a',
    refreshToken: 'b',
    obtained: 0,
    expires: 1,
    until: 2,
  };
  for (const wrong of [{ accessToken: `a${ESCAPE}` }, { accessToken: 'a\nb' }, { refreshToken: '' }]) {
    const file = folder.write('token.json', JSON.stringify({ version: 1, grant: { ...grant, ...wrong } }));
    chmodSync(file, 0o600);
    await expect(fileCredentialStore(file).read()).rejects.toThrow(/not a token file/);
  }
});

describe('commands', () => {
  const createHome = (url: string) => {
    const folder = tempFolder('client-home');
    onTestFinished(() => folder.remove());
    mkdirSync(folder.file('home'));
    const [cert, key] = [folder.write('alice.pem', alice.pem), folder.write('alice.key', alice.keyPem)];
    const profile = { url, clientId: 'report-runner', scope: 'files:read', cert, key };
    writeFileSync(folder.file('home/default.json'), JSON.stringify(profile));
    return { folder, env: { GATEHOUSE_HOME: folder.file('home') } };
  };

  test('`token` does not print a malformed token', async () => {
    const { env } = createHome(await startService(json({ ...GRANT, access_token: 'a\nrm -rf x' })));
    expect(await runCommand(['token'], { env })).toMatchObject({ code: 69, stdout: '' });
  });

  test('text from a server is printed with escapes, in text and JSON output', async () => {
    const hostile = `x${ESCAPE}\u009b31m\u202e\u2028y`;
    const url = await startService((response, request) => {
      if (request.url?.includes('Verify') !== true) return json(GRANT)(response, request);
      json({ identity: hostile, application: hostile, scope: ['deep', { er: hostile }] })(response, request);
    });
    const { env } = createHome(url);
    const text = await runCommand(['whoami'], { env });
    expect(text.stdout).toContain('x\\u{1b}[2J\\u{9b}31m\\u{202e}\\u{2028}y');
    expect(text.stdout).not.toMatch(/[^\P{C}\n]|[\p{Zl}\p{Zp}]/u);
    const inJson = await runCommand(['whoami', '--output', 'json'], { env });
    expect(inJson.stdout).not.toMatch(/[^\P{C}\n]|[\p{Zl}\p{Zp}]/u);
    expect(JSON.parse(inJson.stdout)).toMatchObject({ identity: hostile });
  });

  test('`login` prints the names with escapes, and succeeds without them', async () => {
    const hostile = `x${ESCAPE}\u202e\u2028y`;
    const startWith = async (introspect: Respond) =>
      createHome(
        await startService((response, request) =>
          (request.url?.includes('introspect') === true ? introspect : json(GRANT))(response, request),
        ),
      );
    const { env } = await startWith(json({ username: hostile, email: hostile }));
    const { code, stdout } = await runCommand(['login'], { env });
    expect(code).toBe(0);
    expect(stdout).toContain('Signed in as x\\u{1b}[2J\\u{202e}\\u{2028}y for files:read, until ');
    expect(stdout).toMatch(/^[^\p{C}\p{Zl}\p{Zp}]+\n$/u);
    for (const introspect of [
      json({ error: 'invalid_client' }, 401),
      json({ username: '', email: 7 }),
      (response: ServerResponse) => void response.destroy(),
    ]) {
      const home = await startWith(introspect);
      expect((await runCommand(['login'], home)).stdout).toContain('Signed in as local:{1} for files:read');
    }
  });

  test('an error from a server is printed as one line of printable text', async () => {
    const { env } = createHome(
      await startService(json({ error: `denied${ESCAPE}`, error_description: `no${ESCAPE}\u2028no` }, 400)),
    );
    const { code, stderr } = await runCommand(['token'], { env });
    expect(code).toBe(77);
    expect(stderr).toContain('no\\u{1b}[2J\\u{2028}no');
    expect(stderr).toMatch(/^[^\p{C}\p{Zl}\p{Zp}]+\n$/u);
  });

  test('`call` prints control characters in a body as escapes', async () => {
    const url = await startService((response) => void response.end(`a\tb\r\n${ESCAPE}c\rd\n`));
    expect(await runCommand(['call', url])).toMatchObject({
      code: 0,
      stdout: 'a\tb\r\n\\u{1b}[2Jc\\u{d}d\n',
    });
  });

  test.each([
    ['grants', ['grants', 'list', '--token-file', '-', '--url']],
    ['call with a token', ['call', '-H', 'Authorization: Bearer x']],
    ['call with a cookie', ['call', '-H', 'cookie: a=b']],
    ['call with a refresh token', ['call', '-d', '{"client_id":"x","refresh_token":"y"}']],
    ['call with a device code', ['call', '-d', 'client_id=x&device_code=y']],
    ['call with a token in an encoded field', ['call', '-d', 'refresh%5Ftoken=y']],
    ['call with an API key', ['call', '-H', 'X-Api-Key: y']],
    ['call with a token in another header', ['call', '-H', 'X-Auth-Token: y']],
  ])('%s: no secret goes over plain HTTP to another machine', async (_what, args) => {
    for (const url of ['http://192.0.2.1:9443', 'http://admin.example.test', 'http://[2001:db8::1]:9443']) {
      const { code, stderr } = await runCommand([...args, url], { input: 'the admin token' });
      expect(code, stderr).toBe(64);
      expect(stderr).toContain('is not an address of this machine');
      expect(stderr).not.toContain('the admin token');
    }
  });

  test('`call` sends no token in a query over plain HTTP to another machine', async () => {
    for (const query of ['access_token=hunter2', 'a=b&refresh%5ftoken=hunter2', 'PASSWORD=hunter2']) {
      const { code, stderr } = await runCommand(['call', `http://192.0.2.1:9443/files?${query}`]);
      expect(code, stderr).toBe(64);
      expect(stderr).toContain('is not an address of this machine');
      expect(stderr).not.toContain('hunter2');
    }
  });

  test.each([
    ['grants', ['grants', 'list', '--token-file', '-', '--url']],
    ['health', ['health', '--url']],
    ['call', ['call']],
    ['login', ['login', '--client', 'x', '--scope', 'y', '--url']],
  ])('%s: a URL with user information is refused, and not printed', async (_what, args) => {
    const { code, stderr } = await runCommand([...args, 'https://user:hunter2@127.0.0.1:9'], {
      input: 'token',
      env: { GATEHOUSE_HOME: '/nowhere' },
    });
    expect(code).toBe(64);
    expect(stderr).toContain('must not contain a user name or password');
    expect(stderr).not.toContain('hunter2');
  });

  test('`grants` refuses a deeply nested response', async () => {
    const url = await startService((response) => void response.end(`{"x":${'['.repeat(50_000)}${']'.repeat(50_000)}}`));
    const args = ['grants', 'show', 'a'.repeat(22), '--token-file', '-', '--url', url];
    for (const more of [[], ['--output', 'json']])
      expect(await runCommand([...args, ...more], { input: 'token' })).toMatchObject({
        code: 69,
        stdout: '',
      });
  });

  test('`grants` follows no redirect with the admin token', async () => {
    let requests = 0;
    const elsewhere = await startService((response) => {
      requests += 1;
      response.end('{}');
    });
    const url = await startService((response) => void response.writeHead(307, { location: elsewhere }).end());
    const result = await runCommand(['grants', 'list', '--token-file', '-', '--url', url], {
      input: 'token',
    });
    expect(result.code).toBe(69);
    expect(requests).toBe(0);
  });
});

test('no environment variable disables the verification of server certificates', async () => {
  const requestedPaths: string[] = [];
  const tls = createTlsServer({ cert: server.pem, key: server.keyPem }, (request, response) => {
    requestedPaths.push(request.url ?? '');
    json(GRANT)(response, request);
  });
  const { port, close } = await listenTcp(tls);
  onTestFinished(close);
  const before = process.env['NODE_TLS_REJECT_UNAUTHORIZED'];
  process.env['NODE_TLS_REJECT_UNAUTHORIZED'] = '0';
  onTestFinished(() => {
    if (before === undefined) delete process.env['NODE_TLS_REJECT_UNAUTHORIZED'];
    else process.env['NODE_TLS_REJECT_UNAUTHORIZED'] = before;
  });
  const url = `https://localhost:${port}`;
  await expect(createTestClient(url).login()).rejects.toThrow(/is not trusted/);
  for (const args of [
    ['grants', 'list', '--token-file', '-', '--url', url],
    ['call', url],
  ]) {
    const { code, stderr } = await runCommand(args, { input: 'token' });
    expect(code).toBe(69);
    expect(stderr).toContain('is not trusted');
  }
  expect(requestedPaths).toEqual([]);
});
