import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { createForeignKey, signForeign } from '../support/foreign-issuer.ts';
import { type ForeignIssuerServer, startForeignIssuer } from '../support/foreign-issuer-server.ts';
import { createOAuthClient } from '../support/oauth-client.ts';
import { type Reply, startGateway, type TestGateway } from '../support/test-gateway.ts';

const EVENT = 'http://schemas.openid.net/event/backchannel-logout';
const PATH = '/authsvc/oauth2/backchannel_logout';
type Claims = Readonly<Record<string, unknown>>;

const send = (gateway: TestGateway, fields: Readonly<Record<string, string>>): Promise<Reply> =>
  gateway.request({
    method: 'POST',
    path: PATH,
    headers: { 'content-type': 'application/x-www-form-urlencoded' },
    body: new URLSearchParams(fields).toString(),
  });

describe.each([true, false])('back-channel logout, fast path %s', (fastPath) => {
  let issuer: ForeignIssuerServer;
  let gateway: TestGateway;
  beforeAll(async () => {
    issuer = await startForeignIssuer();
    gateway = await startGateway((settings) => ({
      ...settings,
      listen: { ...settings.listen, fastPath },
      trustedIssuers: {
        corp: {
          issuer: issuer.url,
          audience: ['files-api', 'gatehouse-client'],
          scopes: { 'files.read': 'files:read' },
          logout: { audience: 'gatehouse-client', tokenLifetime: '1h' },
        },
      },
      routes: [{ path: '/files/**', requires: 'files:read', issuers: ['own', 'corp'] }],
    }));
  });
  afterAll(async () => {
    await gateway?.close();
    issuer?.close();
  });
  const call = async (token: string): Promise<number> => (await gateway.api('/files/1', token)).status;
  const createClaims = (claims: Claims = {}): Claims => {
    const now = Math.floor(gateway.clock.now());
    return {
      iss: issuer.url,
      aud: 'gatehouse-client',
      iat: now,
      exp: now + 120,
      jti: crypto.randomUUID(),
      events: { [EVENT]: {} },
      ...claims,
    };
  };
  const sign = async (claims: Claims, header: Claims = { typ: 'logout+jwt' }): Promise<string> => {
    const [key] = issuer.published;
    if (key === undefined) throw new Error('no key');
    return signForeign(key, createClaims(claims), header);
  };

  test.each([{ typ: 'logout+jwt' }, { typ: 'JWT' }])(
    'revokes the tokens of a subject that were issued until now, with the type %j',
    async (header) => {
      const sub = `alice-${header.typ}`;
      const token = await issuer.sign({ sub });
      const other = await issuer.sign({ sub: 'bob' });
      expect(await call(token)).toBe(200);
      const reply = await send(gateway, { logout_token: await sign({ sub }, header) });
      expect([reply.status, reply.headers['cache-control']]).toEqual([200, 'no-store']);
      expect(await call(token)).toBe(401);
      expect(await call(other)).toBe(200);
      const later = await issuer.sign({ sub, iat: Math.floor(gateway.clock.now()) + 2 });
      expect(await call(later), 'signed in again').toBe(200);
      expect(gateway.auditEvents('issuer_logout').at(-1)).toMatchObject({
        issuer: 'corp',
        identity: `corp:${sub}`,
        what: 'subject',
      });
    },
  );

  test('revokes the tokens of a session, and no other tokens of its subject', async () => {
    const [token, other, without] = await Promise.all(
      [{ sid: 's1' }, { sid: 's2' }, {}].map((claims) => issuer.sign({ sub: 'carol', ...claims })),
    );
    expect(await Promise.all([token, other, without].map((each = '') => call(each)))).toEqual([
      200, 200, 200,
    ]);
    const logoutToken = await sign({ sid: 's1' });
    expect((await send(gateway, { logout_token: logoutToken })).status).toBe(200);
    expect(await Promise.all([token, other, without].map((each = '') => call(each)))).toEqual([
      401, 200, 200,
    ]);
    expect((await send(gateway, { logout_token: logoutToken })).status, 'replayed').toBe(200);
    expect(await Promise.all([token, other, without].map((each = '') => call(each)))).toEqual([
      401, 200, 200,
    ]);
  });

  test.each<[string, Claims, Claims?]>([
    ['for another client', { aud: 'files-api' }],
    ['of another issuer', { iss: 'https://other.example.test' }],
    ['without the event', { events: {} }],
    ['with another event', { events: { [`${EVENT}x`]: {} } }],
    ['with an event that is not an object', { events: { [EVENT]: true } }],
    ['with a list of events', { events: [EVENT] }],
    ['without events', { events: undefined }],
    ['with a nonce', { nonce: 'n' }],
    ['with an empty nonce', { nonce: null }],
    ['without jti', { jti: undefined }],
    ['without exp', { exp: undefined }],
    ['without iat', { iat: undefined }],
    ['without a subject and a session', { sub: undefined }],
    ['with a subject that is not text', { sub: 7, sid: 's' }],
    ['with a session that is not text', { sid: ['s'] }],
    ['with a control character in the session', { sid: 'a\nb' }],
    ['of another type', {}, { typ: 'at+jwt' }],
    ['with critical extensions', {}, { typ: 'logout+jwt', crit: ['b64'], b64: true }],
  ])('refuses a logout token %s', async (_, claims, header) => {
    const token = await issuer.sign({ sub: 'dave', sid: 's' });
    const reply = await send(gateway, { logout_token: await sign({ sub: 'dave', ...claims }, header) });
    expect([reply.status, reply.json['error'], reply.headers['cache-control']]).toEqual([
      400,
      'invalid_request',
      'no-store',
    ]);
    expect(await call(token)).toBe(200);
  });

  test('refuses expired, early and old logout tokens, and those that another key signed', async () => {
    const token = await issuer.sign({ sub: 'erin' });
    const now = Math.floor(gateway.clock.now());
    const forged = await signForeign(await createForeignKey('ES256', 'k1'), createClaims({ sub: 'erin' }));
    const tokens = [
      await sign({ sub: 'erin', exp: now - 1 }),
      await sign({ sub: 'erin', iat: now + 60 }),
      await sign({ sub: 'erin', iat: now - 400, exp: now + 120 }),
      forged,
      token,
      'junk',
      `${'e'.repeat(12_000)}.e.e`,
    ];
    for (const each of tokens) expect((await send(gateway, { logout_token: each })).status).toBe(400);
    expect((await send(gateway, {})).json['error_description']).toBe('logout_token is required.');
    expect((await gateway.request({ path: PATH })).status).toBe(405);
    expect(await call(token)).toBe(200);
  });

  test('a logout token is no access token, even for the same audience', async () => {
    const claims = { sub: 'frank', scope: 'files.read', azp: 'cli' };
    expect(await call(await issuer.sign({ ...claims, aud: 'gatehouse-client' }))).toBe(200);
    expect(await call(await sign(claims, { typ: 'JWT' }))).toBe(401);
  });

  test('a token is not accepted for longer than a logout is remembered', async () => {
    const now = Math.floor(gateway.clock.now());
    const token = await issuer.sign({ sub: 'grace', iat: now, exp: now + 86_400 });
    expect(await call(token)).toBe(200);
    gateway.clock.advance(3_601);
    expect(await call(token)).toBe(401);
    gateway.clock.advance(-3_601);
  });

  test('logout tokens are not logged', async () => {
    const logoutToken = await sign({ sub: 'heidi' });
    await send(gateway, { logout_token: logoutToken });
    await send(gateway, { logout_token: `${logoutToken}x` });
    expect(gateway.logLines.join('\n')).not.toContain(logoutToken.slice(-40));
  });
});

test('with unreachable keys a logout gets 503, and it works once they are reachable', async () => {
  const issuer = await startForeignIssuer();
  onTestFinished(() => issuer.close());
  issuer.isUp = false;
  const gateway = await startGateway((settings) => ({
    ...settings,
    trustedIssuers: {
      corp: { issuer: issuer.url, audience: 'files-api', logout: { audience: 'gatehouse-client' } },
    },
  }));
  onTestFinished(() => gateway.close());
  const now = Math.floor(gateway.clock.now());
  const [key] = issuer.published;
  if (key === undefined) throw new Error('no key');
  const logoutToken = await signForeign(key, {
    iss: issuer.url,
    aud: 'gatehouse-client',
    iat: now,
    exp: now + 120,
    jti: 'j',
    sub: 'alice',
    events: { [EVENT]: {} },
  });
  const reply = await send(gateway, { logout_token: logoutToken });
  expect([reply.status, reply.json['error']]).toEqual([503, 'temporarily_unavailable']);
  expect(Number(reply.headers['retry-after'])).toBeGreaterThan(0);
});

test('without an issuer that may send logout tokens there is no endpoint', async () => {
  const issuer = await startForeignIssuer();
  onTestFinished(() => issuer.close());
  const gateway = await startGateway((settings) => ({
    ...settings,
    trustedIssuers: { corp: { issuer: issuer.url, audience: 'files-api' } },
  }));
  onTestFinished(() => gateway.close());
  expect((await send(gateway, { logout_token: await issuer.sign() })).status).toBe(404);
});

test('a logout ends exchanged grants for good, even if settings allow only shorter grants by then', async () => {
  const issuer = await startForeignIssuer();
  onTestFinished(() => issuer.close());
  const withLifetime = (grantLifetime: string) => (settings: SettingsInput) => ({
    ...settings,
    tokens: { ...settings.tokens, grantLifetime },
    trustedIssuers: {
      corp: {
        issuer: issuer.url,
        audience: ['files-api', 'gatehouse-client'],
        logout: { audience: 'gatehouse-client', tokenLifetime: '1h' },
      },
    },
    routes: [{ path: '/files/**', requires: 'files:read' }],
    integrations: [
      {
        clientId: 'jobs',
        scope: 'files:read',
        exchange: [{ issuer: 'corp', subject: '*', refresh: true }],
      },
    ],
  });
  const gateway = await startGateway(withLifetime('90d'));
  onTestFinished(() => gateway.close());
  const oauth = createOAuthClient(gateway);
  const { json } = await oauth.post('token', {
    grant_type: 'urn:ietf:params:oauth:grant-type:token-exchange',
    client_id: 'jobs',
    subject_token: await issuer.sign({ sub: 'alice' }),
    subject_token_type: 'urn:ietf:params:oauth:token-type:jwt',
  });
  await gateway.reload(withLifetime('2d'));
  const now = Math.floor(gateway.clock.now());
  const [key] = issuer.published;
  if (key === undefined) throw new Error('no key');
  const logoutToken = await signForeign(
    key,
    {
      iss: issuer.url,
      aud: 'gatehouse-client',
      iat: now,
      exp: now + 120,
      jti: 'a-logout',
      sub: 'alice',
      events: { [EVENT]: {} },
    },
    { typ: 'logout+jwt' },
  );
  expect((await send(gateway, { logout_token: logoutToken })).status).toBe(200);
  gateway.clock.advance(4 * 86_400);
  const refreshed = await oauth.refresh(String(json['refresh_token']), { client_id: 'jobs' });
  expect(refreshed).toMatchObject({ status: 400, json: { error: 'invalid_grant' } });
});
