import { describe, expect, test } from 'vitest';
import { CALLBACK, type CodeFlow, type Fields, ISSUER, readResponse, SECRET, WEB } from '../support/code-client.ts';
import { createOAuthClient, refusal } from '../support/oauth-client.ts';
import { withIntegration, withSettings } from '../support/reconfigure.ts';
import { getBase, getParameters, useCodeGateway } from './code-gateway.ts';

const at = useCodeGateway();
const query = (flow: CodeFlow): string => new URLSearchParams(flow.parameters()).toString();

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
    ['a repeated code_challenge', 'invalid_request', (flow) => `${query(flow)}&code_challenge=${'b'.repeat(43)}`],
    ['several resources', 'invalid_target', (flow) => `${query(flow)}&resource=https%3A%2F%2Fa.test&resource=b`],
  ])('%s: %s', async (_, error, changes) => {
    const flow = at.start();
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
    const flow = at.start();
    const response = readResponse(await flow.authorize(`${query(flow)}&state=other`));
    expect(getParameters(response)).toEqual({
      error: 'invalid_request',
      error_description: expect.any(String),
      iss: ISSUER,
    });
  });

  test('unknown parameters are ignored', async () => {
    const page = await at.start().authorize({ nonce: 'n', ui_locales: 'de', claims: '{}', made_up: '"' });
    expect([page.status, page.redirectTo]).toEqual([200, expect.stringContaining('/authsvc/device/sign-in?request=')]);
  });

  test('a client without users for authorization codes: unauthorized_client', async () => {
    const response = readResponse(await at.start().authorize({ client_id: 'no-users' }));
    expect(getParameters(response)).toMatchObject({ error: 'unauthorized_client' });
  });
});

describe('a client with partialScope that requests every scope of the API', () => {
  const client_id = 'partial';
  const scope = 'admin:manage files:read reports:write';

  test.each([
    ['alice', 'files:read reports:write'],
    ['bob', 'files:read'],
  ])('%s is asked for what the integration and the user allow: %s', async (userName, granted) => {
    const flow = at.start();
    await flow.reachReview({ client_id, scope }, userName);
    const { searchParams } = await flow.decide('approve');
    const reply = await flow.exchange(searchParams.get('code') ?? '', { client_id });
    expect(reply.json).toMatchObject({ scope: granted });
  });

  test('a user to whom nothing of it is allowed can only deny, and a scope beyond the integration is refused', async () => {
    const flow = at.start();
    const review = await flow.reachReview({ client_id, scope: 'admin:manage reports:write' }, 'bob');
    expect(review.text).not.toContain('/approve');
    const refused = readResponse(await flow.authorize({ client_id, scope: 'admin:manage' }));
    expect(getParameters(refused)).toMatchObject({ error: 'invalid_scope' });
  });
});

describe('a resource of which partialScope leaves no permission', () => {
  const client_id = 'partial';

  test.each([
    ['alice', 'files:delete reports:read', 'reports:read'],
    ['bob', 'reports:write files:read', 'files:read'],
    ['bob', 'files:delete,read reports:read', 'files:read'],
    // Requested without permissions, it is covered.
    ['alice', 'files reports:delete', 'files'],
  ])('%s, %s: is dropped, and %s is granted', async (userName, scope, granted) => {
    const flow = at.start();
    await flow.reachReview({ client_id, scope }, userName);
    const { searchParams } = await flow.decide('approve');
    const reply = await flow.exchange(searchParams.get('code') ?? '', { client_id });
    expect(reply.json).toMatchObject({ scope: granted });
  });

  test('if no resource is left, the request is refused', async () => {
    const flow = at.start();
    const refused = readResponse(await flow.authorize({ client_id, scope: 'files:delete reports:delete' }));
    expect(getParameters(refused)).toMatchObject({ error: 'invalid_scope' });
    const access = [{ groups: ['readers'], scope: 'reports:read' }];
    await withSettings(at.gateway, withIntegration(client_id, { access }), async () => {
      const review = await flow.reachReview({ client_id, scope: 'reports:write' }, 'bob');
      expect(review.text).toContain('You can’t approve this request');
      expect(review.text).not.toContain('/approve');
    });
  });
});

test('partialScope asks for nothing beyond the integration, also if its scope was reduced after the request', async () => {
  const flow = at.start();
  const client_id = 'partial';
  const { url } = await flow.reachReview({ client_id, scope: 'files:read reports:read,write' });
  const reduced = withIntegration(client_id, {
    scope: 'files:read;reports:read',
    access: [{ groups: ['operators'] }],
  });
  await withSettings(at.gateway, reduced, async () => {
    expect((await flow.browser.get(url)).text).toContain('<code>files:read;reports:read</code>');
    const { searchParams } = await flow.decide('approve');
    const reply = await flow.exchange(searchParams.get('code') ?? '', { client_id });
    expect(reply.json).toMatchObject({ scope: 'files:read reports:read' });
  });
});

test('a scope that partialScope narrows is not longer than requested, and one that is too long is named', async () => {
  const flow = at.start();
  const permissions = Array.from({ length: 100 }, (_, index) => `p${index}`).join(',');
  const client_id = 'partial';
  const scope = `long-resource-name:${permissions}`;
  const access = [{ groups: ['operators'] }];
  await withSettings(at.gateway, withIntegration(client_id, { scope, access }), async () => {
    const page = await flow.authorize({ client_id, scope: `${scope} other:read` });
    expect(page.redirectTo).toContain('/sign-in?request=');
  });
  const { searchParams } = readResponse(await flow.authorize({ state: 'a'.repeat(2_000) }));
  expect(searchParams.get('error_description')).toContain('use a shorter scope or state');
});

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
    const flow = at.start();
    const page = await flow.authorize(typeof changes === 'function' ? changes(flow) : changes);
    expect([page.status, page.redirectTo, page.headers['set-cookie']]).toEqual([400, undefined, undefined]);
    expect(page.text).toContain('Invalid request');
    // The other languages of the same page.
    for (const [, href = ''] of page.text.matchAll(/href="([^"]*)"/g))
      expect(href).toMatch(/^\/authsvc\/oauth2\/authorize\?/);
  });
});

test.each([
  ['en', 'Contact the app’s developer or the administrator of this service.'],
  ['de', 'Wenden Sie sich an den Entwickler der Anwendung oder an den Administrator dieses Dienstes.'],
  ['fr', 'Contactez le développeur de l’application ou l’administrateur de ce service.'],
  ['es', 'con el desarrollador de la aplicación o con el administrador de este servicio.'],
])('the page for an app that is not registered says in %s whom to contact', async (language, text) => {
  for (const changes of [
    { client_id: 'nobody' },
    { client_id: 'devices-only' },
    { redirect_uri: 'https://evil.example.test/callback' },
  ] as const) {
    const page = await at.start().authorize(changes, { 'accept-language': language });
    expect(page.text).toContain(text);
    const refused = at.gateway.log.findLast(({ event }) => event === 'authorization_request_refused');
    expect(page.text).toContain(`: ${String(refused?.['request_id'])}<`);
  }
});

describe('the log names the client and the redirect URI of a refused request', () => {
  const lastRefusal = () => at.gateway.log.findLast(({ event }) => event === 'authorization_request_refused');
  const missing = '(missing or repeated)';

  test.each<[string, Fields | ((flow: CodeFlow) => string), Fields]>([
    ['an unknown client', { client_id: 'nobody' }, { reason: 'client_unknown', client: 'nobody' }],
    [
      'a redirect URI that is not registered',
      { redirect_uri: 'https://user:pass@evil.example.test:444/callback?code=a-code#f' },
      {
        reason: 'redirect_uri_invalid',
        client: 'app',
        redirect_uri: 'https://evil.example.test:444/callback',
      },
    ],
    [
      'the scheme of an app',
      { redirect_uri: 'com.example.other:/callback?code=a-code' },
      { redirect_uri: 'com.example.other:/callback' },
    ],
    ['no redirect URI', { redirect_uri: '' }, { redirect_uri: missing }],
    ['a text that is not a URL', { redirect_uri: '//evil.example.test' }, { redirect_uri: '(not a URL)' }],
    [
      'a long redirect URI',
      { redirect_uri: `https://app.example.test/${'a'.repeat(2_000)}` },
      { redirect_uri: `https://app.example.test/${'a'.repeat(231)}` },
    ],
    [
      'a token at the end of what is logged of a redirect URI',
      { redirect_uri: `https://app.example.test/${'x'.repeat(190)}/${'T'.repeat(62)}==/${'y'.repeat(300)}` },
      { redirect_uri: expect.not.stringContaining('TTTT') },
    ],
    ['no client', { client_id: '' }, { reason: 'client_id_missing', client: missing }],
    ['two clients', (flow) => `${query(flow)}&client_id=second`, { client: missing }],
    ['a client with a line break', { client_id: 'a\nb' }, { client: '(malformed)' }],
    ['a client that is too long', { client_id: 'a'.repeat(257) }, { client: '(malformed)' }],
    ['a client that is a code', { client_id: `gha_${'a'.repeat(65)}` }, { client: '[redacted]' }],
    ['a scope beyond the integration', { scope: 'admin:manage' }, { excess: 'admin:manage', client: 'app' }],
  ])('%s', async (_, changes, logged) => {
    const flow = at.start();
    await flow.authorize(typeof changes === 'function' ? changes(flow) : changes);
    expect(lastRefusal()).toMatchObject({ ...logged, level: 'warn', request_id: expect.any(String) });
    const lines = at.gateway.logLines.join('\n');
    for (const secret of ['af0ifjsldkj', 'a-code', 'pass@', flow.pkce.challenge]) expect(lines).not.toContain(secret);
  });

  test('a pushed request: in the audit log', async () => {
    const flow = at.start();
    const redirect_uri = 'https://evil.example.test/callback?code=a-code';
    await createOAuthClient(at.gateway).post('par', flow.parameters({ redirect_uri }));
    expect(at.gateway.auditEvents('grant_denied').at(-1)).toMatchObject({
      reason: 'redirect_uri_invalid',
      client: 'app',
      redirect_uri: 'https://evil.example.test/callback',
    });
    await flow.authorize('client_id=app&request_uri=urn:x');
    expect(lastRefusal()).toMatchObject({ client: 'app', detail: expect.stringContaining('request_uri') });
  });
});

describe('pushed authorization requests', () => {
  const push = async (flow: CodeFlow, changes: Fields = {}, more: Fields = {}) =>
    createOAuthClient(at.gateway).post('par', { ...flow.parameters(changes), ...more });
  const open = (flow: CodeFlow, requestUri: unknown, clientId = 'app') =>
    flow.authorize(new URLSearchParams({ client_id: clientId, request_uri: String(requestUri) }).toString());

  test('the request is taken from the request_uri, and other parameters are ignored', async () => {
    const flow = at.start();
    const reply = await push(flow);
    expect([reply.status, reply.json]).toEqual([
      201,
      { request_uri: expect.stringMatching(/^urn:ietf:params:oauth:request_uri:ghe_/), expires_in: 90 },
    ]);
    const requestUri = String(reply.json['request_uri']);
    expect(Buffer.from(requestUri.split('.')[1] ?? '', 'base64url').toString('latin1')).not.toContain('app.example');
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
    const flow = at.start();
    const { request_uri: requestUri } = (await push(flow)).json;
    await flow.browser.follow(await open(flow, requestUri));
    await flow.signIn();
    await flow.browser.follow(await open(flow, requestUri));
    expect((await flow.decide('approve')).searchParams.has('code')).toBe(true);
    expect((await flow.browser.follow(await open(flow, requestUri))).text).toContain('Already answered');
  });

  test('a request_uri is refused on a page after 90 seconds, for another client, and if it is forged', async () => {
    const flow = at.start();
    const { request_uri: requestUri } = (await push(flow)).json;
    const forged = `${String(requestUri).slice(0, -4)}AAAA`;
    for (const page of [
      await open(flow, requestUri, 'second'),
      await open(flow, forged),
      await open(flow, 'https://evil.example.test/request.jwt'),
      await open(flow, 'urn:ietf:params:oauth:request_uri:x'),
    ])
      expect([page.status, page.redirectTo]).toEqual([400, undefined]);
    at.gateway.clock.advance(91);
    expect((await open(flow, requestUri)).status).toBe(400);
  });

  test('an invalid request, a nested request_uri and a client without its secret are refused', async () => {
    const flow = at.start();
    expect(await push(flow, { redirect_uri: 'https://evil.example.test' })).toMatchObject(refusal('invalid_request'));
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
