import { afterAll, beforeAll, beforeEach, expect, test, vi } from 'vitest';
import { createDpopKey, type ProofInput, signProof } from '../support/dpop-client.ts';
import { forwardedCertificateHeaders } from '../support/forwarded-certificate.ts';
import type { FrontProxy } from '../support/front-proxy.ts';
import { freePort } from '../support/front-proxy.ts';
import { createOAuthClient } from '../support/oauth-client.ts';
import { type RawResponse, rawRequest } from '../support/raw-client.ts';
import { withBoundApp, withForwardedCertificates, withSettings } from '../support/reconfigure.ts';
import { type RecordedRequest, type RecordingUpstream, startRecordingUpstream } from '../support/recording-upstream.ts';
import { ALICE, startGateway, type TestGateway } from '../support/test-gateway.ts';
import { until } from '../support/until.ts';
import type { Addresses } from './proxies.ts';

export interface ForwardAuthSetup {
  readonly start: (addresses: Addresses) => Promise<FrontProxy>;
  /** The proxy's status while gatehouse is unreachable. */
  readonly whenUnreachable: number;
  /** Whether the client gets the body and the headers of a refusal, also of 403. Default: true. */
  readonly forwardsRefusals?: boolean;
  /** Whether the proxy normalizes the path, and checks and forwards the result. Default: false. */
  readonly normalizesPaths?: boolean;
  /** Whether the API gets `X-Forwarded-Host`. Default: true. */
  readonly forwardsHost?: boolean;
}

const IDENTITY = [
  'x-forwarded-user',
  'x-forwarded-client-id',
  'x-forwarded-scope',
  'x-forwarded-preferred-username',
] as const;
const NOT_FOR_THE_API = [
  'x-forwarded-uri',
  'x-forwarded-method',
  'x-original-uri',
  'x-original-url',
  'x-original-method',
  'x-rewrite-url',
  'x-http-method',
  'x-http-method-override',
  'x-method-override',
] as const;
/** Normalizes header names like CGI and WSGI. */
const normalizeName = (name: string): string => name.replace(/[^a-z0-9]/g, '-');
/** What a header name may contain besides letters, digits and `-` (RFC 9110 §5.6.2); CGI and WSGI read all of it as `_`. */
const OTHER_SEPARATORS = "!#$%&'*+.^_`|~".split('');
/** All non-empty values that an API might read for this header. */
const listValues = (request: RecordedRequest | undefined, name: string): string[] =>
  (request?.headers ?? [])
    .filter(([header, value]) => normalizeName(header) === name && value !== '')
    .map(([, value]) => value);

/** Tests a real gateway with the configuration of docs/forward-auth.md, a real gatehouse, and an API that records every byte. */
export function testForwardAuth(setup: ForwardAuthSetup): void {
  const { start, whenUnreachable } = setup;
  const { forwardsRefusals = true, normalizesPaths = false, forwardsHost = true } = setup;
  let gatehouse: TestGateway;
  let api: RecordingUpstream;
  let gateway: FrontProxy;
  let token: string;

  beforeAll(async () => {
    gatehouse = await startGateway((settings) =>
      withBoundApp({
        ...settings,
        trustedProxies: ['127.0.0.1'],
        dpop: { enabled: true },
        hosts: { allowed: ['api.example.test'] },
        routes: [
          ...(settings.routes ?? []),
          { path: '/shared/**', requires: 'files:read', cors: { origins: ['https://app.test'] } },
        ],
      }),
    );
    api = await startRecordingUpstream();
    gateway = await start({
      port: await freePort(),
      gatehousePort: gatehouse.port,
      apiPort: api.port,
      ca: `${gatehouse.folder}/ca.pem`,
    });
    token = (await gatehouse.grant({ scope: 'files:read' })).access_token;
  });
  afterAll(async () => {
    await gateway?.close();
    await api?.close();
    await gatehouse?.close();
  });
  beforeEach(() => api.reset());

  /** `as`: an access token, or the value of `Authorization`. */
  const send = (
    line: string,
    { as = token, lines = [], body }: { as?: string; lines?: readonly string[]; body?: string } = {},
  ): Promise<RawResponse> => {
    const head = [
      `${line} HTTP/1.1`,
      'Host: api.example.test',
      ...(as === '' ? [] : [`Authorization: ${as.includes(' ') ? as : `Bearer ${as}`}`]),
      ...(body === undefined ? [] : [`Content-Length: ${body.length}`]),
      ...lines,
    ];
    return rawRequest(gateway.port, `${head.join('\r\n')}\r\n\r\n${body ?? ''}`);
  };
  const takeOnlyRequest = (): RecordedRequest | undefined => {
    expect(api.requests.length).toBe(1);
    return api.requests[0];
  };

  test('an allowed request reaches the API unchanged, with identity headers and without the token', async () => {
    const { status, body } = await send('GET /files/a%20b/c?x=1&y=%2F');
    expect(status, gateway.output()).toBe(200);
    expect(body).toBe('GET /files/a%20b/c?x=1&y=%2F');
    const request = takeOnlyRequest();
    expect(IDENTITY.map((name) => listValues(request, name))).toEqual([
      [ALICE],
      ['report-runner'],
      ['files:read'],
      ['alice'],
    ]);
    expect(listValues(request, 'authorization')).toEqual([]);
    expect(listValues(request, 'x-request-id')).toHaveLength(1);
    expect(api.bytes()).not.toContain(token);
  });

  test('a public route needs no token and sets no identity', async () => {
    expect((await send('GET /health', { as: '' })).status).toBe(200);
    const request = takeOnlyRequest();
    for (const name of IDENTITY) expect(listValues(request, name)).toEqual([]);
  });

  test('a missing or invalid token is 401 with the challenge of gatehouse', async () => {
    const none = await send('GET /files/a', { as: '' });
    expect(none.status).toBe(401);
    expect(none.head).toMatch(
      /^www-authenticate: Bearer realm="gatehouse", resource_metadata="[^"]+\/files\/a", DPoP realm="gatehouse"/im,
    );
    const bad = await send('GET /files/a', { as: 'nonsense' });
    expect(bad.status).toBe(401);
    expect(bad.head).toMatch(/^www-authenticate: Bearer .*error="invalid_token"/im);
    expect(api.requests).toEqual([]);
  });

  test('an insufficient scope or no matching route is 403', async () => {
    const scope = await send('GET /reports/a');
    expect(scope.status).toBe(403);
    expect(/^www-authenticate: .*insufficient_scope/im.test(scope.head)).toBe(forwardsRefusals);
    expect(scope.body.includes('"insufficient_scope"')).toBe(forwardsRefusals);
    expect((await send('GET /nowhere')).status).toBe(403);
    expect(api.requests).toEqual([]);
    const ids = [...scope.head.matchAll(/^x-request-id: (\S+)/gim)].map(([, id]) => id);
    expect(ids).toHaveLength(1);
    await until('gatehouse logs the id', () => gatehouse.log.some((line) => line['request_id'] === ids[0]));
  });

  test('the client’s method is checked, and bodies are forwarded completely', async () => {
    expect((await send('POST /files/a', { body: 'x=1' })).status).toBe(403);
    expect((await send('DELETE /files/a')).status).toBe(403);
    expect(
      (
        await send('POST /files/a', {
          body: 'x=1',
          lines: ['X-Forwarded-Method: GET', 'X-Original-Method: GET'],
        })
      ).status,
    ).toBe(403);
    expect(api.requests).toEqual([]);
    const { access_token: writer } = await gatehouse.grant({ scope: 'reports:write' });
    const body = 'a report '.repeat(5_000);
    expect((await send('POST /reports/a', { as: writer, body })).status).toBe(200);
    expect(takeOnlyRequest()).toMatchObject({ method: 'POST', target: '/reports/a', body });
  });

  test('a token that is bound to a key needs a proof of it, which the API does not get', async () => {
    const key = await createDpopKey();
    const now = gatehouse.clock.now();
    const dpop = await signProof(key, {
      method: 'POST',
      url: 'https://localhost:8443/authsvc/oauth2/token',
      now,
    });
    const granted = await createOAuthClient(gatehouse).clientCredentials(
      { scope: 'files:read' },
      { as: gatehouse.users.alice, headers: { dpop } },
    );
    const bound = String(granted.json['access_token']);
    const as = `DPoP ${bound}`;
    const url = 'https://api.example.test:8443/files/a';
    const prove = async (more: Partial<ProofInput> = {}): Promise<string> =>
      `DPoP: ${await signProof(key, { url, token: bound, now, ...more })}`;

    expect((await send('GET /files/a', { as: bound })).status).toBe(401);
    const without = await send('GET /files/a', { as });
    expect([without.status, /^www-authenticate: DPoP /im.test(without.head)]).toEqual([401, true]);
    const forAnother = await prove({ url: 'https://api.example.test:8443/files/b' });
    expect((await send('GET /files/a', { as, lines: [forAnother] })).status).toBe(401);
    expect(api.requests).toEqual([]);
    const { status } = await send('GET /files/a', { as, lines: [await prove()] });
    expect(status, gateway.output()).toBe(200);
    const request = takeOnlyRequest();
    expect(listValues(request, 'x-forwarded-user')).toEqual([ALICE]);
    expect([listValues(request, 'dpop'), listValues(request, 'authorization')]).toEqual([[], []]);

    await withSettings(
      gatehouse,
      (settings) => ({ ...settings, dpop: { enabled: true, nonce: 'required' } }),
      async () => {
        const refused = await send('GET /files/a', { as, lines: [await prove()] });
        const [, nonce] = /^dpop-nonce: (\S+)/im.exec(refused.head) ?? [];
        expect([refused.status, nonce], refused.head).toEqual([401, expect.any(String)]);
        const lines = [await prove({ claims: { nonce } })];
        expect((await send('GET /files/a', { as, lines })).status).toBe(200);
      },
    );
  });

  test('a preflight is checked against `cors` of the route, without a token', async () => {
    const preflight = (path: string, origin: string): Promise<RawResponse> =>
      send(`OPTIONS ${path}`, {
        as: '',
        lines: [`Origin: ${origin}`, 'Access-Control-Request-Method: GET'],
      });
    expect((await preflight('/shared/a', 'https://evil.test')).status).toBe(403);
    expect((await preflight('/files/a', 'https://app.test')).status).toBe(401);
    expect(api.requests).toEqual([]);
    expect((await preflight('/shared/a', 'https://app.test')).status).toBe(200);
    expect(takeOnlyRequest()).toMatchObject({ method: 'OPTIONS', target: '/shared/a' });
  });

  test('gatehouse and the API get the same address of the client', async () => {
    await send('GET /files/a', { lines: ['X-Forwarded-For: 203.0.113.9'] });
    const request = takeOnlyRequest();
    const [id] = listValues(request, 'x-request-id');
    const entry = await until('gatehouse logs the request', () =>
      gatehouse.log.find((line) => line['original'] !== undefined && line['request_id'] === id),
    );
    expect([entry['from']]).toEqual(listValues(request, 'x-forwarded-for'));
    expect(entry['from']).not.toBe('203.0.113.9');
  });

  const SPOOFED = [
    'X-Forwarded-User: root',
    'x_forwarded_user: root',
    'X.Forwarded.User: root',
    'X+Forwarded+User: root',
    'x~forwarded|scope: root',
    'X`Forwarded^User: root',
    'X#Forwarded!Client*Id: root',
    'X-Forwarded_User: root',
    'X_Forwarded-Client_Id: root',
    'X-Forwarded-Preferred-Username: root',
    'x_forwarded_preferred_username: root',
    'X-Forwarded-Scope: root',
    'x_forwarded_scope: root',
    'X-Forwarded-Uri: /health',
    'X_Forwarded_Uri: /health',
    'X-Forwarded-Method: OPTIONS',
    'X-Forwarded-Host: other.example.test',
    'X-Original-URI: /health',
    'X-Original-URL: https://localhost:8443/health',
    'X-Original-Method: OPTIONS',
    'X-Rewrite-URL: /health',
    'X-HTTP-Method-Override: DELETE',
    'X-Http-Method: DELETE',
    'X-Method-Override: DELETE',
    'X-Forwarded-For: 203.0.113.9',
    'X-Forwarded-Proto: gopher',
    'X-Request-Id: spoofed-by-client',
  ] as const;

  test('CVE-2026-40575 class: client-supplied identity and forwarding headers have no effect', async () => {
    // Envoy replaces a loopback address with its own.
    await send('GET /files/a');
    const [address] = listValues(takeOnlyRequest(), 'x-forwarded-for');
    expect(address).not.toBe('203.0.113.9');
    // One by one, because two contradictory headers could hide that one alone is trusted.
    for (const line of SPOOFED) {
      const context = `${line}\n${gateway.output()}`;
      api.reset();
      expect((await send('GET /reports/a', { lines: [line] })).status, context).toBe(403);
      expect((await send('GET /files/a', { as: '', lines: [line] })).status, context).toBe(401);
      expect(api.requests, context).toEqual([]);
      expect((await send('GET /files/a', { lines: [line] })).status, context).toBe(200);
      const request = takeOnlyRequest();
      expect(request?.target).toBe('/files/a');
      expect(
        IDENTITY.map((name) => listValues(request, name)),
        context,
      ).toEqual([[ALICE], ['report-runner'], ['files:read'], ['alice']]);
      for (const name of NOT_FOR_THE_API) expect(listValues(request, name), context).toEqual([]);
      expect(listValues(request, 'x-forwarded-host'), context).toEqual(forwardsHost ? ['api.example.test'] : []);
      expect(listValues(request, 'x-forwarded-for'), context).toEqual([address]);
      expect(listValues(request, 'x-forwarded-proto'), context).toEqual(['http']);
      expect(api.bytes(), context).not.toContain('spoofed');
    }
  });

  test('on a public route, a client cannot set its identity', async () => {
    for (const line of SPOOFED) {
      api.reset();
      expect((await send('GET /health', { as: '', lines: [line] })).status, line).toBe(200);
      const request = takeOnlyRequest();
      for (const name of IDENTITY) expect(listValues(request, name), line).toEqual([]);
    }
  });

  test('all these headers together, repeated, have no effect either', async () => {
    const lines = [...SPOOFED, ...SPOOFED];
    expect((await send('GET /files/a', { as: '', lines })).status).toBe(401);
    expect((await send('GET /reports/a', { lines })).status).toBe(403);
    expect(api.requests).toEqual([]);
    expect((await send('GET /files/a', { lines })).status).toBe(200);
    expect(listValues(takeOnlyRequest(), 'x-forwarded-user')).toEqual([ALICE]);
    expect(api.bytes()).not.toContain('root');
  });

  test('no spelling of an identity header reaches the API, whatever replaces the dashes', async () => {
    for (const separator of OTHER_SEPARATORS) {
      api.reset();
      const spelled = [...IDENTITY, ...NOT_FOR_THE_API].flatMap((name) => [
        name.replaceAll('-', separator),
        name.replace('-', separator),
        name.replace(/-(?=[^-]*$)/, separator),
      ]);
      const lines = spelled.map((name) => `${name}: root`);
      expect((await send('GET /files/a', { lines })).status, separator).toBe(200);
      expect((await send('GET /health', { as: '', lines })).status, separator).toBe(200);
      expect(api.requests).toHaveLength(2);
      const [asAlice, withoutToken] = api.requests;
      expect(
        IDENTITY.map((name) => listValues(asAlice, name)),
        separator,
      ).toEqual([[ALICE], ['report-runner'], ['files:read'], ['alice']]);
      for (const name of IDENTITY) expect(listValues(withoutToken, name), separator).toEqual([]);
      expect(api.bytes(), separator).not.toContain('root');
    }
  });

  test.each([
    '/files/../reports/a',
    '/files/%2e%2e/reports/a',
    '/files/.%2e/reports/a',
    '/health/../reports/a',
    '//files/a',
    '/files//a',
    '/files/%2fa',
    '/files/a%5c..%5cb',
    '/files/..;/reports/a',
    '/%66iles/a',
    '/files/a%00',
    '/files/a#/../b',
    'http://api.example.test/files/../reports/a',
    '/files/a?access_token=x',
    '/AuthSvc/Authorize/Verify',
    '/authsvc/check/health',
    '/_gatehouse',
  ])('an ambiguous path, or one of gatehouse itself, does not reach the API: %s', async (path) => {
    const { status } = await send(`GET ${path}`);
    if (normalizesPaths && status === 200) {
      // What was checked is what the API gets.
      expect(takeOnlyRequest()?.target).toBe('/files/a');
      return;
    }
    expect([400, 403, 404]).toContain(status);
    expect(api.requests).toEqual([]);
  });

  test('two Authorization fields do not reach the API', async () => {
    const { status } = await send('GET /files/a', { lines: [`Authorization: Bearer ${token}`] });
    expect([400, 403]).toContain(status);
    expect(api.requests).toEqual([]);
  });

  test('a request beyond a limit of its route is 429 with Retry-After, and does not reach the API', async () => {
    await withSettings(
      gatehouse,
      (settings) => ({ ...settings, limits: { ...settings.limits, routes: '1/h' } }),
      async () => {
        expect((await send('GET /files/a')).status).toBe(200);
        api.reset();
        const { status, head } = await send('GET /files/a');
        expect(status, gateway.output()).toBe(429);
        expect(head).toMatch(/\r\nretry-after: \d+\r?$/im);
        expect(api.requests).toEqual([]);
      },
    );
  });

  test('a revoked token is rejected at once', async () => {
    const { access_token: mine } = await gatehouse.grant({ scope: 'files:read' });
    expect((await send('GET /files/a', { as: mine })).status).toBe(200);
    const headers = { authorization: `Bearer ${mine}` };
    expect((await gatehouse.request({ path: '/authsvc/Revoke/Token', headers })).status).toBe(200);
    expect((await send('GET /files/a', { as: mine })).status).toBe(401);
  });

  test('a client cannot forge its certificate in a header, through a gateway whose header is trusted', async () => {
    const { access_token: bound } = await gatehouse.grant({ clientId: 'bound-app' });
    for (const [name, value] of forwardedCertificateHeaders(gatehouse.users.alice.der))
      await withSettings(gatehouse, withForwardedCertificates(name.toLowerCase() as 'client-cert'), async () => {
        for (const spelling of [name, name.replaceAll('-', '_'), name.replaceAll('-', '.')]) {
          const { status } = await send('GET /files/a', { as: bound, lines: [`${spelling}: ${value}`] });
          expect([400, 401, 403], spelling).toContain(status);
        }
      });
    expect(api.requests).toEqual([]);
  });

  test('requests through a gateway that is not trusted are rejected', async () => {
    await withSettings(
      gatehouse,
      (settings) => ({ ...settings, trustedProxies: [] }),
      async () => {
        expect((await send('GET /health', { as: '' })).status).toBe(403);
        expect((await send('GET /files/a')).status).toBe(403);
        expect(api.requests).toEqual([]);
      },
    );
  });

  test('while gatehouse fails, no request reaches the API', async () => {
    const failing = vi.spyOn(gatehouse.server.store.revocations, 'isRevoked').mockImplementation(() => {
      throw new Error('unexpected');
    });
    try {
      expect((await send('GET /files/a')).status).toBe(forwardsRefusals ? 503 : 500);
      expect(api.requests).toEqual([]);
    } finally {
      failing.mockRestore();
    }
  });

  test('while gatehouse is unreachable, no request reaches the API, not even on public routes', async () => {
    await gatehouse.server.close();
    expect((await send('GET /files/a')).status, gateway.output()).toBe(whenUnreachable);
    expect((await send('GET /health', { as: '' })).status).toBe(whenUnreachable);
    expect(api.requests).toEqual([]);
  });
}
