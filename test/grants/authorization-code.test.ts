import { describe, expect, test } from 'vitest';
import { APP, CALLBACK, createPkce, type Fields, ISSUER, SECRET, WEB } from '../support/code-client.ts';
import { withFailure } from '../support/fault-injection.ts';
import { signForeign } from '../support/foreign-issuer.ts';
import type { Page } from '../support/form-browser.ts';
import { createOAuthClient, getAccessToken, refusal } from '../support/oauth-client.ts';
import { ALICE, BOB } from '../support/test-gateway.ts';
import { getBase, getParameters, SIGNING_KEY, useCodeGateway } from './code-gateway.ts';

const at = useCodeGateway();

describe('a user approves an app', () => {
  test('the app gets a code, state and iss, and exchanges the code for a grant like any other', async () => {
    const flow = at.start();
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
    expect((await at.gateway.api('/files/a', token)).status).toBe(200);
    const client = createOAuthClient(at.gateway);
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
    expect((await at.gateway.api('/files/a', second)).status).toBe(401);

    expect(at.gateway.auditEvents('authorization_approved')).toMatchObject([
      { client: 'app', identity: ALICE, scope: 'files:read' },
    ]);
    expect(at.gateway.auditEvents('grant_issued')).toMatchObject([{ client: 'app', grant_type: 'code' }]);
    const written = at.gateway.logLines.join('\n');
    expect(written).not.toContain(response.searchParams.get('code'));
    expect(written).not.toContain(flow.pkce.verifier);
  });

  test('no page contains the code, and no response may be stored, framed or name its URL to others', async () => {
    const flow = at.start();
    const pages: Page[] = [await flow.authorize()];
    while (pages.at(-1)?.redirectTo !== undefined) pages.push(await flow.browser.get(pages.at(-1)?.redirectTo ?? ''));
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
    const flow = at.start();
    await flow.reachReview({ client_id: 'web', redirect_uri: WEB.redirectUris?.[0] ?? '' });
    expect(getParameters(await flow.decide('approve'))).toMatchObject({ from: 'gatehouse', iss: ISSUER });
  });

  test('a user who denies sends the app access_denied', async () => {
    const flow = at.start();
    await flow.reachReview();
    expect(getParameters(await flow.decide('deny'))).toEqual({
      error: 'access_denied',
      error_description: 'The user denied the request.',
      state: 'af0ifjsldkj',
      iss: ISSUER,
    });
    expect(at.gateway.auditEvents('authorization_denied')).toMatchObject([{ client: 'app', identity: ALICE }]);
  });

  test('a user without the requested access can only deny', async () => {
    const flow = at.start();
    const review = await flow.reachReview({ scope: 'reports:write' }, 'bob');
    expect(review.text).toContain('You can’t approve this request');
    expect(review.text).not.toContain('/approve');
    expect(getParameters(await flow.decide('deny'))).toMatchObject({ error: 'access_denied' });
  });

  test('without a scope, a user is asked for what the integration and they themselves allow', async () => {
    const flow = at.start();
    const review = await flow.reachReview({ scope: '' }, 'bob');
    expect(review.text).toContain('<code>files:read</code>');
    const { searchParams } = await flow.decide('approve');
    const reply = await flow.exchange(searchParams.get('code') ?? '');
    expect(reply.json).toMatchObject({ scope: 'files:read' });
    expect(at.gateway.auditEvents('grant_issued')).toMatchObject([{ identity: BOB }]);
  });

  test('an approval is for the displayed scope, also if the configuration has changed meanwhile', async () => {
    const flow = at.start();
    await flow.reachReview({ scope: '' }, 'bob');
    const widen = (extra: string) =>
      at.gateway.reload((settings) => ({
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
      const flow = at.start();
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
    const flow = at.start();
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

describe('a code', () => {
  test('is refused with another verifier, redirect URI or client, and stays usable', async () => {
    const flow = at.start();
    const code = await flow.obtainCode();
    const attempts: Fields[] = [
      { code_verifier: createPkce().verifier },
      { code_verifier: flow.pkce.challenge },
      { redirect_uri: 'http://127.0.0.1/callback' },
      { redirect_uri: `${CALLBACK}/` },
      { client_id: 'second' },
      { client_id: 'second', redirect_uri: 'https://second.example.test/callback' },
    ];
    for (const attempt of attempts) expect(await flow.exchange(code, attempt)).toMatchObject(refusal('invalid_grant'));
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
    const flow = at.start();
    const code = await flow.obtainCode();
    expect(await flow.exchange(change(code))).toMatchObject(refusal('invalid_grant'));
    expect((await flow.exchange(code)).status).toBe(200);
  });

  test('is valid for a minute', async () => {
    const flow = at.start();
    const code = await flow.obtainCode();
    at.gateway.clock.advance(60);
    expect(await flow.exchange(code)).toMatchObject(refusal('invalid_grant'));
  });

  test.each([
    ['at once', 0],
    ['after an hour', 3_600],
  ])('that is used again %s revokes its grant, whatever else is sent with it', async (_, seconds) => {
    const flow = at.start();
    const code = await flow.obtainCode();
    const first = await flow.exchange(code);
    const { refresh_token: refreshToken } = first.json;
    at.gateway.clock.advance(seconds);
    const renewed = await createOAuthClient(at.gateway).refresh(String(refreshToken), { client_id: 'app' });
    const token = getAccessToken(renewed);
    expect(await flow.exchange(code, { client_id: 'second' }), 'another client').toMatchObject(
      refusal('invalid_grant'),
    );
    expect((await at.gateway.api('/files/a', token)).status).toBe(200);
    expect(await flow.exchange(code, { code_verifier: createPkce().verifier })).toMatchObject(refusal('invalid_grant'));
    expect((await at.gateway.api('/files/a', token)).status).toBe(401);
    expect(
      await createOAuthClient(at.gateway).refresh(String(renewed.json['refresh_token']), {
        client_id: 'app',
      }),
    ).toMatchObject(refusal('invalid_grant'));
    expect(at.gateway.auditEvents('code_replayed')).toMatchObject([{ client: 'app', identity: ALICE }]);
  });

  test('that is used several times at once gives at most one grant, which is revoked', async () => {
    const flow = at.start();
    const code = await flow.obtainCode();
    const replies = await Promise.all(Array.from({ length: 8 }, () => flow.exchange(code)));
    const granted = replies.filter(({ status }) => status === 200);
    expect(granted).toHaveLength(1);
    expect((await at.gateway.api('/files/a', String(granted[0]?.json['access_token']))).status).toBe(401);
  });

  test('is worth nothing after the grants of the user were revoked', async () => {
    const flow = at.start();
    const code = await flow.obtainCode();
    await at.gateway.server.store.revocations.announce({
      of: 'identity',
      identity: ALICE,
      notBefore: Math.floor(at.gateway.clock.now()) + 1,
      keepUntil: at.gateway.clock.now() + 1_000,
    });
    expect(await flow.exchange(code)).toMatchObject(refusal('invalid_grant'));
    at.gateway.clock.advance(2);
  });

  test('is worth nothing after the client lost the grant type', async () => {
    const flow = at.start();
    const code = await flow.obtainCode();
    const original = at.gateway.server.settings();
    expect(original.integrations.some(({ clientId }) => clientId === 'app')).toBe(true);
    const replace = (grants: ['device'] | ['code'], redirectUris: string[]) =>
      at.gateway.reload((settings) => ({
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
    const flow = at.start();
    const code = await flow.obtainCode();
    const fields = { grant_type: 'authorization_code', client_id: 'app', redirect_uri: CALLBACK, code };
    const reply = await createOAuthClient(at.gateway).post(`token?code_verifier=${flow.pkce.verifier}`, fields);
    expect(reply).toMatchObject(refusal('invalid_request'));
  });
});

describe('client authentication', () => {
  const callback = WEB.redirectUris?.[0] ?? '';

  test('a client with a secret must present it, and refreshes with it', async () => {
    const flow = at.start();
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
    const client = createOAuthClient(at.gateway);
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
    const flow = at.start();
    const code = await flow.obtainCode({ client_id: 'signing' });
    const assertion = await signForeign(SIGNING_KEY, {
      iss: 'signing',
      sub: 'signing',
      aud: ISSUER,
      exp: Math.floor(at.gateway.clock.now()) + 60,
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
    const flow = at.start();
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
    expect((await at.gateway.api('/files/a', token)).status).toBe(401);
  });

  test('without one, the code is for the default audience, and a token request for another is refused', async () => {
    const flow = at.start();
    const code = await flow.obtainCode({ client_id: 'several' });
    const fields = { client_id: 'several' };
    expect(await flow.exchange(code, { ...fields, resource: 'https://other.example.test' })).toMatchObject(
      refusal('invalid_target'),
    );
    expect((await flow.exchange(code, { ...fields, resource: 'https://api.example.test' })).status).toBe(200);
  });

  test.each([
    ['a path of it', `${ISSUER}/files/a`, `${ISSUER}/files/a`],
    ['the API itself', ISSUER, ISSUER],
    // Clients that parse the resource as a URL add the slash (the MCP SDKs, at an endpoint without a path).
    ['the API itself, with a slash', `${ISSUER}/`, `${ISSUER}/`],
    ['one with and one without a slash', `${ISSUER}/`, ISSUER],
  ])('the URL of the API is the default audience: %s', async (_, requested, exchanged) => {
    const flow = at.start();
    const code = await flow.obtainCode({ resource: requested });
    const reply = await flow.exchange(code, { resource: exchanged });
    expect((await at.gateway.api('/files/a', getAccessToken(reply))).status).toBe(200);
    const refreshToken = String(reply.json['refresh_token']);
    const fields = { client_id: 'app', resource: requested };
    expect((await createOAuthClient(at.gateway).refresh(refreshToken, fields)).status).toBe(200);
  });
});

describe('while the store is unreachable', () => {
  test('an approval and an exchange fail temporarily, and succeed later', async () => {
    const flow = at.start();
    await flow.reachReview();
    const { notes, grants } = at.gateway.server.store;
    const failed = await withFailure(notes, 'create', 'not executed', () =>
      flow.browser.post('/authsvc/device/approve'),
    );
    expect(failed.status).toBe(503);
    expect(failed.text).toContain('The app’s request remains valid for a few minutes.');
    expect(failed.text).toMatch(/href="\/authsvc\/device\/review\?request=[^"]+">Try again/);
    const code = await flow.obtainCode();
    for (const [store, name] of [
      [grants, 'read'],
      [notes, 'read'],
      [grants, 'create'],
    ] as const)
      expect(await withFailure(store, name as 'read', 'not executed', () => flow.exchange(code)), name).toMatchObject(
        refusal('temporarily_unavailable', 503),
      );
    expect((await flow.exchange(code)).status).toBe(200);
  });

  test('a code whose grant was written before the failure is spent: the repeated request revokes the grant', async () => {
    const flow = at.start();
    const code = await flow.obtainCode();
    const { grants } = at.gateway.server.store;
    const failed = await withFailure(grants, 'create', 'response lost', () => flow.exchange(code));
    expect(failed).toMatchObject(refusal('temporarily_unavailable', 503));
    expect(await flow.exchange(code)).toMatchObject(refusal('invalid_grant'));
    expect(at.gateway.auditEvents('code_replayed')).toHaveLength(1);
  });
});
