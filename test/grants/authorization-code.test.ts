import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import {
  APP,
  CALLBACK,
  type CodeFlow,
  createCodeFlow,
  createPkce,
  type Fields,
  ISSUER,
  readResponse,
  SECRET,
  WEB,
  withCodeClients,
} from '../support/code-client.ts';
import { withFailure } from '../support/fault-injection.ts';
import { createForeignKey, signForeign } from '../support/foreign-issuer.ts';
import type { Page } from '../support/form-browser.ts';
import { createOAuthClient, getAccessToken, refusal } from '../support/oauth-client.ts';
import { ALICE, BOB, startGateway, type TestGateway } from '../support/test-gateway.ts';

const key = await createForeignKey();
const DIRECT: Fields = { 'sec-fetch-site': 'none' };

let gateway: TestGateway;
const flows: CodeFlow[] = [];
/** A new app and browser. */
const start = (): CodeFlow => {
  const flow = createCodeFlow(gateway);
  flows.push(flow);
  return flow;
};
beforeAll(async () => {
  gateway = await startGateway((settings) => ({
    ...withCodeClients(settings),
    integrations: [
      ...(withCodeClients(settings).integrations ?? []),
      { ...APP, clientId: 'signing', jwks: { keys: [key.jwk as Record<string, string>] } },
      { ...APP, clientId: 'second', redirectUris: ['https://second.example.test/callback'] },
      {
        ...APP,
        clientId: 'several',
        audience: ['https://api.example.test', 'https://other.example.test'],
      },
      { ...APP, clientId: 'devices-only', grants: ['device'], redirectUris: [] },
      { ...APP, clientId: 'no-users', access: [{ groups: ['operators'], grants: ['device'] }] },
    ],
    introspection: { access: [{ groups: ['operators'] }] },
  }));
});
afterAll(() => gateway.close());
afterEach(async () => {
  for (const flow of flows.splice(0)) await flow[Symbol.asyncDispose]();
  gateway.clearLog();
});

const getParameters = (url: URL): Fields => Object.fromEntries(url.searchParams);
const getBase = (url: URL): string => url.href.slice(0, url.href.indexOf('?'));

describe('a user approves an app', () => {
  test('the app gets a code, state and iss, and exchanges the code for a grant like any other', async () => {
    const flow = start();
    const review = await flow.reachReview();
    expect(review.text).toContain('Example App');
    expect(review.text).toContain('app.example.test');
    expect(review.text).toContain('See files');
    expect(review.text).toContain('Alice Example');
    const response = await flow.decide('approve');
    expect(getBase(response)).toBe(CALLBACK);
    expect(getParameters(response)).toEqual({
      code: expect.stringMatching(/^gha_[\w-]{65}$/),
      state: 'af0ifjsldkj',
      iss: ISSUER,
    });

    const reply = await flow.exchange(response.searchParams.get('code') ?? '');
    expect(reply.json).toMatchObject({
      token_type: 'Bearer',
      scope: 'files:read',
      expires_in: expect.any(Number),
    });
    const token = getAccessToken(reply);
    expect((await gateway.api('/files/a', token)).status).toBe(200);
    const client = createOAuthClient(gateway);
    expect((await client.introspect(token)).json).toMatchObject({
      active: true,
      sub: ALICE,
      client_id: 'app',
    });

    const refreshed = await client.refresh(String(reply.json['refresh_token']), { client_id: 'app' });
    const second = getAccessToken(refreshed);
    const listed = await flow.browser.open('/authsvc/device/grants');
    expect(listed.text).toContain('Example App');
    expect(listed.text).toContain('Approved in the browser');
    expect((await client.revoke(second)).status).toBe(200);
    expect((await gateway.api('/files/a', second)).status).toBe(401);

    expect(gateway.auditEvents('authorization_approved')).toMatchObject([
      { client: 'app', identity: ALICE, scope: 'files:read' },
    ]);
    expect(gateway.auditEvents('grant_issued')).toMatchObject([{ client: 'app', grant_type: 'code' }]);
    const written = gateway.logLines.join('\n');
    expect(written).not.toContain(response.searchParams.get('code'));
    expect(written).not.toContain(flow.pkce.verifier);
  });

  test('no page contains the code, and no response may be stored, framed or name its URL to others', async () => {
    const flow = start();
    const pages: Page[] = [await flow.authorize()];
    while (pages.at(-1)?.redirectTo !== undefined)
      pages.push(await flow.browser.get(pages.at(-1)?.redirectTo ?? ''));
    pages.push(await flow.signIn());
    pages.push(await flow.browser.post('/authsvc/device/approve'));
    const code = pages.at(-1)?.redirectTo?.match(/code=([^&]+)/)?.[1] ?? '';
    expect(code).toMatch(/^gha_/);
    for (const { text, headers, url } of pages) {
      expect(text).not.toContain(code);
      expect(headers, url).toMatchObject({
        'cache-control': 'no-store',
        'referrer-policy': 'no-referrer',
        'x-frame-options': 'DENY',
        'content-security-policy': expect.stringContaining("frame-ancestors 'none'"),
        'cross-origin-opener-policy': 'same-origin',
      });
    }
    const policies = pages.map(({ headers }) => String(headers['content-security-policy']));
    expect(policies[0]).toContain("form-action 'self';");
    expect(policies.at(-2)).toContain("form-action 'self' https:;");
  });

  test('the query of a redirect URI is kept', async () => {
    const flow = start();
    await flow.reachReview({ client_id: 'web', redirect_uri: WEB.redirectUris?.[0] ?? '' });
    expect(getParameters(await flow.decide('approve'))).toMatchObject({ from: 'gatehouse', iss: ISSUER });
  });

  test('a user who denies sends the app access_denied', async () => {
    const flow = start();
    await flow.reachReview();
    expect(getParameters(await flow.decide('deny'))).toEqual({
      error: 'access_denied',
      error_description: 'The user denied the request.',
      state: 'af0ifjsldkj',
      iss: ISSUER,
    });
    expect(gateway.auditEvents('authorization_denied')).toMatchObject([{ client: 'app', identity: ALICE }]);
  });

  test('a user without the requested access can only deny', async () => {
    const flow = start();
    const review = await flow.reachReview({ scope: 'reports:write' }, 'bob');
    expect(review.text).toContain('You can’t approve this request');
    expect(review.text).not.toContain('/approve');
    expect(getParameters(await flow.decide('deny'))).toMatchObject({ error: 'access_denied' });
  });

  test('without a scope, a user is asked for what the integration and they themselves allow', async () => {
    const flow = start();
    const review = await flow.reachReview({ scope: '' }, 'bob');
    expect(review.text).toContain('<code>files:read</code>');
    const { searchParams } = await flow.decide('approve');
    const reply = await flow.exchange(searchParams.get('code') ?? '');
    expect(reply.json).toMatchObject({ scope: 'files:read' });
    expect(gateway.auditEvents('grant_issued')).toMatchObject([{ identity: BOB }]);
  });

  test('an approval is for the displayed scope, also if the configuration has changed meanwhile', async () => {
    const flow = start();
    await flow.reachReview({ scope: '' }, 'bob');
    const widen = (extra: string) =>
      gateway.reload((settings) => ({
        ...settings,
        integrations: settings.integrations?.map((one) =>
          one.clientId === 'app'
            ? { ...one, access: [{ groups: ['operators'] }, { groups: ['readers'], scope: extra }] }
            : one,
        ),
      }));
    await widen('files:read;reports:read');
    const again = await flow.browser.post('/authsvc/device/approve');
    expect([again.status, again.text.includes('reports:read')]).toEqual([403, true]);
    expect((await flow.decide('approve')).searchParams.has('code')).toBe(true);
    await widen('files:read');
  });

  test.each(['http://127.0.0.1:51004/callback', 'http://127.0.0.1/callback'])(
    'a native app receives the code at %s',
    async (redirect_uri) => {
      const flow = start();
      const review = await flow.reachReview({ redirect_uri });
      expect(review.text).toContain('an app on this computer');
      expect(review.headers['content-security-policy']).toContain("form-action 'self' http: https:;");
      const response = await flow.decide('approve');
      expect(getBase(response)).toBe(redirect_uri);
      const code = response.searchParams.get('code') ?? '';
      expect(await flow.exchange(code, { redirect_uri: 'http://127.0.0.1:51005/callback' })).toMatchObject(
        refusal('invalid_grant'),
      );
      expect((await flow.exchange(code, { redirect_uri })).status).toBe(200);
    },
  );

  test('a native app receives the code at its private-use scheme', async () => {
    const flow = start();
    const redirect_uri = 'com.example.app:/callback';
    const review = await flow.reachReview({ redirect_uri });
    expect(review.text).toContain('the app com.example.app on this device');
    expect(review.headers['content-security-policy']).toContain("form-action 'self' com.example.app:;");
    const response = await flow.decide('approve');
    expect(getBase(response)).toBe(redirect_uri);
    const code = response.searchParams.get('code') ?? '';
    expect((await flow.exchange(code, { redirect_uri })).status).toBe(200);
  });
});

describe('an invalid request is reported to the redirect URI', () => {
  test.each<[string, string, Fields | ((flow: CodeFlow) => string)]>([
    ['response_type=token', 'unsupported_response_type', { response_type: 'token' }],
    ['no response_type', 'invalid_request', { response_type: '' }],
    ['response_mode=fragment', 'invalid_request', { response_mode: 'fragment' }],
    ['no code_challenge', 'invalid_request', { code_challenge: '', code_challenge_method: '' }],
    ['no code_challenge_method', 'invalid_request', { code_challenge_method: '' }],
    ['code_challenge_method=plain', 'invalid_request', { code_challenge_method: 'plain' }],
    ['a short code_challenge', 'invalid_request', { code_challenge: 'abc' }],
    ['a code_challenge in standard base64', 'invalid_request', { code_challenge: `${'a'.repeat(42)}+` }],
    ['a scope beyond the integration', 'invalid_scope', { scope: 'admin:manage' }],
    ['a malformed scope', 'invalid_scope', { scope: 'files:read,,' }],
    ['an unknown resource', 'invalid_target', { resource: 'https://elsewhere.example.test' }],
    ['prompt=none', 'interaction_required', { prompt: 'none' }],
    ['an unknown prompt', 'invalid_request', { prompt: 'login surprise' }],
    ['a negative max_age', 'invalid_request', { max_age: '-1' }],
    ['a request object', 'invalid_request', { request: 'eyJhbGciOiJub25lIn0.e30.' }],
    ['a malformed dpop_jkt', 'invalid_request', { dpop_jkt: 'abc' }],
    ['a state that is too long', 'invalid_request', { state: 'a'.repeat(2_000) }],
    ['a repeated scope', 'invalid_request', (flow) => `${query(flow)}&scope=files%3Aread`],
    [
      'a repeated code_challenge',
      'invalid_request',
      (flow) => `${query(flow)}&code_challenge=${'b'.repeat(43)}`,
    ],
    [
      'several resources',
      'invalid_target',
      (flow) => `${query(flow)}&resource=https%3A%2F%2Fa.test&resource=b`,
    ],
  ])('%s: %s', async (_, error, changes) => {
    const flow = start();
    const page = await flow.authorize(typeof changes === 'function' ? changes(flow) : changes);
    const response = readResponse(page);
    expect(getBase(response)).toBe(CALLBACK);
    expect(getParameters(response)).toMatchObject({
      error,
      iss: ISSUER,
      state: typeof changes === 'function' ? 'af0ifjsldkj' : (changes['state'] ?? 'af0ifjsldkj'),
    });
    expect(response.searchParams.get('error_description')).toMatch(/^[\x20-\x21\x23-\x5b\x5d-\x7e]+$/);
    expect(page.headers['set-cookie']).toBeUndefined();
  });

  test('a repeated state is not returned', async () => {
    const flow = start();
    const response = readResponse(await flow.authorize(`${query(flow)}&state=other`));
    expect(getParameters(response)).toEqual({
      error: 'invalid_request',
      error_description: expect.any(String),
      iss: ISSUER,
    });
  });

  test('unknown parameters are ignored', async () => {
    const page = await start().authorize({ nonce: 'n', ui_locales: 'de', claims: '{}', made_up: '"' });
    expect([page.status, page.redirectTo]).toEqual([
      200,
      expect.stringContaining('/authsvc/device/sign-in?request='),
    ]);
  });

  test('a client without users for authorization codes: unauthorized_client', async () => {
    const response = readResponse(await start().authorize({ client_id: 'no-users' }));
    expect(getParameters(response)).toMatchObject({ error: 'unauthorized_client' });
  });
});

const query = (flow: CodeFlow): string => new URLSearchParams(flow.parameters()).toString();

describe('nothing is sent to a redirect URI that is not registered for the client', () => {
  test.each<[string, Fields | ((flow: CodeFlow) => string)]>([
    ['an unknown client', { client_id: 'nobody' }],
    ['no client', { client_id: '' }],
    ['a client without authorization codes', { client_id: 'devices-only' }],
    ['no redirect URI', { redirect_uri: '' }],
    ['another site', { redirect_uri: 'https://evil.example.test/callback' }],
    ['the redirect URI of another client', { redirect_uri: 'https://second.example.test/callback' }],
    ['a longer path', { redirect_uri: `${CALLBACK}/more` }],
    ['a query', { redirect_uri: `${CALLBACK}?next=https://evil.example.test` }],
    ['a path with dots', { redirect_uri: 'https://app.example.test/x/../callback' }],
    ['user information', { redirect_uri: 'https://app.example.test@evil.example.test/callback' }],
    ['a longer host', { redirect_uri: 'https://app.example.test.evil.example.test/callback' }],
    ['a backslash', { redirect_uri: 'https://app.example.test\\@evil.example.test/callback' }],
    ['another letter case', { redirect_uri: 'https://App.example.test/callback' }],
    ['a fragment', { redirect_uri: `${CALLBACK}#x` }],
    ['another loopback address', { redirect_uri: 'http://127.0.0.2/callback' }],
    ['a loopback address by name', { redirect_uri: 'http://localhost:3000/callback' }],
    ['a script', { redirect_uri: 'javascript:alert(1)' }],
    ['a repeated client_id', (flow) => `${query(flow)}&client_id=second`],
    ['a repeated redirect_uri', (flow) => `${query(flow)}&redirect_uri=https%3A%2F%2Fevil.example.test`],
    ['a query that is not percent-encoded', (flow) => `${query(flow)}&x=%ff`],
  ])('%s', async (_, changes) => {
    const flow = start();
    const page = await flow.authorize(typeof changes === 'function' ? changes(flow) : changes);
    expect([page.status, page.redirectTo, page.headers['set-cookie']]).toEqual([400, undefined, undefined]);
    expect(page.text).toContain('Invalid request');
    // The other languages of the same page.
    for (const [, href = ''] of page.text.matchAll(/href="([^"]*)"/g))
      expect(href).toMatch(/^\/authsvc\/oauth2\/authorize\?/);
  });
});

describe('a code', () => {
  test('is refused with another verifier, redirect URI or client, and stays usable', async () => {
    const flow = start();
    const code = await flow.obtainCode();
    const attempts: Fields[] = [
      { code_verifier: createPkce().verifier },
      { code_verifier: flow.pkce.challenge },
      { redirect_uri: 'http://127.0.0.1/callback' },
      { redirect_uri: `${CALLBACK}/` },
      { client_id: 'second' },
      { client_id: 'second', redirect_uri: 'https://second.example.test/callback' },
    ];
    for (const attempt of attempts)
      expect(await flow.exchange(code, attempt)).toMatchObject(refusal('invalid_grant'));
    for (const attempt of [
      { code_verifier: '' },
      { code_verifier: 'short' },
      { code_verifier: `${'a'.repeat(43)}!` },
      { code_verifier: 'a'.repeat(129) },
      { redirect_uri: '' },
      { code: '' },
    ])
      expect(await flow.exchange(code, attempt)).toMatchObject(refusal('invalid_request'));
    expect((await flow.exchange(code)).status).toBe(200);
  });

  test.each<[string, (code: string) => string]>([
    ['a changed secret', (code) => `${code.slice(0, -1)}${code.endsWith('A') ? 'B' : 'A'}`],
    ['another request id', (code) => `gha_${'A'.repeat(22)}${code.slice(26)}`],
    ['a part', (code) => code.slice(0, -1)],
    ['something else', () => 'SplxlOBeZQQYbYS6WxSbIA'],
  ])('is refused with %s', async (_, change) => {
    const flow = start();
    const code = await flow.obtainCode();
    expect(await flow.exchange(change(code))).toMatchObject(refusal('invalid_grant'));
    expect((await flow.exchange(code)).status).toBe(200);
  });

  test('is valid for a minute', async () => {
    const flow = start();
    const code = await flow.obtainCode();
    gateway.clock.advance(60);
    expect(await flow.exchange(code)).toMatchObject(refusal('invalid_grant'));
  });

  test.each([
    ['at once', 0],
    ['after an hour', 3_600],
  ])('that is used again %s revokes its grant, whatever else is sent with it', async (_, seconds) => {
    const flow = start();
    const code = await flow.obtainCode();
    const first = await flow.exchange(code);
    const { refresh_token: refreshToken } = first.json;
    gateway.clock.advance(seconds);
    const renewed = await createOAuthClient(gateway).refresh(String(refreshToken), { client_id: 'app' });
    const token = getAccessToken(renewed);
    expect(await flow.exchange(code, { client_id: 'second' }), 'another client').toMatchObject(
      refusal('invalid_grant'),
    );
    expect((await gateway.api('/files/a', token)).status).toBe(200);
    expect(await flow.exchange(code, { code_verifier: createPkce().verifier })).toMatchObject(
      refusal('invalid_grant'),
    );
    expect((await gateway.api('/files/a', token)).status).toBe(401);
    expect(
      await createOAuthClient(gateway).refresh(String(renewed.json['refresh_token']), { client_id: 'app' }),
    ).toMatchObject(refusal('invalid_grant'));
    expect(gateway.auditEvents('code_replayed')).toMatchObject([{ client: 'app', identity: ALICE }]);
  });

  test('that is used several times at once gives at most one grant, which is revoked', async () => {
    const flow = start();
    const code = await flow.obtainCode();
    const replies = await Promise.all(Array.from({ length: 8 }, () => flow.exchange(code)));
    const granted = replies.filter(({ status }) => status === 200);
    expect(granted).toHaveLength(1);
    expect((await gateway.api('/files/a', String(granted[0]?.json['access_token']))).status).toBe(401);
  });

  test('is worth nothing after the grants of the user were revoked', async () => {
    const flow = start();
    const code = await flow.obtainCode();
    await gateway.server.store.revocations.announce({
      of: 'identity',
      identity: ALICE,
      notBefore: Math.floor(gateway.clock.now()) + 1,
      keepUntil: gateway.clock.now() + 1_000,
    });
    expect(await flow.exchange(code)).toMatchObject(refusal('invalid_grant'));
    gateway.clock.advance(2);
  });

  test('is worth nothing after the client lost the grant type', async () => {
    const flow = start();
    const code = await flow.obtainCode();
    const original = gateway.server.settings();
    expect(original.integrations.some(({ clientId }) => clientId === 'app')).toBe(true);
    const replace = (grants: ['device'] | ['code'], redirectUris: string[]) =>
      gateway.reload((settings) => ({
        ...settings,
        integrations: settings.integrations?.map((one) =>
          one.clientId === 'app' ? { ...one, grants, redirectUris } : one,
        ),
      }));
    await replace(['device'], []);
    expect(await flow.exchange(code)).toMatchObject(refusal('unauthorized_client'));
    await replace(['code'], APP.redirectUris ?? []);
  });

  test('is not accepted in a query', async () => {
    const flow = start();
    const code = await flow.obtainCode();
    const fields = { grant_type: 'authorization_code', client_id: 'app', redirect_uri: CALLBACK, code };
    const reply = await createOAuthClient(gateway).post(`token?code_verifier=${flow.pkce.verifier}`, fields);
    expect(reply).toMatchObject(refusal('invalid_request'));
  });
});

describe('a transaction', () => {
  test('works only in the browser in which it began', async () => {
    const [victim, attacker] = [start(), start()];
    const continued = (await attacker.authorize()).redirectTo ?? '';
    await victim.reachReview();
    const page = await victim.browser.get(continued);
    expect([page.status, page.text.includes('Request expired')]).toEqual([403, true]);
    expect((await attacker.browser.open(continued)).status).toBe(200);
  });

  test.each<[string, (url: string) => string]>([
    ['forged', (url) => `${url.slice(0, -2)}${url.endsWith('AA') ? 'BB' : 'AA'}`],
    ['truncated', (url) => url.slice(0, -10)],
    ['repeated', (url) => `${url}&request=x`],
    ['a sealed session', (url) => url.replace(/request=.*/, 'request=ghs_abcd.e30.AAAA')],
  ])('that is %s cannot be continued', async (_, change) => {
    const flow = start();
    const { redirectTo = '' } = await flow.authorize();
    expect((await flow.browser.get(change(redirectTo))).status).toBe(403);
    expect((await flow.browser.open(redirectTo)).status).toBe(200);
  });

  test('expires after ten minutes', async () => {
    const flow = start();
    const { redirectTo = '' } = await flow.authorize();
    gateway.clock.advance(601);
    const page = await flow.browser.get(redirectTo);
    expect([page.status, page.text.includes('Request expired')]).toEqual([403, true]);
  });

  test('is decided once: after approval and after denial, nothing can be decided any more', async () => {
    for (const decision of ['approve', 'deny'] as const) {
      const flow = start();
      const review = await flow.reachReview();
      const response = await flow.decide(decision);
      if (decision === 'approve')
        expect((await flow.exchange(response.searchParams.get('code') ?? '')).status).toBe(200);
      const back = await flow.browser.get(review.url);
      expect([back.status, back.text.includes('Already answered')]).toEqual([409, true]);
    }
  });

  test('that is approved by a double click gives the same code twice while it is unused', async () => {
    const flow = start();
    const review = await flow.reachReview();
    const first = await flow.decide('approve');
    const again = async (action: string) => {
      const form = new RegExp(`action="([^"]*/${action}[^"]*)">(.*?)</form>`, 's').exec(review.text);
      const body = new URLSearchParams();
      for (const [, name = '', value = ''] of (form?.[2] ?? '').matchAll(/name="([^"]+)" value="([^"]*)"/g))
        body.set(name, value);
      return flow.browser.send('POST', form?.[1] ?? '', body.toString(), {
        origin: ISSUER,
        'sec-fetch-site': 'same-origin',
      });
    };
    expect(readResponse(await again('approve')).href).toBe(first.href);
    expect((await again('deny')).status).toBe(409);
    expect((await flow.exchange(first.searchParams.get('code') ?? '')).status).toBe(200);
    expect((await again('approve')).status).toBe(409);
    expect(gateway.auditEvents('authorization_approved')).toHaveLength(1);
  });

  test('has its own forms: two tabs are decided independently, and a form of one is refused for the other', async () => {
    const flow = start();
    await flow.reachReview();
    const one = await flow.reachReview({ state: 'one' });
    const two = await flow.reachReview({ state: 'two', redirect_uri: 'http://127.0.0.1:5000/callback' });
    const token = (page: Page): string => /\/approve[^>]*>.*?value="([^"]*)"/s.exec(page.text)?.[1] ?? '';
    const approve = (url: string, form_token: string) =>
      flow.browser.send(
        'POST',
        url.replace('/review', '/approve'),
        new URLSearchParams({ form_token, scope: 'files:read' }).toString(),
        { origin: ISSUER, 'sec-fetch-site': 'same-origin' },
      );
    expect((await approve(one.url, token(two))).status).toBe(403);
    expect(readResponse(await approve(two.url, token(two))).href).toMatch(/^http:\/\/127.*state=two/);
    expect(readResponse(await approve(one.url, token(one))).href).toMatch(/^https:.*state=one/);
  });

  test('is not approved without a sign-in, with a form of another site, or with another scope', async () => {
    const flow = start();
    const review = await flow.reachReview();
    const url = review.url.replace('/review', '/approve');
    const form_token = /\/approve[^>]*>.*?value="([^"]*)"/s.exec(review.text)?.[1] ?? '';
    const send = (fields: Fields, headers: Fields = { origin: ISSUER, 'sec-fetch-site': 'same-origin' }) =>
      flow.browser.send('POST', url, new URLSearchParams(fields).toString(), headers);
    expect((await send({ scope: 'files:read' })).status).toBe(403);
    expect((await send({ form_token, scope: 'reports:write' })).status).toBe(403);
    expect(
      (
        await send(
          { form_token, scope: 'files:read' },
          { origin: 'https://evil.test', 'sec-fetch-site': 'cross-site' },
        )
      ).status,
    ).toBe(403);
    const attacker = start();
    await attacker.browser.follow(await attacker.authorize());
    expect((await attacker.browser.send('POST', url, `form_token=${form_token}`)).status).toBe(403);
    expect(gateway.auditEvents('authorization_approved')).toEqual([]);
    expect((await send({ form_token, scope: 'files:read' })).status).toBe(303);
  });

  test('continues with a sign-in after the session has ended', async () => {
    const flow = start();
    const review = await flow.reachReview();
    flow.browser.cookie = flow.browser.cookie
      .split('; ')
      .filter((cookie) => cookie.startsWith('__Host-gatehouse-browser-'))
      .join('; ');
    const posted = await flow.browser.post('/authsvc/device/approve');
    expect(posted.redirectTo).toContain('/authsvc/device/sign-in?request=');
    const page = await flow.browser.open(review.url);
    expect(page.text).toContain('name="password"');
    await flow.signIn();
    expect((await flow.decide('approve')).searchParams.has('code')).toBe(true);
  });

  test.each<[string, Fields]>([
    ['a prefetch', { 'sec-purpose': 'prefetch' }],
    ['a prerender', { 'sec-purpose': 'prefetch;prerender' }],
    ['a prefetch of an older browser', { purpose: 'prefetch' }],
    ['a script', { 'sec-fetch-mode': 'cors', 'sec-fetch-dest': 'empty' }],
    ['a frame', { 'sec-fetch-dest': 'iframe' }],
    ['an image', { 'sec-fetch-mode': 'no-cors', 'sec-fetch-dest': 'image' }],
  ])('does not begin with %s', async (_, headers) => {
    const flow = start();
    const page = await flow.authorize({}, headers);
    expect([page.status, page.redirectTo, page.headers['set-cookie']]).toEqual([403, undefined, undefined]);
  });

  test('begins with GET only', async () => {
    const flow = start();
    const body = new URLSearchParams(flow.parameters()).toString();
    const page = await flow.browser.send('POST', '/authsvc/oauth2/authorize', body, DIRECT);
    expect([page.status, page.headers['allow']]).toEqual([405, 'GET, HEAD']);
  });

  test('identifies the browser with a cookie that only this host can set, and that is not forwarded', async () => {
    const flow = start();
    const page = await flow.authorize();
    expect([page.headers['set-cookie']].flat()).toEqual([
      expect.stringMatching(
        /^__Host-gatehouse-browser-[0-9]+=ghs_.*; Path=\/; Max-Age=86400; HttpOnly; SameSite=Lax; Secure$/,
      ),
    ]);
    const reply = await gateway.api('/health', undefined, {
      headers: { cookie: `a=1; ${flow.browser.cookie}; b=2` },
    });
    expect(reply.json['headers']).toMatchObject({ cookie: 'a=1; b=2' });
  });

  test('a sign-in changes the session, so a session that an attacker has set is worth nothing', async () => {
    const flow = start();
    await flow.browser.follow(await flow.authorize());
    const before = flow.browser.cookie;
    const review = await flow.signIn();
    const after = flow.browser.cookie;
    flow.browser.cookie = before;
    const page = await flow.browser.open(review.url);
    expect(page.text).toContain('name="password"');
    flow.browser.cookie = after;
    expect((await flow.browser.open(review.url)).text).toContain('Approve');
  });
});

describe('a new sign-in', () => {
  test.each<[string, Fields, boolean]>([
    ['no parameter', {}, false],
    ['prompt=consent', { prompt: 'consent' }, false],
    ['prompt=login', { prompt: 'login' }, true],
    ['prompt=select_account', { prompt: 'select_account consent' }, true],
    ['max_age=60', { max_age: '60' }, true],
    ['max_age=3600', { max_age: '3600' }, false],
  ])('%s: required is %s', async (_, changes, isRequired) => {
    const flow = start();
    await flow.reachReview();
    gateway.clock.advance(120);
    const page = await flow.browser.follow(await flow.authorize(changes));
    expect(page.text.includes('name="password"')).toBe(isRequired);
    if (isRequired) await flow.signIn();
    expect((await flow.decide('approve')).searchParams.has('code')).toBe(true);
  });

  test('cannot be skipped by sending the form of the approval', async () => {
    const flow = start();
    await flow.reachReview();
    gateway.clock.advance(120);
    const { redirectTo = '' } = await flow.authorize({ prompt: 'login' });
    const review = await flow.browser.get(redirectTo.replace('/sign-in', '/review'));
    expect(review.redirectTo).toContain('/sign-in');
    const form_token = 'any';
    const posted = await flow.browser.send(
      'POST',
      redirectTo.replace('/sign-in', '/approve'),
      `form_token=${form_token}`,
      {
        origin: ISSUER,
        'sec-fetch-site': 'same-origin',
      },
    );
    expect(posted.status).toBe(403);
  });
});

describe('client authentication', () => {
  const callback = WEB.redirectUris?.[0] ?? '';

  test('a client with a secret must present it, and refreshes with it', async () => {
    const flow = start();
    const code = await flow.obtainCode({ client_id: 'web', redirect_uri: callback });
    const fields = { client_id: 'web', redirect_uri: callback };
    expect(await flow.exchange(code, fields)).toMatchObject(refusal('invalid_client', 401));
    expect(await flow.exchange(code, { ...fields, client_secret: `${SECRET}x` })).toMatchObject(
      refusal('invalid_client', 401),
    );
    const authorization = `Basic ${Buffer.from(`web:${SECRET}`).toString('base64')}`;
    const reply = await flow.exchange(code, { ...fields, client_id: '' }, { headers: { authorization } });
    expect(reply.status, reply.text).toBe(200);
    const refresh = { client_id: 'web' };
    const client = createOAuthClient(gateway);
    expect(await client.refresh(String(reply.json['refresh_token']), refresh)).toMatchObject(
      refusal('invalid_client', 401),
    );
    const renewed = await client.refresh(String(reply.json['refresh_token']), {
      ...refresh,
      client_secret: SECRET,
    });
    expect(renewed.status).toBe(200);
  });

  test('a client with a key signs an assertion', async () => {
    const flow = start();
    const code = await flow.obtainCode({ client_id: 'signing' });
    const assertion = await signForeign(key, {
      iss: 'signing',
      sub: 'signing',
      aud: ISSUER,
      exp: Math.floor(gateway.clock.now()) + 60,
      jti: 'code-1',
    });
    const reply = await flow.exchange(code, {
      client_id: '',
      client_assertion: assertion,
      client_assertion_type: 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer',
    });
    expect(reply.status, reply.text).toBe(200);
  });
});

describe('resource', () => {
  test('selects the audience; the token is refused elsewhere, and the token request cannot change it', async () => {
    const flow = start();
    const resource = 'https://other.example.test';
    const code = await flow.obtainCode({ client_id: 'several', resource });
    const fields = { client_id: 'several' };
    expect(await flow.exchange(code, { ...fields, resource: 'https://api.example.test' })).toMatchObject(
      refusal('invalid_target'),
    );
    const reply = await flow.exchange(code, { ...fields, resource });
    const token = getAccessToken(reply);
    const { aud } = JSON.parse(Buffer.from(token.split('.')[1] ?? '', 'base64url').toString()) as {
      aud: string;
    };
    expect(aud).toBe(resource);
    expect((await gateway.api('/files/a', token)).status).toBe(401);
  });

  test('without one, the code is for the default audience, and a token request for another is refused', async () => {
    const flow = start();
    const code = await flow.obtainCode({ client_id: 'several' });
    const fields = { client_id: 'several' };
    expect(await flow.exchange(code, { ...fields, resource: 'https://other.example.test' })).toMatchObject(
      refusal('invalid_target'),
    );
    expect((await flow.exchange(code, { ...fields, resource: 'https://api.example.test' })).status).toBe(200);
  });

  test('the URL of the API and of a path of it are the default audience', async () => {
    const flow = start();
    const code = await flow.obtainCode({ resource: `${ISSUER}/files/a` });
    const token = getAccessToken(await flow.exchange(code, { resource: `${ISSUER}/files/a` }));
    expect((await gateway.api('/files/a', token)).status).toBe(200);
  });
});

describe('pushed authorization requests', () => {
  const push = async (flow: CodeFlow, changes: Fields = {}, more: Fields = {}) =>
    createOAuthClient(gateway).post('par', { ...flow.parameters(changes), ...more });
  const open = (flow: CodeFlow, requestUri: unknown, clientId = 'app') =>
    flow.authorize(new URLSearchParams({ client_id: clientId, request_uri: String(requestUri) }).toString());

  test('the request is taken from the request_uri, and other parameters are ignored', async () => {
    const flow = start();
    const reply = await push(flow);
    expect([reply.status, reply.json]).toEqual([
      201,
      { request_uri: expect.stringMatching(/^urn:ietf:params:oauth:request_uri:ghe_/), expires_in: 90 },
    ]);
    const requestUri = String(reply.json['request_uri']);
    expect(Buffer.from(requestUri.split('.')[1] ?? '', 'base64url').toString('latin1')).not.toContain(
      'app.example',
    );
    await flow.reachReview(
      new URLSearchParams({
        client_id: 'app',
        request_uri: requestUri,
        redirect_uri: 'https://evil.example.test',
        scope: 'reports:write',
        state: 'other',
      }).toString(),
    );
    const response = await flow.decide('approve');
    expect(getBase(response)).toBe(CALLBACK);
    expect(response.searchParams.get('state')).toBe('af0ifjsldkj');
    expect((await flow.exchange(response.searchParams.get('code') ?? '')).json).toMatchObject({
      scope: 'files:read',
    });
  });

  test('a request_uri is decided once, although a page can be reloaded', async () => {
    const flow = start();
    const { request_uri: requestUri } = (await push(flow)).json;
    await flow.browser.follow(await open(flow, requestUri));
    await flow.signIn();
    await flow.browser.follow(await open(flow, requestUri));
    expect((await flow.decide('approve')).searchParams.has('code')).toBe(true);
    expect((await flow.browser.follow(await open(flow, requestUri))).text).toContain('Already answered');
  });

  test('a request_uri is refused on a page after 90 seconds, for another client, and if it is forged', async () => {
    const flow = start();
    const { request_uri: requestUri } = (await push(flow)).json;
    const forged = `${String(requestUri).slice(0, -4)}AAAA`;
    for (const page of [
      await open(flow, requestUri, 'second'),
      await open(flow, forged),
      await open(flow, 'https://evil.example.test/request.jwt'),
      await open(flow, 'urn:ietf:params:oauth:request_uri:x'),
    ])
      expect([page.status, page.redirectTo]).toEqual([400, undefined]);
    gateway.clock.advance(91);
    expect((await open(flow, requestUri)).status).toBe(400);
  });

  test('an invalid request, a nested request_uri and a client without its secret are refused', async () => {
    const flow = start();
    expect(await push(flow, { redirect_uri: 'https://evil.example.test' })).toMatchObject(
      refusal('invalid_request'),
    );
    expect(await push(flow, { code_challenge_method: 'plain' })).toMatchObject(refusal('invalid_request'));
    expect(await push(flow, { scope: 'admin:manage' })).toMatchObject(refusal('invalid_scope'));
    expect(await push(flow, { prompt: 'none' })).toMatchObject(refusal('interaction_required'));
    expect(await push(flow, { response_type: 'token' })).toMatchObject(refusal('unsupported_response_type'));
    expect(await push(flow, { client_id: 'devices-only' })).toMatchObject(refusal('unauthorized_client'));
    expect(await push(flow, { client_id: 'nobody' })).toMatchObject(refusal('invalid_client'));
    expect(await push(flow, {}, { request_uri: 'urn:x' })).toMatchObject(refusal('invalid_request'));
    const web = { client_id: 'web', redirect_uri: WEB.redirectUris?.[0] ?? '' };
    expect(await push(flow, web)).toMatchObject(refusal('invalid_client', 401));
    expect((await push(flow, web, { client_secret: SECRET })).status).toBe(201);
  });
});

describe('metadata', () => {
  test('has the endpoints, and the iss of a response is the issuer whose metadata names the endpoint', async () => {
    const read = async (path: string) =>
      (await gateway.request({ path: `/.well-known/oauth-authorization-server${path}` })).json;
    expect(await read('')).toMatchObject({
      issuer: ISSUER,
      authorization_endpoint: `${ISSUER}/authsvc/oauth2/authorize`,
      pushed_authorization_request_endpoint: `${ISSUER}/authsvc/oauth2/par`,
      response_types_supported: ['code'],
      response_modes_supported: ['query'],
      code_challenge_methods_supported: ['S256'],
      authorization_response_iss_parameter_supported: true,
      grant_types_supported: expect.arrayContaining(['authorization_code']),
    });
    const { issuer, authorization_endpoint: endpoint } = await read('/authsvc');
    const flow = start();
    const url = new URL(String(endpoint));
    for (const [name, value] of Object.entries(flow.parameters({ prompt: 'none' })))
      url.searchParams.set(name, value);
    const response = readResponse(await flow.browser.get(url.href));
    expect(response.searchParams.get('iss')).toBe(issuer);
    const other = await flow.authorize({ prompt: 'none', issuer_path: '.evil.example.test' });
    expect(readResponse(other).searchParams.get('iss')).toBe(ISSUER);
  });

  test('has none of them where no integration allows authorization codes, and the endpoint is not found', async () => {
    await using plain = { gateway: await startGateway(), [Symbol.asyncDispose]: () => plain.gateway.close() };
    const { json } = await plain.gateway.request({ path: '/.well-known/oauth-authorization-server' });
    expect(json).toMatchObject({ response_types_supported: [] });
    expect(json).not.toHaveProperty('authorization_endpoint');
    expect((await plain.gateway.request({ path: '/authsvc/oauth2/authorize?client_id=app' })).status).toBe(
      404,
    );
    const reply = await createOAuthClient(plain.gateway).post('token', {
      grant_type: 'authorization_code',
      code: 'x',
    });
    expect(reply).toMatchObject(refusal('unsupported_grant_type'));
  });
});

describe('apps in browsers', () => {
  const preflight = (path: string, origin: string) =>
    gateway.request({
      path,
      method: 'OPTIONS',
      headers: { origin, 'access-control-request-method': 'POST', 'access-control-request-headers': 'dpop' },
    });

  test.each(['/authsvc/oauth2/token', '/authsvc/oauth2/par', '/authsvc/oauth2/revoke'])(
    'may call %s from the origin of a redirect URI, and from no other',
    async (path) => {
      for (const origin of ['https://app.example.test', 'http://127.0.0.1:5173']) {
        const reply = await preflight(path, origin);
        expect([reply.status, reply.headers['access-control-allow-origin']]).toEqual([204, origin]);
        expect(reply.headers['access-control-allow-credentials']).toBeUndefined();
        const posted = await gateway.request({ path, method: 'POST', headers: { origin } });
        expect(posted.headers).toMatchObject({ 'access-control-allow-origin': origin, vary: 'Origin' });
      }
      for (const origin of [
        'https://evil.example.test',
        'https://app.example.test.evil.test',
        'null',
        'http://localhost:5173',
      ])
        expect((await preflight(path, origin)).headers['access-control-allow-origin']).toBeUndefined();
    },
  );

  test('may read metadata, and not the pages', async () => {
    const origin = 'https://app.example.test';
    for (const path of [
      '/.well-known/oauth-authorization-server',
      '/.well-known/oauth-protected-resource',
      '/authsvc/oauth2/jwks',
    ]) {
      const reply = await gateway.request({ path, headers: { origin } });
      expect([reply.status, reply.headers['access-control-allow-origin']]).toEqual([200, origin]);
    }
    for (const path of ['/authsvc/device', '/authsvc/oauth2/authorize', '/authsvc/oauth2/introspect'])
      expect(
        (await gateway.request({ path, headers: { origin } })).headers['access-control-allow-origin'],
      ).toBeUndefined();
  });
});

describe('while the store is unreachable', () => {
  test('an approval and an exchange fail temporarily, and succeed later', async () => {
    const flow = start();
    await flow.reachReview();
    const { notes, grants } = gateway.server.store;
    const failed = await withFailure(notes, 'create', 'not executed', () =>
      flow.browser.post('/authsvc/device/approve'),
    );
    expect(failed.status).toBe(503);
    const code = await flow.obtainCode();
    for (const [store, name] of [
      [grants, 'read'],
      [notes, 'read'],
      [grants, 'create'],
    ] as const)
      expect(
        await withFailure(store, name as 'read', 'not executed', () => flow.exchange(code)),
        name,
      ).toMatchObject(refusal('temporarily_unavailable', 503));
    expect((await flow.exchange(code)).status).toBe(200);
  });

  test('a code whose grant was written before the failure is spent: the repeated request revokes the grant', async () => {
    const flow = start();
    const code = await flow.obtainCode();
    const { grants } = gateway.server.store;
    const failed = await withFailure(grants, 'create', 'response lost', () => flow.exchange(code));
    expect(failed).toMatchObject(refusal('temporarily_unavailable', 503));
    expect(await flow.exchange(code)).toMatchObject(refusal('invalid_grant'));
    expect(gateway.auditEvents('code_replayed')).toHaveLength(1);
  });
});
