import { once } from 'node:events';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { gzipSync } from 'node:zlib';
import { exportJWK, generateKeyPair, SignJWT } from 'jose';
import { expect, onTestFinished, test } from 'vitest';
import { createOpenIdProvider, type OpenIdProvider } from '../../src/identity/openid-provider.ts';
import { createDiscovery } from '../support/openid-provider.ts';
import { listenTcp } from '../support/tcp-server.ts';

const CALLBACK = 'https://api.example.test/authsvc/device/openid/corp';
const UNAVAILABLE = { name: 'Fault', code: 'directory_unavailable' };

type Respond = (body: string, response: ServerResponse, request: IncomingMessage) => void;
type Endpoint = 'discovery' | 'token' | 'keys';

const respondPlainly: Respond = (body, response) => response.setHeader('content-type', 'application/json').end(body);

/** Starts an OpenID provider whose endpoints respond with the given functions. */
async function startHostileProvider(
  responders: Partial<Record<Endpoint, Respond>> = {},
  { timeout = 30, now }: { readonly timeout?: number; readonly now?: () => number } = {},
) {
  const { publicKey, privateKey } = await generateKeyPair('ES256');
  const requested: Endpoint[] = [];
  let nonce = '';
  const respond = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const url = new URL(request.url ?? '', `http://${request.headers.host}`);
    const issuer = url.origin;
    const [endpoint, body] = await (async (): Promise<[Endpoint, object]> => {
      if (url.pathname === '/keys')
        return ['keys', { keys: [{ ...(await exportJWK(publicKey)), kid: 'a', alg: 'ES256' }] }];
      if (url.pathname === '/token')
        return [
          'token',
          {
            access_token: 'token',
            token_type: 'Bearer',
            id_token: await new SignJWT({ nonce })
              .setProtectedHeader({ alg: 'ES256', kid: 'a' })
              .setIssuer(issuer)
              .setSubject('alice')
              .setAudience('gatehouse')
              .setIssuedAt()
              .setExpirationTime('5m')
              .sign(privateKey),
          },
        ];
      return ['discovery', createDiscovery(issuer)];
    })();
    requested.push(endpoint);
    (responders[endpoint] ?? respondPlainly)(JSON.stringify(body), response, request);
  };
  const server = createServer((request, response) => void respond(request, response));
  const { port, close } = await listenTcp(server);
  onTestFinished(close);
  const provider = createOpenIdProvider(
    'corp',
    {
      title: { en: 'Example' },
      issuer: `http://127.0.0.1:${port}`,
      clientId: 'gatehouse',
      sendSecret: 'basic',
      scope: 'openid',
      directory: 'staff',
      claim: 'sub',
      means: 'subject',
      timeout,
    },
    now,
  );
  onTestFinished(() => provider.close());
  return {
    provider,
    requested,
    responders,
    /** A complete sign-in, in which the provider redirects the browser back with a code. */
    signIn: async (): Promise<Awaited<ReturnType<OpenIdProvider['completeSignIn']>>> => {
      const { checks } = await provider.startSignIn(CALLBACK);
      ({ nonce } = checks);
      return provider.completeSignIn(new URL(`${CALLBACK}?code=1&state=${checks.state}`), checks);
    },
  };
}

const authenticated = { kind: 'authenticated', claim: { attribute: 'subject', value: 'alice' } };

/** Valid JSON of 4 MB, compressed to about 4 KB. */
const compressed: Respond = (body, response) =>
  response
    .writeHead(200, { 'content-type': 'application/json', 'content-encoding': 'gzip' })
    .end(gzipSync(body + ' '.repeat(4_194_304)));

test('a sign-in succeeds without compression, and no content coding is requested', async () => {
  const codings = new Set<string | undefined>();
  const respond: Respond = (body, response, request) => {
    codings.add(request.headers['accept-encoding']);
    respondPlainly(body, response, request);
  };
  const { signIn } = await startHostileProvider({ discovery: respond, token: respond, keys: respond });
  expect(await signIn()).toMatchObject(authenticated);
  expect([...codings]).toEqual(['identity']);
});

for (const endpoint of ['discovery', 'token', 'keys'] as const)
  test(`a compressed response is refused before it is decoded: ${endpoint}`, async () => {
    const { signIn, responders, requested } = await startHostileProvider({ [endpoint]: compressed });
    await expect(signIn()).rejects.toMatchObject({
      ...UNAVAILABLE,
      cause: { message: expect.stringContaining('content coding') },
    });
    expect(requested).toContain(endpoint);
    expect(Object.keys(responders)).toEqual([endpoint]);
  });

const nested = `${'['.repeat(100_000)}${']'.repeat(100_000)}`;
const withMember = (body: string, member: string): string => `{${member},${body.slice(1)}`;

test.each<[string, Respond]>([
  ['longer than the limit', (body, ...rest) => respondPlainly(body + ' '.repeat(300_000), ...rest)],
  [
    'longer than the limit, without a length',
    (body, response) => {
      response.writeHead(200, { 'content-type': 'application/json' });
      response.write(body);
      response.end(' '.repeat(300_000));
    },
  ],
  ['deeply nested', (body, ...rest) => respondPlainly(withMember(body, `"x":${nested}`), ...rest)],
  ...['javascript:alert(1)//', 'data:text/html,x', 'relative', ''].map((endpoint): [string, Respond] => [
    `with the authorization endpoint "${endpoint}"`,
    (body, ...rest) =>
      respondPlainly(JSON.stringify({ ...JSON.parse(body), authorization_endpoint: endpoint }), ...rest),
  ]),
  ['with a duplicate member', (body, ...rest) => respondPlainly(withMember(body, '"issuer":"x"'), ...rest)],
  [
    'with an oversized header',
    (body, response, request) => {
      response.setHeader('x-padding', 'x'.repeat(20_000));
      respondPlainly(body, response, request);
    },
  ],
  [
    'that is not UTF-8',
    (body, response) =>
      response.setHeader('content-type', 'application/json').end(Buffer.from(withMember(body, '"x":"\xff"'), 'latin1')),
  ],
])('a discovery document is refused: %s', async (_what, discovery) => {
  const { provider } = await startHostileProvider({ discovery });
  await expect(provider.startSignIn(CALLBACK)).rejects.toMatchObject(UNAVAILABLE);
});

test('a response sent byte by byte is aborted at the timeout', async () => {
  let closed: Promise<unknown> | undefined;
  const { provider } = await startHostileProvider(
    {
      discovery(body, response) {
        response.writeHead(200, { 'content-type': 'application/json' });
        const timer = setInterval(() => response.write(' '), 20);
        closed = once(response, 'close').finally(() => clearInterval(timer));
        response.write(body.slice(0, 10));
      },
    },
    { timeout: 1 },
  );
  await expect(provider.startSignIn(CALLBACK)).rejects.toMatchObject(UNAVAILABLE);
  await closed;
});

test('a redirect is not followed', async () => {
  let requests = 0;
  const elsewhere = await listenTcp(createServer((_request, response) => void ((requests += 1), response.end())));
  onTestFinished(elsewhere.close);
  const { provider } = await startHostileProvider({
    discovery: (_body, response) => response.writeHead(302, { location: `http://127.0.0.1:${elsewhere.port}/` }).end(),
  });
  await expect(provider.startSignIn(CALLBACK)).rejects.toMatchObject(UNAVAILABLE);
  expect(requests).toBe(0);
});

test('a failed discovery is retried with increasing delays, and recovers without a restart', async () => {
  let clock = 0;
  const respondUnavailable: Respond = (_body, response) => response.writeHead(503).end();
  const { provider, requested, responders } = await startHostileProvider(
    { discovery: respondUnavailable },
    { now: () => clock },
  );
  const expectFailure = async (): Promise<number> => {
    const error: unknown = await provider.startSignIn(CALLBACK).catch((reason: unknown) => reason);
    expect(error).toMatchObject(UNAVAILABLE);
    return (error as { retryAfter: number }).retryAfter;
  };
  await expectFailure();
  for (let more = 0; more < 20; more += 1) expect(await expectFailure()).toBeLessThanOrEqual(2);
  expect(requested).toHaveLength(1);
  clock += 2_000;
  await expectFailure();
  clock += 1_900;
  await expectFailure();
  expect(requested).toHaveLength(2);
  for (let more = 0; more < 20; more += 1) {
    clock += 60_000;
    await expectFailure();
  }
  // The delay never exceeds a minute.
  expect(requested).toHaveLength(22);
  expect(await expectFailure()).toBeLessThanOrEqual(60);
  responders.discovery = respondPlainly;
  clock += 60_000;
  await provider.startSignIn(CALLBACK);
  expect(requested).toHaveLength(23);

  // Known metadata stays in use for an hour while it cannot be refreshed.
  responders.discovery = respondUnavailable;
  clock += 600_001;
  await provider.startSignIn(CALLBACK);
  await provider.startSignIn(CALLBACK);
  expect(requested).toHaveLength(24);
  clock += 3_600_000;
  await expectFailure();
});
