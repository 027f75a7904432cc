import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { createForeignKey, type ForeignKey, signForeign } from '../support/foreign-issuer.ts';
import { type ForeignIssuerServer, startForeignIssuer, withTrustedIssuer } from '../support/foreign-issuer-server.ts';
import { createOAuthClient } from '../support/oauth-client.ts';
import { type Reply, type SettingsChange, startGateway, type TestGateway } from '../support/test-gateway.ts';

const EVENT = 'http://schemas.openid.net/event/backchannel-logout';
const PATH = '/authsvc/oauth2/backchannel_logout';
/** An issuer without `logout`. */
const QUIET = 'https://quiet.example.test';
type Claims = Readonly<Record<string, unknown>>;

const send = (gateway: TestGateway, fields: Readonly<Record<string, string>>): Promise<Reply> =>
  gateway.request({
    method: 'POST',
    path: PATH,
    headers: { 'content-type': 'application/x-www-form-urlencoded' },
    body: new URLSearchParams(fields).toString(),
  });

const withLogout = (issuer: ForeignIssuerServer): SettingsChange =>
  withTrustedIssuer(issuer, {
    audience: ['files-api', 'gatehouse-client'],
    logout: { audience: 'gatehouse-client', tokenLifetime: '1h' },
  });

function signLogout(
  issuer: ForeignIssuerServer,
  gateway: TestGateway,
  claims: Claims,
  header: Claims = { typ: 'logout+jwt' },
  [key]: readonly ForeignKey[] = issuer.published,
): Promise<string> {
  if (key === undefined) throw new Error('no key');
  const now = Math.floor(gateway.clock.now());
  const standard = { iss: issuer.url, aud: 'gatehouse-client', iat: now, exp: now + 120 };
  return signForeign(key, { ...standard, jti: crypto.randomUUID(), events: { [EVENT]: {} }, ...claims }, header);
}

describe('back-channel logout', () => {
  let issuer: ForeignIssuerServer;
  let gateway: TestGateway;
  beforeAll(async () => {
    issuer = await startForeignIssuer();
    gateway = await startGateway((settings) =>
      withLogout(issuer)({
        ...settings,
        trustedIssuers: {
          quiet: { issuer: QUIET, audience: 'files-api', jwksUri: `${issuer.url}/keys` },
        },
      }),
    );
  });
  afterAll(async () => {
    await gateway?.close();
    issuer?.close();
  });
  const call = async (token: string): Promise<number> => (await gateway.api('/files/1', token)).status;
  const sign = (claims: Claims, header?: Claims, keys?: readonly ForeignKey[]): Promise<string> =>
    signLogout(issuer, gateway, claims, header, keys);

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
    expect(await Promise.all([token, other, without].map((each = '') => call(each)))).toEqual([200, 200, 200]);
    const logoutToken = await sign({ sid: 's1' });
    expect((await send(gateway, { logout_token: logoutToken })).status).toBe(200);
    expect(await Promise.all([token, other, without].map((each = '') => call(each)))).toEqual([401, 200, 200]);
    expect((await send(gateway, { logout_token: logoutToken })).status, 'replayed').toBe(200);
    expect(await Promise.all([token, other, without].map((each = '') => call(each)))).toEqual([401, 200, 200]);
  });

  const lastDenial = (): Claims | undefined => gateway.auditEvents('grant_denied').at(-1);
  /** What the operator finds in the audit log; the sender gets the same response for every reason. */
  const expectRefused = async (logoutToken: string, detail: string, issuerName?: string): Promise<void> => {
    const reply = await send(gateway, { logout_token: logoutToken });
    expect([reply.status, reply.json, reply.headers['cache-control']]).toEqual([
      400,
      {
        error: 'invalid_request',
        error_description: 'logout_token is not a valid logout token from a trusted issuer for this service.',
      },
      'no-store',
    ]);
    const { operation, reason, detail: logged, issuer: name, request_id: id } = lastDenial() ?? {};
    expect({ operation, reason, logged, name, id }).toEqual({
      operation: 'oauth2:logout',
      reason: 'logout_token_invalid',
      logged: detail,
      name: issuerName,
      id: reply.headers['x-request-id'],
    });
  };

  test.each<[string, string, Claims, Claims?]>([
    ['for another client', 'wrong_audience', { aud: 'files-api' }],
    ['without the event', 'claim_missing events', { events: {} }],
    ['with another event', 'claim_missing events', { events: { [`${EVENT}x`]: {} } }],
    ['with an event that is not an object', 'claim_missing events', { events: { [EVENT]: true } }],
    ['with a list of events', 'claim_missing events', { events: [EVENT] }],
    ['without events', 'claim_missing events', { events: undefined }],
    ['with a nonce', 'claim_not_allowed nonce', { nonce: 'n' }],
    ['with an empty nonce', 'claim_not_allowed nonce', { nonce: null }],
    ['without jti', 'claim_missing jti', { jti: undefined }],
    ['with an empty jti', 'claim_missing jti', { jti: '' }],
    ['without exp', 'claim_missing exp', { exp: undefined }],
    ['without iat', 'claim_missing iat', { iat: undefined }],
    ['without a subject and a session', 'claim_missing sub', { sub: undefined }],
    ['with a subject that is not text', 'claim_missing sub', { sub: 7, sid: 's' }],
    ['with a session that is not text', 'claim_missing sid', { sid: ['s'] }],
    ['with a control character in the session', 'claim_missing sid', { sid: 'a\nb' }],
    ['of another type', 'type_not_accepted', {}, { typ: 'at+jwt' }],
    ['with critical extensions', 'header_not_accepted', {}, { typ: 'logout+jwt', crit: ['b64'], b64: true }],
  ])('refuses a logout token %s, and logs %s', async (_, detail, claims, header) => {
    const token = await issuer.sign({ sub: 'dave', sid: 's' });
    await expectRefused(await sign({ sub: 'dave', ...claims }, header), detail, 'corp');
    expect(await call(token)).toBe(200);
  });

  test('refuses logout tokens of unknown issuers, and of issuers without `logout`', async () => {
    await expectRefused(await sign({ sub: 'dave', iss: 'https://other.example.test' }), 'unknown_issuer');
    await expectRefused(await sign({ sub: 'dave', iss: ['corp'] }), 'unknown_issuer');
    await expectRefused(await sign({ sub: 'dave', iss: QUIET }), 'logout_not_accepted', 'quiet');
  });

  test('refuses expired, early and old logout tokens, and those that another key signed', async () => {
    const token = await issuer.sign({ sub: 'erin' });
    const now = Math.floor(gateway.clock.now());
    const forge = async (kid: string): Promise<string> =>
      sign({ sub: 'erin' }, undefined, [await createForeignKey('ES256', kid)]);
    await expectRefused(await sign({ sub: 'erin', exp: now - 1 }), 'expired', 'corp');
    await expectRefused(await sign({ sub: 'erin', iat: now + 60 }), 'not_yet_valid', 'corp');
    await expectRefused(await sign({ sub: 'erin', nbf: now + 60 }), 'not_yet_valid', 'corp');
    await expectRefused(await sign({ sub: 'erin', iat: now - 400, exp: now + 120 }), 'expired', 'corp');
    await expectRefused(await forge('k1'), 'invalid_signature', 'corp');
    await expectRefused(await forge('another-key'), 'unknown_key', 'corp');
    await expectRefused(token, 'wrong_audience', 'corp');
    for (const each of ['junk', `${'e'.repeat(12_000)}.e.e`]) await expectRefused(each, 'malformed');
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
  const gateway = await startGateway(withLogout(issuer));
  onTestFinished(() => gateway.close());
  const reply = await send(gateway, { logout_token: await signLogout(issuer, gateway, { sub: 'alice' }) });
  expect([reply.status, reply.json['error']]).toEqual([503, 'temporarily_unavailable']);
  expect(Number(reply.headers['retry-after'])).toBeGreaterThan(0);
});

test('without an issuer that may send logout tokens there is no endpoint', async () => {
  const issuer = await startForeignIssuer();
  onTestFinished(() => issuer.close());
  const gateway = await startGateway(withTrustedIssuer(issuer));
  onTestFinished(() => gateway.close());
  expect((await send(gateway, { logout_token: await issuer.sign() })).status).toBe(404);
});

test('a logout ends exchanged grants for good, even if settings allow only shorter grants by then', async () => {
  const issuer = await startForeignIssuer();
  onTestFinished(() => issuer.close());
  const withLifetime = (grantLifetime: string) => (settings: SettingsInput) => ({
    ...withLogout(issuer)(settings),
    tokens: { ...settings.tokens, grantLifetime },
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
  const { json } = await oauth.exchange(await issuer.sign({ sub: 'alice' }));
  await gateway.reload(withLifetime('2d'));
  const logoutToken = await signLogout(issuer, gateway, { sub: 'alice' });
  expect((await send(gateway, { logout_token: logoutToken })).status).toBe(200);
  gateway.clock.advance(4 * 86_400);
  const refreshed = await oauth.refresh(String(json['refresh_token']), { client_id: 'jobs' });
  expect(refreshed).toMatchObject({ status: 400, json: { error: 'invalid_grant' } });
});
