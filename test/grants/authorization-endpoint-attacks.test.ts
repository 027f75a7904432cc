import { beforeAll, describe, expect, test } from 'vitest';
import {
  APP,
  CALLBACK,
  type CodeFlow,
  type Fields,
  ISSUER,
  readResponse,
  SECRET,
  WEB,
  withCodeClients,
} from '../support/code-client.ts';
import { createForeignKey, signForeign } from '../support/foreign-issuer.ts';
import { formToken } from '../support/form-browser.ts';
import { createOAuthClient, getAccessToken, refusal } from '../support/oauth-client.ts';
import type { TestGateway } from '../support/test-gateway.ts';
import { useCodeGateway } from './code-gateway.ts';

/** Attacks on the front channel: redirect URIs, parameters, pushed requests, transactions and forms. */
const key = await createForeignKey();
const LOOPBACKS = ['http://127.0.0.1/callback', 'http://[::1]/callback', 'http://localhost/callback?a=1'];

let gateway: TestGateway;
let flow: CodeFlow;
const shared = useCodeGateway((settings) => ({
  ...withCodeClients(settings),
  trustedProxies: ['127.0.0.1'],
  integrations: [
    ...(withCodeClients(settings).integrations ?? []),
    { ...APP, clientId: 'native', redirectUris: [...LOOPBACKS, 'com.example.app:/callback'] },
    { ...APP, clientId: 'signing', jwks: { keys: [key.jwk as Record<string, string>] } },
  ],
}));
const { start } = shared;
beforeAll(() => {
  ({ gateway } = shared);
});

/** A page, and no redirect to anywhere but the pages. */
const expectPage = (page: Awaited<ReturnType<CodeFlow['authorize']>>, what: string): void => {
  expect([page.status, page.redirectTo], what).toEqual([400, undefined]);
  expect(page.headers, what).toMatchObject({ 'cache-control': 'no-store', 'referrer-policy': 'no-referrer' });
};

describe('a redirect URI that is not registered is refused on a page', () => {
  test.each([
    // The port rule of loopback addresses (RFC 8252 §7.3).
    ['user information before a loopback address', 'http://127.0.0.1:80@evil.example.test/callback'],
    ['user information with a loopback address as name', 'http://127.0.0.1@evil.example.test/callback'],
    ['a port with user information', 'http://127.0.0.1:1@evil.example.test:80/callback'],
    ['a password', 'http://user:password@127.0.0.1/callback'],
    ['a port that is not a number', 'http://127.0.0.1:80.evil.example.test/callback'],
    ['port 0', 'http://127.0.0.1:0/callback'],
    ['a port beyond 65535', 'http://127.0.0.1:65536/callback'],
    ['a port with a leading zero', 'http://127.0.0.1:080/callback'],
    ['an empty port', 'http://127.0.0.1:/callback'],
    ['a negative port', 'http://127.0.0.1:-1/callback'],
    ['another loopback address', 'http://127.0.0.2/callback'],
    ['the short form of the address', 'http://127.1/callback'],
    ['the decimal form of the address', 'http://2130706433/callback'],
    ['the octal form of the address', 'http://0177.0.0.1/callback'],
    ['the mapped address', 'http://[::ffff:127.0.0.1]/callback'],
    ['the long form of ::1', 'http://[0:0:0:0:0:0:0:1]/callback'],
    ['an IPv6 zone', 'http://[::1%25eth0]/callback'],
    ['an IPv6 address without brackets', 'http://::1/callback'],
    ['localhost with a domain', 'http://localhost.evil.example.test/callback?a=1'],
    ['localhost with a final dot', 'http://localhost.:80/callback?a=1'],
    ['localhost in capitals', 'http://LOCALHOST/callback?a=1'],
    ['the query of another entry', 'http://127.0.0.1:1/callback?a=1'],
    ['a longer query', 'http://localhost:1/callback?a=1&b=2'],
    ['https with the loopback address', 'https://127.0.0.1/callback'],
    ['another path', 'http://127.0.0.1:1/callback/../evil'],
    ['an encoded path', 'http://127.0.0.1:1/%63allback'],
    ['a fragment', 'http://127.0.0.1:1/callback#x'],
    ['an empty fragment', 'http://127.0.0.1:1/callback#'],
    ['a backslash', 'http://127.0.0.1:1\\@evil.example.test/callback'],
    ['a tab', 'http://127.0.0.1:1\t/callback'],
    ['a line break', 'http://127.0.0.1:1/callback\r\nlocation: https://evil.example.test/'],
    ['a line feed before the end', 'http://127.0.0.1:1/callback\n'],
    ['a null character', 'http://127.0.0.1:1/callback\0'],
    ['a leading space', ' http://127.0.0.1:1/callback'],
    // Private-use schemes (§7.1).
    ['a scheme in capitals', 'COM.EXAMPLE.APP:/callback'],
    ['an authority after the scheme', 'com.example.app://evil.example.test/callback'],
    ['two slashes', 'com.example.app://callback'],
    ['a longer scheme', 'com.example.apps:/callback'],
    ['a script', 'javascript:alert(1)//com.example.app:/callback'],
    ['a data URL', 'data:text/html,com.example.app:/callback'],
    ['a relative URL', '/callback'],
    ['a URL without scheme', '//evil.example.test/callback'],
  ])('%s', async (what, redirect_uri) => {
    flow = start();
    expectPage(await flow.authorize({ client_id: 'native', redirect_uri }), what);
    expect(
      await createOAuthClient(gateway).post('par', flow.parameters({ client_id: 'native', redirect_uri })),
    ).toMatchObject(refusal('invalid_request'));
  });

  test.each([
    'http://127.0.0.1:1/callback',
    'http://[::1]:65535/callback',
    'http://localhost:8080/callback?a=1',
  ])('%s is accepted, and must be the same at the token endpoint, with its port', async (redirect_uri) => {
    flow = start();
    const code = await flow.obtainCode({ client_id: 'native', redirect_uri });
    const exchange = (uri: string) => flow.exchange(code, { client_id: 'native', redirect_uri: uri });
    expect(await exchange(redirect_uri.replace(/:[0-9]+\/callback/, ':2/callback'))).toMatchObject(
      refusal('invalid_grant'),
    );
    expect((await exchange(redirect_uri)).status).toBe(200);
  });
});

describe('before client and redirect URI are known to be valid, no parameter leads anywhere', () => {
  const evil = 'https://evil.example.test/callback';
  test.each<[string, (query: URLSearchParams) => void]>([
    ['an unknown client', (query) => query.set('client_id', 'nobody')],
    ['two clients', (query) => query.append('client_id', 'web')],
    ['two redirect URIs', (query) => query.append('redirect_uri', evil)],
    ['the redirect URI of another client', (query) => query.set('redirect_uri', WEB.redirectUris?.[0] ?? '')],
    [
      'an unknown client with a valid redirect URI and an error',
      (query) => {
        query.set('client_id', 'nobody');
        query.set('prompt', 'none');
      },
    ],
    ['a client in another letter case', (query) => query.set('client_id', 'APP')],
    ['a client with a null character', (query) => query.set('client_id', 'app\0')],
    ['a request_uri of another site', (query) => query.set('request_uri', `${evil}/request.jwt`)],
    [
      'two request URIs',
      (query) => {
        query.append('request_uri', 'urn:x');
        query.append('request_uri', 'urn:y');
      },
    ],
    ['a method of an object', (query) => query.set('client_id', '__proto__')],
  ])('%s', async (what, change) => {
    flow = start();
    const query = new URLSearchParams(flow.parameters());
    change(query);
    for (const name of ['iss', 'error', 'error_uri', 'post_logout_redirect_uri', 'next', 'request'])
      query.set(name, evil);
    const page = await flow.authorize(query.toString());
    expectPage(page, what);
    expect(page.text).not.toMatch(/href="(?:https?:)?\/\/evil/);
    expect(page.headers['set-cookie']).toBeUndefined();
  });

  test('a malformed query is refused on a page', async () => {
    flow = start();
    for (const query of [
      'client_id=%zz',
      'client_id=%ff',
      '%',
      `${new URLSearchParams(flow.parameters()).toString()}&x=%e2%28`,
    ])
      expectPage(await flow.authorize(query), query);
  });
});

describe('state', () => {
  test('with control characters, quotes or other scripts is refused, and returned encoded: nothing is injected', async () => {
    flow = start();
    for (const state of ['a\r\nset-cookie: x=1', 'a\0b', 'ü', '\u202e', '\u0085']) {
      const page = await flow.authorize({ state });
      const response = readResponse(page);
      expect(page.headers['set-cookie']).toBeUndefined();
      expect(response.href.startsWith(`${CALLBACK}?error=invalid_request&`)).toBe(true);
      expect(response.searchParams.get('state')).toBe(state);
      expect(response.searchParams.getAll('iss')).toEqual([ISSUER]);
    }
  });

  test('cannot add parameters to the response', async () => {
    flow = start();
    const state = 'x&code=stolen&iss=https://evil.example.test#code=y"\'<script>';
    await flow.reachReview({ state });
    const response = await flow.decide('approve');
    expect(response.searchParams.get('state')).toBe(state);
    expect(response.searchParams.getAll('code')).toHaveLength(1);
    expect([response.searchParams.getAll('iss'), response.hash]).toEqual([[ISSUER], '']);
  });

  test('that is too long is refused at the redirect URI, and a longer URL by the listener', async () => {
    flow = start();
    expect(readResponse(await flow.authorize({ state: 'x'.repeat(2_000) })).searchParams.get('error')).toBe(
      'invalid_request',
    );
    expect((await flow.authorize({ state: 'x'.repeat(10_000) })).status).toBe(414);
  });
});

describe('parameters', () => {
  test.each<[string, Fields, string]>([
    ['no challenge', { code_challenge: '' }, 'invalid_request'],
    ['no method', { code_challenge_method: '' }, 'invalid_request'],
    ['plain', { code_challenge_method: 'plain' }, 'invalid_request'],
    ['a method in lower case', { code_challenge_method: 's256' }, 'invalid_request'],
    ['a challenge of 42 characters', { code_challenge: 'x'.repeat(42) }, 'invalid_request'],
    ['a challenge of 44 characters', { code_challenge: 'x'.repeat(44) }, 'invalid_request'],
    ['a padded challenge', { code_challenge: `${'x'.repeat(42)}=` }, 'invalid_request'],
    ['a challenge with a line feed', { code_challenge: `${'x'.repeat(43)}\n` }, 'invalid_request'],
    ['response_type token', { response_type: 'token' }, 'unsupported_response_type'],
    ['response_type code token', { response_type: 'code token' }, 'unsupported_response_type'],
    ['response_type code id_token', { response_type: 'code id_token' }, 'unsupported_response_type'],
    ['response_mode fragment', { response_mode: 'fragment' }, 'invalid_request'],
    ['response_mode form_post', { response_mode: 'form_post' }, 'invalid_request'],
    ['response_mode web_message', { response_mode: 'web_message' }, 'invalid_request'],
    ['a request object', { request: 'eyJhbGciOiJub25lIn0.e30.' }, 'invalid_request'],
    ['more than the integration', { scope: 'admin:manage' }, 'invalid_scope'],
    ['a scope in another syntax', { scope: 'files:read\u0000' }, 'invalid_scope'],
    ['an unknown resource', { resource: 'https://other.example.test' }, 'invalid_target'],
    ['a resource with a fragment', { resource: `${ISSUER}/files#x` }, 'invalid_target'],
    [
      'a resource that begins like the public URL',
      { resource: `${ISSUER}.evil.example.test` },
      'invalid_target',
    ],
    [
      'a resource with user information',
      { resource: `https://localhost:8443@evil.example.test/` },
      'invalid_target',
    ],
    ['resource and audience that differ', { resource: ISSUER, audience: 'x' }, 'invalid_target'],
    ['prompt none with login', { prompt: 'none login' }, 'interaction_required'],
    ['an unknown prompt', { prompt: 'create' }, 'invalid_request'],
    ['a negative max_age', { max_age: '-1' }, 'invalid_request'],
    ['a max_age that is not a number', { max_age: '1e3' }, 'invalid_request'],
    ['a thumbprint of the wrong length', { dpop_jkt: 'x' }, 'invalid_request'],
  ])('%s', async (_, changes, error) => {
    flow = start();
    const page = await flow.authorize(changes);
    const { searchParams, href } = readResponse(page);
    expect(href.startsWith(`${CALLBACK}?`)).toBe(true);
    expect([searchParams.get('error'), searchParams.get('state'), searchParams.get('iss')]).toEqual([
      error,
      'af0ifjsldkj',
      ISSUER,
    ]);
    expect(searchParams.has('code')).toBe(false);
    expect(page.headers['set-cookie']).toBeUndefined();
    expect(await createOAuthClient(gateway).post('par', flow.parameters(changes))).toMatchObject(
      refusal(error),
    );
  });

  test.each(['state', 'scope', 'code_challenge', 'response_type', 'resource', 'prompt', 'request'])(
    'a repeated %s is refused, whichever value would be valid',
    async (name) => {
      flow = start();
      const query = `${new URLSearchParams(flow.parameters()).toString()}&${name}=a&${name}=b`;
      const { searchParams } = readResponse(await flow.authorize(query));
      expect(searchParams.get('error')).toMatch(/^invalid_(request|target)$/);
      expect(searchParams.has('code')).toBe(false);
    },
  );
});

describe('pushed requests', () => {
  const push = async (changes: Fields = {}, more: Fields = {}) =>
    createOAuthClient(gateway).post('par', { ...flow.parameters(changes), ...more });
  const open = (requestUri: unknown, more = '') =>
    flow.authorize(
      `${new URLSearchParams({ client_id: 'app', request_uri: String(requestUri) }).toString()}${more}`,
    );

  test('a transaction is not a request_uri, and a request_uri is not a transaction', async () => {
    flow = start();
    const { redirectTo = '' } = await flow.authorize();
    const transaction = new URL(redirectTo).searchParams.get('request') ?? '';
    expectPage(await open(`urn:ietf:params:oauth:request_uri:${transaction}`), 'a transaction');
    const requestUri = String((await push()).json['request_uri']);
    const page = await flow.browser.get(
      `/authsvc/device/sign-in?request=${requestUri.replace('urn:ietf:params:oauth:request_uri:', '')}`,
    );
    expect(page.text).toContain('Request expired');
  });

  test('the client of the request_uri must be named once, and is the one that pushed', async () => {
    flow = start();
    const requestUri = String((await push()).json['request_uri']);
    for (const more of ['&client_id=web', '&client_id=app', `&request_uri=${encodeURIComponent(requestUri)}`])
      expectPage(await open(requestUri, more), more);
    expectPage(
      await flow.authorize(new URLSearchParams({ request_uri: requestUri }).toString()),
      'without client_id',
    );
  });

  test('a client cannot push for another, and authenticates with one method', async () => {
    flow = start();
    const web = { client_id: 'web', redirect_uri: WEB.redirectUris?.[0] ?? '' };
    const basic = (id: string, secret = SECRET) => ({
      headers: { authorization: `Basic ${Buffer.from(`${id}:${secret}`).toString('base64')}` },
    });
    const post = (fields: Fields, more = {}) => createOAuthClient(gateway).post('par', fields, more);
    const fields = flow.parameters(web);
    expect(await post({ ...fields, client_id: 'app' }, basic('web'))).toMatchObject(
      refusal('invalid_request'),
    );
    expect(await post({ ...fields, client_secret: SECRET }, basic('web'))).toMatchObject(
      refusal('invalid_request'),
    );
    expect(await post({ ...flow.parameters(), client_secret: SECRET })).toMatchObject(
      refusal('invalid_client', 401),
    );
    expect(await post(flow.parameters(), basic('app'))).toMatchObject(refusal('invalid_client', 401));
    const claims = { aud: ISSUER, exp: Math.floor(gateway.clock.now()) + 60 };
    const assert = async (subject: string, jti: string) => ({
      client_assertion: await signForeign(key, { iss: subject, sub: subject, jti, ...claims }),
      client_assertion_type: 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer',
    });
    // The assertion is of a client that may do this, the request names another.
    expect(await post({ ...flow.parameters(), ...(await assert('signing', '1')) })).toMatchObject(
      refusal('invalid_client', 401),
    );
    expect(
      await post({ ...flow.parameters({ client_id: 'signing' }), ...(await assert('app', '2')) }),
    ).toMatchObject(refusal('invalid_client', 401));
    const both = {
      ...flow.parameters({ client_id: 'signing' }),
      ...(await assert('signing', '3')),
      client_secret: 'x',
    };
    expect(await post(both)).toMatchObject(refusal('invalid_request'));
    const good = {
      ...(await assert('signing', '4')),
      client_assertion: await signForeign(key, {
        iss: 'signing',
        sub: 'signing',
        jti: '4',
        ...claims,
        aud: `${ISSUER}/authsvc/oauth2/par`,
      }),
    };
    const signing = flow.parameters({ client_id: 'signing' });
    expect((await post({ ...signing, ...good })).status).toBe(201);
    expect(await post({ ...signing, ...good }), 'a replayed assertion').toMatchObject(
      refusal('invalid_client', 401),
    );
  });
});

describe('a transaction and its forms', () => {
  const TRANSACTION = /\/sign-in\?request=/;

  test('a review page that another user of the browser has opened cannot be approved by this one', async () => {
    flow = start();
    const alice = await flow.reachReview();
    const approve = {
      token: formToken(alice.text, '/approve'),
      url: alice.url.replace('/review', '/approve'),
    };
    await flow.browser.submit('/authsvc/device/sign-out');
    await flow.signIn('bob');
    const posted = await flow.browser.send(
      'POST',
      approve.url,
      new URLSearchParams({ form_token: approve.token, scope: 'files:read' }).toString(),
      { origin: ISSUER, 'sec-fetch-site': 'same-origin' },
    );
    expect([posted.status, posted.redirectTo]).toEqual([403, undefined]);
    expect(gateway.auditEvents('authorization_approved')).toEqual([]);
  });

  test('a form token of one page, request or decision is not valid for another', async () => {
    flow = start();
    const first = await flow.reachReview({ state: 'first' });
    const second = await flow.reachReview({ state: 'second', scope: 'reports:write' });
    const approve = (url: string, token: string, scope: string) =>
      flow.browser.send(
        'POST',
        url.replace('/review', '/approve'),
        new URLSearchParams({ form_token: token, scope }).toString(),
        { origin: ISSUER, 'sec-fetch-site': 'same-origin' },
      );
    for (const [what, url, token, scope] of [
      ['the other request', second.url, formToken(first.text, '/approve'), 'files:read'],
      ['another scope', first.url, formToken(first.text, '/approve'), 'reports:write'],
      ['the form to deny', first.url, formToken(first.text, '/deny'), 'files:read'],
      ['the form to sign out', first.url, formToken(first.text, '/sign-out'), 'files:read'],
      ['no transaction', `${ISSUER}/authsvc/device/approve`, formToken(first.text, '/approve'), 'files:read'],
      ['no token', first.url, '', 'files:read'],
    ] as const)
      expect((await approve(url, token, scope)).status, what).toBe(403);
    expect(gateway.auditEvents('authorization_approved')).toEqual([]);
    expect((await approve(first.url, formToken(first.text, '/approve'), 'files:read')).redirectTo).toContain(
      'code=',
    );
  });

  test('another site cannot send the forms, and a script cannot', async () => {
    flow = start();
    const review = await flow.reachReview();
    const body = new URLSearchParams({
      form_token: formToken(review.text, '/approve'),
      scope: 'files:read',
    }).toString();
    const url = review.url.replace('/review', '/approve');
    for (const headers of [
      { origin: 'https://evil.example.test', 'sec-fetch-site': 'cross-site' },
      { origin: 'null', 'sec-fetch-site': 'cross-site' },
      { 'sec-fetch-site': 'cross-site' },
      { 'sec-fetch-site': 'same-site' },
      {
        origin: ISSUER,
        'sec-fetch-site': 'same-origin',
        'sec-fetch-mode': 'cors',
        'sec-fetch-dest': 'empty',
      },
      { origin: ISSUER, 'sec-fetch-site': 'same-origin', 'sec-fetch-dest': 'iframe' },
      { origin: 'https://app.example.test' },
      { origin: ISSUER, 'content-type': 'text/plain' },
    ])
      expect((await flow.browser.send('POST', url, body, headers as Fields)).status).toBe(403);
    expect(gateway.auditEvents('authorization_approved')).toEqual([]);
  });

  test('the session cookie of another browser does not continue a transaction, and a transaction not in the URL twice', async () => {
    const victim = start();
    await victim.reachReview();
    const attacker = start();
    const { redirectTo = '' } = await attacker.authorize();
    expect(redirectTo).toMatch(TRANSACTION);
    // The link of the attacker, in the browser of the victim, who is signed in.
    const page = await victim.browser.get(redirectTo.replace('/sign-in', '/review'));
    expect(page.text).toContain('Request expired');
    const own = (await victim.authorize()).redirectTo ?? '';
    const transaction = new URL(own).searchParams.get('request') ?? '';
    const twice = await victim.browser.get(`${own}&request=${transaction}`);
    expect(twice.text).toContain('Request expired');
  });

  test('several tabs that an app opens at once in a new browser continue independently', async () => {
    flow = start();
    // None of the requests has the cookie of another response. Two may get the same name: then the older tab starts again.
    const begun = await Promise.all(['1', '2', '3', '4'].map((state) => flow.authorize({ state })));
    const names = new Set(begun.map(({ headers }) => String(headers['set-cookie']).split('=')[0]));
    const pages = [];
    for (const { redirectTo = '' } of begun) pages.push(await flow.browser.open(redirectTo));
    expect(pages.filter(({ text }) => text.includes('name="password"'))).toHaveLength(names.size);
    // From now on there is one more request, and no more cookies.
    const cookies = flow.browser.cookie.split('; ').length;
    await flow.authorize();
    expect(flow.browser.cookie.split('; ')).toHaveLength(cookies);
  });

  test('prefetch, prerender, frames, images and scripts get no page, and begin nothing', async () => {
    flow = start();
    for (const headers of [
      { 'sec-purpose': 'prefetch' },
      { 'sec-purpose': 'prefetch;prerender' },
      { purpose: 'prefetch' },
      { 'x-moz': 'prefetch' },
      { 'sec-fetch-dest': 'iframe' },
      { 'sec-fetch-dest': 'image', 'sec-fetch-mode': 'no-cors' },
      { 'sec-fetch-dest': 'empty', 'sec-fetch-mode': 'cors' },
      { 'service-worker-navigation-preload': 'true' },
    ]) {
      const page = await flow.authorize({}, headers);
      expect([page.status, page.redirectTo, page.headers['set-cookie']]).toEqual([403, undefined, undefined]);
    }
  });

  test('a HEAD request changes nothing', async () => {
    flow = start();
    const review = await flow.reachReview();
    for (const url of [
      review.url,
      review.url.replace('/review', '/approve'),
      review.url.replace('/review', '/deny'),
    ])
      await flow.browser.send('HEAD', url);
    expect(gateway.auditEvents('authorization_approved')).toEqual([]);
    expect(gateway.auditEvents('authorization_denied')).toEqual([]);
    await flow.browser.get(review.url);
    expect((await flow.decide('approve')).searchParams.has('code')).toBe(true);
  });

  test('a user who lost access between the page and the decision approves nothing', async () => {
    flow = start();
    await flow.reachReview({}, 'bob');
    const setAccess = (access: NonNullable<typeof APP.access>) =>
      gateway.reload((settings) => ({
        ...settings,
        integrations: settings.integrations?.map((one) =>
          one.clientId === 'app' ? { ...one, access } : one,
        ),
      }));
    await setAccess([{ groups: ['operators'] }]);
    const posted = await flow.browser.post('/authsvc/device/approve');
    expect([posted.status, posted.redirectTo]).toEqual([403, undefined]);
    expect(posted.text).toContain('You can’t approve this request');
    expect(gateway.auditEvents('authorization_approved')).toEqual([]);
    await setAccess(APP.access ?? []);
  });
});

test('at forward-auth, the authorization endpoint and the pages are not a part of the API', async () => {
  flow = start();
  const token = getAccessToken(await flow.exchange(await flow.obtainCode()));
  const review = await flow.reachReview();
  const query = new URLSearchParams(flow.parameters()).toString();
  for (const uri of [`/authsvc/oauth2/authorize?${query}`, new URL(review.url).pathname])
    for (const method of ['GET', 'POST']) {
      const reply = await gateway.request({
        path: '/authsvc/check',
        headers: {
          cookie: flow.browser.cookie,
          authorization: `Bearer ${token}`,
          'x-forwarded-method': method,
          'x-forwarded-proto': 'https',
          'x-forwarded-host': 'localhost:8443',
          'x-forwarded-uri': uri,
        },
      });
      expect([reply.status, reply.headers['set-cookie'], reply.headers.location]).toEqual([
        403,
        undefined,
        undefined,
      ]);
    }
});

test('no log line at level debug has a code, state, challenge, verifier, transaction, request_uri or token', async () => {
  flow = start();
  const state = 'the-state-of-the-app-0123456789';
  const pushed = await createOAuthClient(gateway).post('par', flow.parameters({ state }));
  const requestUri = String(pushed.json['request_uri']);
  const begun = await flow.authorize(
    new URLSearchParams({ client_id: 'app', request_uri: requestUri }).toString(),
  );
  const transaction = new URL(begun.redirectTo ?? '').searchParams.get('request') ?? '';
  await flow.reachReview({ state });
  const response = await flow.decide('approve');
  const code = response.searchParams.get('code') ?? '';
  await flow.exchange(code, { code_verifier: 'x'.repeat(43) });
  await flow.exchange(code, { redirect_uri: 'https://evil.example.test/callback' });
  const granted = await flow.exchange(code);
  const { access_token: accessToken, refresh_token: refreshToken } = granted.json;
  await createOAuthClient(gateway).refresh(String(refreshToken), { client_id: 'app' });
  await flow.exchange(code);
  await flow.authorize({ state, prompt: 'none' });
  await flow.authorize({ state, redirect_uri: `https://evil.example.test/?code=${code}` });
  await gateway.request({ path: `/authsvc/oauth2/token?code=${code}&state=${state}`, method: 'POST' });
  const written = gateway.logLines.join('\n');
  expect(gateway.auditEvents('code_replayed')).toHaveLength(1);
  for (const secret of [
    code,
    code.slice(-43),
    state,
    flow.pkce.challenge,
    flow.pkce.verifier,
    transaction,
    requestUri.slice(-40),
    String(accessToken),
    String(accessToken).split('.')[2],
    String(refreshToken),
  ]) {
    expect(secret).toMatch(/.{20}/);
    expect(written).not.toContain(secret);
  }
});
