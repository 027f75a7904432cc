import { describe, expect, test } from 'vitest';
import { CALLBACK, type Fields, ISSUER, readResponse, withCodeClients } from '../support/code-client.ts';
import { createOAuthClient, getAccessToken, refusal } from '../support/oauth-client.ts';
import { useCodeGateway } from './code-gateway.ts';

/** Attacks with the parameters of the authorization endpoint, forward-auth, and secrets in the log. */
const at = useCodeGateway((settings) => ({ ...withCodeClients(settings), trustedProxies: ['127.0.0.1'] }));

describe('state', () => {
  test('with control characters, quotes or other scripts is refused, and returned encoded: nothing is injected', async () => {
    const flow = at.start();
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
    const flow = at.start();
    const state = 'x&code=stolen&iss=https://evil.example.test#code=y"\'<script>';
    await flow.reachReview({ state });
    const response = await flow.decide('approve');
    expect(response.searchParams.get('state')).toBe(state);
    expect(response.searchParams.getAll('code')).toHaveLength(1);
    expect([response.searchParams.getAll('iss'), response.hash]).toEqual([[ISSUER], '']);
  });

  test('that is too long is refused at the redirect URI, and a longer URL by the listener', async () => {
    const flow = at.start();
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
    ['a resource that begins like the public URL', { resource: `${ISSUER}.evil.example.test` }, 'invalid_target'],
    ['a resource with user information', { resource: `https://localhost:8443@evil.example.test/` }, 'invalid_target'],
    ['resource and audience that differ', { resource: ISSUER, audience: 'x' }, 'invalid_target'],
    ['prompt none with login', { prompt: 'none login' }, 'interaction_required'],
    ['an unknown prompt', { prompt: 'create' }, 'invalid_request'],
    ['a negative max_age', { max_age: '-1' }, 'invalid_request'],
    ['a max_age that is not a number', { max_age: '1e3' }, 'invalid_request'],
    ['a thumbprint of the wrong length', { dpop_jkt: 'x' }, 'invalid_request'],
  ])('%s', async (_, changes, error) => {
    const flow = at.start();
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
    expect(await createOAuthClient(at.gateway).post('par', flow.parameters(changes))).toMatchObject(refusal(error));
  });

  test.each(['state', 'scope', 'code_challenge', 'response_type', 'resource', 'prompt', 'request'])(
    'a repeated %s is refused, whichever value would be valid',
    async (name) => {
      const flow = at.start();
      const query = `${new URLSearchParams(flow.parameters()).toString()}&${name}=a&${name}=b`;
      const { searchParams } = readResponse(await flow.authorize(query));
      expect(searchParams.get('error')).toMatch(/^invalid_(request|target)$/);
      expect(searchParams.has('code')).toBe(false);
    },
  );
});

test('at forward-auth, the authorization endpoint and the pages are not a part of the API', async () => {
  const flow = at.start();
  const token = getAccessToken(await flow.exchange(await flow.obtainCode()));
  const review = await flow.reachReview();
  const query = new URLSearchParams(flow.parameters()).toString();
  for (const uri of [`/authsvc/oauth2/authorize?${query}`, new URL(review.url).pathname])
    for (const method of ['GET', 'POST']) {
      const reply = await at.gateway.request({
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
      expect([reply.status, reply.headers['set-cookie'], reply.headers.location]).toEqual([403, undefined, undefined]);
    }
});

test('no log line at level debug has a code, state, challenge, verifier, transaction, request_uri or token', async () => {
  const flow = at.start();
  const state = 'the-state-of-the-app-0123456789';
  const pushed = await createOAuthClient(at.gateway).post('par', flow.parameters({ state }));
  const requestUri = String(pushed.json['request_uri']);
  const begun = await flow.authorize(new URLSearchParams({ client_id: 'app', request_uri: requestUri }).toString());
  const transaction = new URL(begun.redirectTo ?? '').searchParams.get('request') ?? '';
  await flow.reachReview({ state });
  const response = await flow.decide('approve');
  const code = response.searchParams.get('code') ?? '';
  await flow.exchange(code, { code_verifier: 'x'.repeat(43) });
  await flow.exchange(code, { redirect_uri: 'https://evil.example.test/callback' });
  const granted = await flow.exchange(code);
  const { access_token: accessToken, refresh_token: refreshToken } = granted.json;
  await createOAuthClient(at.gateway).refresh(String(refreshToken), { client_id: 'app' });
  await flow.exchange(code);
  await flow.authorize({ state, prompt: 'none' });
  await flow.authorize({ state, redirect_uri: `https://evil.example.test/?code=${code}` });
  await at.gateway.request({ path: `/authsvc/oauth2/token?code=${code}&state=${state}`, method: 'POST' });
  const written = at.gateway.logLines.join('\n');
  expect(at.gateway.auditEvents('code_replayed')).toHaveLength(1);
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
