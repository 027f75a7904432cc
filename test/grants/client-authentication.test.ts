import { createHash, createHmac } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { hashClientSecret } from '../../src/grants/client-authentication.ts';
import { createDeviceClient } from '../support/device-client.ts';
import { withFailure } from '../support/fault-injection.ts';
import { createForeignKey, type ForeignKey, formatKeySet, signForeign } from '../support/foreign-issuer.ts';
import { type ForeignIssuerServer, startForeignIssuer } from '../support/foreign-issuer-server.ts';
import { decodeJwt } from '../support/forged-tokens.ts';
import { createOAuthClient, type OAuthClient } from '../support/oauth-client.ts';
import { withIntegration, withSettings } from '../support/reconfigure.ts';
import { type Reply, startGateway, type TestGateway, type TestRequest } from '../support/test-gateway.ts';

/** Client authentication (RFC 6749 §2.3, RFC 7523 §2.2) at the OAuth endpoints. */
const ASSERTION_TYPE = 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer';
const PUBLIC_URL = 'https://localhost:8443';
const SECRET = 'ghc_first-secret-of-the-billing-service-0123456789';
const NEXT_SECRET = 'ghc_second-secret-of-the-billing-service-9876543210';
const OTHER_SECRET = 'ghc_secret-of-the-other-service-0123456789-abcdef';

let gateway: TestGateway;
let oauth: OAuthClient;
let key: ForeignKey;
let otherKey: ForeignKey;
let keyServer: ForeignIssuerServer;
beforeAll(async () => {
  [key, otherKey, keyServer] = await Promise.all([
    createForeignKey('ES256', 'signer'),
    createForeignKey('ES256', 'signer'),
    startForeignIssuer(),
  ]);
  const integrations: NonNullable<SettingsInput['integrations']> = [
    {
      clientId: 'billing',
      scope: 'files:read;reports:write',
      grants: ['client', 'certificate', 'device'],
      clientSecretHashes: [hashClientSecret(SECRET), hashClientSecret(NEXT_SECRET)],
      access: [{ groups: ['operators'] }],
    },
    {
      clientId: 'other-billing',
      scope: 'files:read',
      grants: ['client'],
      clientSecretHashes: [hashClientSecret(OTHER_SECRET)],
    },
    {
      clientId: 'signing',
      scope: 'files:read',
      grants: ['client', 'device'],
      jwksFile: 'signing.json',
      access: [{ groups: ['operators'] }],
    },
    {
      clientId: 'other-signing',
      scope: 'files:read',
      grants: ['client'],
      jwks: { keys: [otherKey.jwk as Record<string, string>] },
    },
    { clientId: 'fetching', scope: 'files:read', grants: ['client'], jwksUri: `${keyServer.url}/keys` },
  ];
  gateway = await startGateway(
    (settings) => ({
      ...settings,
      device: { interval: '1s' },
      integrations: [...(settings.integrations ?? []), ...integrations],
    }),
    (folder) => writeFileSync(join(folder, 'signing.json'), formatKeySet(key)),
  );
  oauth = createOAuthClient(gateway);
});
afterAll(async () => {
  await gateway.close();
  keyServer.close();
});

type Fields = Readonly<Record<string, string>>;
const refusal = (error: string, status = 400) => ({ status, json: { error } });
const INVALID_CLIENT = refusal('invalid_client', 401);
const request = (fields: Fields, more: Partial<TestRequest> = {}): Promise<Reply> =>
  oauth.post('token', { grant_type: 'client_credentials', ...fields }, more);
const basic = (id: string, secret: string): Partial<TestRequest> => ({
  headers: {
    authorization: `Basic ${Buffer.from(`${encodeURIComponent(id)}:${encodeURIComponent(secret)}`).toString('base64')}`,
  },
});
const getAccessToken = (reply: Reply): string => {
  expect(reply.status, reply.text).toBe(200);
  return String(reply.json['access_token']);
};
const post = (id: string, secret: string): Fields => ({ client_id: id, client_secret: secret });

const signAssertion = (
  clientId: string,
  claims: Readonly<Record<string, unknown>> = {},
  header: Readonly<Record<string, unknown>> = {},
  signer = key,
): Promise<string> => {
  const now = Math.floor(gateway.clock.now());
  return signForeign(
    signer,
    {
      iss: clientId,
      sub: clientId,
      aud: PUBLIC_URL,
      iat: now,
      exp: now + 60,
      jti: crypto.randomUUID(),
      ...claims,
    },
    header,
  );
};
const asserted = (assertion: string, more: Fields = {}): Fields => ({
  client_assertion: assertion,
  client_assertion_type: ASSERTION_TYPE,
  ...more,
});

describe('client secrets', () => {
  test('client_secret_basic and client_secret_post obtain a token for the client itself', async () => {
    for (const reply of [
      await request({}, basic('billing', SECRET)),
      await request({ client_id: 'billing' }, basic('billing', SECRET)),
      await request(post('billing', SECRET)),
      await request(post('billing', NEXT_SECRET)),
    ]) {
      const token = getAccessToken(reply);
      expect(reply.json).toMatchObject({ token_type: 'Bearer', scope: 'files:read reports:write' });
      expect(reply.json).not.toHaveProperty('refresh_token');
      const id = createHash('sha256').update('client:billing').digest('hex');
      expect(decodeJwt(token).claims).toMatchObject({ sub: `client:${id}`, client_id: 'billing' });
      expect((await gateway.api('/files/1', token)).status).toBe(200);
    }
    expect(gateway.auditEvents('grant_issued').at(-1)).toMatchObject({
      client: 'billing',
      grantType: 'client',
    });
    expect((await request({ ...post('billing', SECRET), scope: 'files:read' })).json['scope']).toBe(
      'files:read',
    );
    expect(await request({ ...post('billing', SECRET), scope: 'mail:send' })).toMatchObject(
      refusal('invalid_scope'),
    );
  });

  test.each([
    ['a wrong secret', 'billing', `${SECRET}x`],
    ['a prefix', 'billing', SECRET.slice(0, -1)],
    ['the hash', 'billing', hashClientSecret(SECRET)],
    ['the secret of another client', 'billing', OTHER_SECRET],
    ['an unknown client', 'unknown', SECRET],
    ['another case of the client', 'Billing', SECRET],
  ])('%s is invalid_client, with a challenge in the scheme that was used', async (_label, id, secret) => {
    const byHeader = await request({}, basic(id, secret));
    expect(byHeader).toMatchObject(INVALID_CLIENT);
    expect(byHeader.headers['www-authenticate']).toBe('Basic realm="gatehouse"');
    const byPost = await request(post(id, secret));
    expect(byPost).toMatchObject(INVALID_CLIENT);
    expect(byPost.json, 'the same response for known and unknown clients').toEqual(byHeader.json);
  });

  test('a removed secret is no longer accepted, and a rotation needs no gap', async () => {
    const change = withIntegration('billing', { clientSecretHashes: [hashClientSecret(NEXT_SECRET)] });
    await withSettings(gateway, change, async () => {
      expect(await request(post('billing', SECRET))).toMatchObject(INVALID_CLIENT);
      expect((await request(post('billing', NEXT_SECRET))).status).toBe(200);
    });
  });

  test('an empty or missing secret does not make a confidential client public', async () => {
    const { refresh_token } = await gateway.grant({ clientId: 'billing' });
    for (const [fields, more] of [
      [{ grant_type: 'client_credentials', client_id: 'billing' }, {}],
      [{ grant_type: 'client_credentials', client_id: 'billing', client_secret: '' }, {}],
      [{ grant_type: 'refresh_token', client_id: 'billing', refresh_token }, {}],
      [{ grant_type: 'refresh_token', client_id: 'billing', refresh_token }, { as: gateway.users.alice }],
      [{ grant_type: 'client_credentials' }, basic('billing', '')],
    ] as const)
      expect(await oauth.post('token', fields, more), JSON.stringify(fields).slice(0, 70)).toMatchObject(
        INVALID_CLIENT,
      );
    expect(
      await oauth.post('device_authorization', { client_id: 'billing', scope: 'files:read' }),
    ).toMatchObject(INVALID_CLIENT);
    const refreshed = await oauth.post('token', {
      grant_type: 'refresh_token',
      refresh_token,
      ...post('billing', SECRET),
    });
    expect(refreshed.status, 'nothing was changed').toBe(200);
  });

  test('a certificate still authenticates client_credentials, as its user', async () => {
    const token = getAccessToken(await request({ client_id: 'billing' }, { as: gateway.users.alice }));
    expect(decodeJwt(token).claims['sub']).toMatch(/^local:/);
  });

  test('the token API, which knows no secrets, issues certificate grants only', async () => {
    const { refresh_token } = await gateway.grant({ clientId: 'billing' });
    const refreshAs = (as?: typeof gateway.users.alice) =>
      gateway.post('/Authorize/Token', { client_id: 'billing', refresh_token }, { ...(as && { as }) });
    expect((await refreshAs()).status, 'without the certificate').toBe(400);
    expect((await refreshAs(gateway.users.bob)).status, 'with another certificate').toBe(400);
    expect((await refreshAs(gateway.users.alice)).status).toBe(200);
    const body = { client_id: 'billing', scope: 'files:read' };
    expect(await gateway.post('/Authorize/Device', body)).toMatchObject({
      status: 400,
      json: { Error: 'unauthorized_client' },
    });
    const codes = await oauth.post('device_authorization', {
      ...post('billing', SECRET),
      scope: 'files:read',
    });
    const device = createDeviceClient(gateway);
    await device.decideInBrowser(codes.json as never, { decision: 'approve' });
    expect(await device.exchange(String(codes.json['device_code']), 'billing')).toMatchObject({
      status: 400,
      json: { Error: 'invalid_grant' },
    });
  });

  test('a grant from before the integration had a secret needs it from then on', async () => {
    const device = createDeviceClient(gateway);
    let refreshToken = '';
    await withSettings(
      gateway,
      withIntegration('billing', { clientSecretHashes: [], grants: ['device'] }),
      async () => {
        const codes = await device.requestCodes('billing', 'files:read');
        await device.decideInBrowser(codes, { decision: 'approve' });
        refreshToken = String((await device.exchange(codes.device_code, 'billing')).json['refresh_token']);
      },
    );
    expect(refreshToken).toMatch(/^ghr_/);
    expect((await gateway.refresh(refreshToken, { client_id: 'billing' })).status).toBe(400);
    expect((await oauth.refresh(refreshToken, post('billing', SECRET))).status).toBe(200);
  });

  test('a grant of an authenticated client can be refreshed only by an authenticated client', async () => {
    const device = createDeviceClient(gateway);
    const codes = await oauth.post('device_authorization', {
      ...post('billing', SECRET),
      scope: 'files:read',
    });
    expect(codes.status, codes.text).toBe(200);
    await device.decideInBrowser(codes.json as never, { decision: 'approve' });
    const device_code = String(codes.json['device_code']);
    const granted = await oauth.poll(device_code, post('billing', SECRET));
    expect(granted.status, granted.text).toBe(200);
    const refreshToken = String(granted.json['refresh_token']);
    expect(await gateway.refresh(refreshToken, { client_id: 'billing' })).toMatchObject({
      status: 400,
      json: { Error: 'invalid_grant' },
    });
    expect(await oauth.refresh(refreshToken, { client_id: 'billing' })).toMatchObject(INVALID_CLIENT);
    expect(await oauth.refresh(refreshToken, post('other-billing', OTHER_SECRET))).toMatchObject(
      refusal('invalid_grant'),
    );
    expect((await oauth.refresh(refreshToken, post('billing', SECRET))).status).toBe(200);
  });

  test('client_credentials needs the grant type client', async () => {
    await withSettings(gateway, withIntegration('billing', { grants: ['device'] }), async () => {
      expect(await request(post('billing', SECRET))).toMatchObject(refusal('unauthorized_client'));
    });
  });

  test('two methods in one request are refused, whichever is right', async () => {
    const assertion = await signAssertion('signing');
    for (const [fields, more] of [
      [post('billing', SECRET), basic('billing', SECRET)],
      [asserted(assertion), basic('signing', SECRET)],
      [{ ...asserted(assertion), client_secret: SECRET }, {}],
      [{ client_assertion_type: ASSERTION_TYPE }, basic('billing', SECRET)],
    ] as const)
      expect(await request(fields, more)).toMatchObject(refusal('invalid_request'));
    const twice = basic('billing', SECRET).headers?.['authorization'];
    expect(
      await request({}, { headers: { authorization: [String(twice), String(twice)] as never } }),
    ).toMatchObject(refusal('invalid_request'));
    expect(await request({ client_id: 'other-billing' }, basic('billing', SECRET))).toMatchObject(
      refusal('invalid_request'),
    );
    expect((await request(asserted(assertion))).status, 'the assertion was not used up').toBe(200);
  });

  test.each(['Basic', 'Basic !!!', `Basic ${Buffer.from('billing').toString('base64')}`, 'Basic Og=='])(
    'a malformed header %j is refused',
    async (authorization) => {
      expect((await request({ client_id: 'billing' }, { headers: { authorization } })).status).toBe(400);
    },
  );

  test('secrets in the query are refused and not logged', async () => {
    for (const query of [`client_secret=${SECRET}`, `%63lient_secret=${SECRET}`, 'client_assertion=x.y.z']) {
      const reply = await gateway.request({
        path: `/authsvc/oauth2/token?${query}`,
        method: 'POST',
        headers: { 'content-type': 'application/x-www-form-urlencoded' },
        body: `grant_type=client_credentials&client_id=billing&client_secret=${SECRET}`,
      });
      expect(reply).toMatchObject(refusal('invalid_request'));
    }
  });

  test('no secret, assertion or hash is ever logged', async () => {
    const assertion = await signAssertion('signing');
    await request(asserted(assertion));
    await request(post('billing', SECRET));
    await request({}, basic('billing', `${SECRET}x`));
    const encoded = Buffer.from(`billing:${SECRET}`).toString('base64').slice(0, 40);
    for (const line of gateway.logLines)
      for (const secret of [SECRET, NEXT_SECRET, hashClientSecret(SECRET), encoded, assertion.slice(60)])
        expect(line).not.toContain(secret);
  });

  test('revocation accepts a credential, does not require one, and refuses a wrong one', async () => {
    const obtain = async (): Promise<string> => getAccessToken(await request(post('billing', SECRET)));
    const token = await obtain();
    expect(await oauth.revoke(token, post('billing', `${SECRET}x`))).toMatchObject(INVALID_CLIENT);
    expect(await oauth.revoke(token, post('other-billing', OTHER_SECRET))).toMatchObject(
      refusal('invalid_grant'),
    );
    expect((await gateway.api('/files/1', token)).status).toBe(200);
    expect((await oauth.revoke(token, post('billing', SECRET))).status).toBe(200);
    expect((await gateway.api('/files/1', token)).status).toBe(401);
    const other = await obtain();
    expect((await oauth.revoke(other)).status).toBe(200);
    expect((await gateway.api('/files/1', other)).status).toBe(401);
  });

  test('guesses are limited by address, and by client from all addresses', async () => {
    const limit = (name: string) => (settings: SettingsInput) => ({
      ...settings,
      trustedProxies: ['127.0.0.1'],
      limits: { ...settings.limits, rates: { ...settings.limits?.rates, [name]: '3/h' } },
    });
    const from = (address: string, secret: string, id = 'billing') =>
      request(post(id, secret), { headers: { 'x-forwarded-for': address } });
    await withSettings(gateway, limit('clientGuesses'), async () => {
      for (let count = 0; count < 3; count += 1)
        expect(await from('192.0.2.1', 'wrong')).toMatchObject(INVALID_CLIENT);
      const blocked = await from('192.0.2.1', SECRET);
      expect(blocked).toMatchObject(refusal('temporarily_unavailable', 429));
      expect(blocked.headers['retry-after']).toMatch(/^[1-9]/);
      expect(await from('192.0.2.1', OTHER_SECRET, 'other-billing')).toMatchObject({ status: 429 });
      expect((await from('192.0.2.2', SECRET)).status, 'from another address').toBe(200);
    });
    await withSettings(gateway, limit('allClientGuesses'), async () => {
      for (let count = 0; count < 3; count += 1)
        expect(await from(`192.0.2.${count + 10}`, 'wrong')).toMatchObject(INVALID_CLIENT);
      expect(await from('192.0.2.20', 'wrong')).toMatchObject({ status: 429 });
      expect((await from('192.0.2.21', SECRET)).status, 'guessing does not lock the client out').toBe(200);
      expect((await from('192.0.2.20', OTHER_SECRET, 'other-billing')).status, 'another client').toBe(200);
    });
  });
});

describe('private_key_jwt', () => {
  test('obtains a token, with client_id or without, for each name of the server', async () => {
    for (const aud of [
      PUBLIC_URL,
      `${PUBLIC_URL}/authsvc`,
      `${PUBLIC_URL}/authsvc/oauth2/token`,
      [PUBLIC_URL],
    ]) {
      const reply = await request(asserted(await signAssertion('signing', { aud })));
      expect((await gateway.api('/files/1', getAccessToken(reply))).status).toBe(200);
    }
    const named = await request(asserted(await signAssertion('signing'), { client_id: 'signing' }));
    expect(named.status).toBe(200);
    const inline = await signAssertion('other-signing', {}, {}, otherKey);
    expect((await request(asserted(inline))).status).toBe(200);
  });

  test('an assertion is accepted once, also after a restart', async () => {
    const assertion = await signAssertion('signing', { exp: Math.floor(gateway.clock.now()) + 3_000 });
    const replies = await Promise.all([1, 2, 3].map(() => request(asserted(assertion))));
    expect(replies.filter(({ status }) => status === 200)).toHaveLength(1);
    expect(gateway.auditEvents('client_assertion_replayed')).not.toEqual([]);
    await gateway.restart();
    expect(await request(asserted(assertion))).toMatchObject(INVALID_CLIENT);
  });

  test('the same jti of two clients does not collide', async () => {
    const jti = crypto.randomUUID();
    expect((await request(asserted(await signAssertion('signing', { jti })))).status).toBe(200);
    const other = await signAssertion('other-signing', { jti }, {}, otherKey);
    expect((await request(asserted(other))).status).toBe(200);
  });

  const now = (): number => Math.floor(gateway.clock.now());
  test.each<[string, () => Readonly<Record<string, unknown>>, Readonly<Record<string, unknown>>?]>([
    ['another issuer', () => ({ iss: 'other-signing' })],
    ['another subject', () => ({ sub: 'other-signing' })],
    ['no issuer', () => ({ iss: undefined })],
    ['an unknown client', () => ({ iss: 'unknown', sub: 'unknown' })],
    ['another audience', () => ({ aud: 'https://other.example.test' })],
    ['several audiences', () => ({ aud: [PUBLIC_URL, 'https://other.example.test'] })],
    ['no audience', () => ({ aud: undefined })],
    ['an empty audience', () => ({ aud: [] })],
    ['no expiry', () => ({ exp: undefined })],
    ['an expiry that has passed', () => ({ exp: now() - 1 })],
    ['an expiry that is now', () => ({ exp: now() })],
    ['an expiry that is too far away', () => ({ exp: now() + 86_400 })],
    ['an expiry that is not a number', () => ({ exp: '9999999999' })],
    ['a time of issue in the future', () => ({ iat: now() + 300 })],
    ['a beginning in the future', () => ({ nbf: now() + 300 })],
    ['no jti', () => ({ jti: undefined })],
    ['a jti that is not a text', () => ({ jti: 7 })],
    ['the type of an access token', () => ({}), { typ: 'at+jwt' }],
    ['a critical extension', () => ({}), { crit: ['b64'], b64: true }],
    ['an unknown key id', () => ({}), { kid: 'unknown' }],
  ])('%s is invalid_client', async (_label, claims, header) => {
    expect(await request(asserted(await signAssertion('signing', claims(), header)))).toMatchObject(
      INVALID_CLIENT,
    );
  });

  test('an assertion of client A is not one of client B', async () => {
    const assertion = await signAssertion('signing');
    for (const client_id of ['other-signing', 'billing', 'report-runner'])
      expect(await request(asserted(assertion, { client_id })), client_id).toMatchObject(INVALID_CLIENT);
    const forged = await signAssertion('other-signing', {}, {}, key);
    expect(await request(asserted(forged)), 'signed by A in the name of B').toMatchObject(INVALID_CLIENT);
    expect((await request(asserted(assertion))).status, 'it was not used up').toBe(200);
  });

  test('HMAC with the public key, none, and keys in the header are refused', async () => {
    const [, payload = ''] = (await signAssertion('signing')).split('.');
    const header = (alg: string): string =>
      Buffer.from(JSON.stringify({ alg, kid: key.kid })).toString('base64url');
    const signed = `${header('HS256')}.${payload}`;
    const hmac = createHmac('sha256', JSON.stringify(key.jwk)).update(signed).digest('base64url');
    const attacker = await createForeignKey('ES256', 'attacker');
    for (const assertion of [
      `${signed}.${hmac}`,
      `${header('none')}.${payload}.`,
      await signAssertion('signing', {}, { jwk: attacker.jwk }, attacker),
      await signAssertion('signing', {}, {}, await createForeignKey('ES256', key.kid)),
      'x',
      'a.b.c',
    ])
      expect(await request(asserted(assertion, { client_id: 'signing' }))).toMatchObject(INVALID_CLIENT);
  });

  test('a missing or wrong client_assertion_type is invalid_request', async () => {
    const client_assertion = await signAssertion('signing');
    for (const fields of [
      { client_assertion },
      { client_assertion, client_assertion_type: 'urn:ietf:params:oauth:client-assertion-type:saml2-bearer' },
      { client_assertion_type: ASSERTION_TYPE },
    ])
      expect(await request(fields as Fields)).toMatchObject(refusal('invalid_request'));
  });

  test('keys are fetched from jwksUri, a rotation needs no reload, and an outage is 503', async () => {
    const next = await createForeignKey('ES256', 'next');
    const send = async (signer: ForeignKey): Promise<Reply> =>
      request(asserted(await signAssertion('fetching', {}, {}, signer)));
    const [published] = keyServer.published as [ForeignKey];
    expect((await send(published)).status).toBe(200);
    expect(await send(next)).toMatchObject(INVALID_CLIENT);
    keyServer.isUp = false;
    try {
      // Another URL, so that nothing is cached.
      const change = withIntegration('fetching', { jwksUri: `${keyServer.url}/keys/` });
      await withSettings(gateway, change, async () => {
        expect(await send(published)).toMatchObject(refusal('temporarily_unavailable', 503));
      });
    } finally {
      keyServer.isUp = true;
    }
  });

  test('an unreachable store is 503, not a failed authentication', async () => {
    const assertion = await signAssertion('signing');
    const { notes } = gateway.server.store;
    expect(
      await withFailure(notes, 'create', 'not executed', () => request(asserted(assertion))),
    ).toMatchObject(refusal('temporarily_unavailable', 503));
    expect((await request(asserted(assertion))).status).toBe(200);
  });
});

test('the metadata lists the methods that a client can use', async () => {
  const read = async () => (await gateway.request({ path: '/.well-known/oauth-authorization-server' })).json;
  expect(await read()).toMatchObject({
    token_endpoint_auth_methods_supported: [
      'none',
      'tls_client_auth',
      'client_secret_basic',
      'client_secret_post',
      'private_key_jwt',
    ],
    token_endpoint_auth_signing_alg_values_supported: expect.arrayContaining(['ES256', 'RS256', 'EdDSA']),
  });
  const withoutCredentials = (settings: SettingsInput) => ({
    ...settings,
    integrations: (settings.integrations ?? []).slice(0, 2),
  });
  await withSettings(gateway, withoutCredentials, async () => {
    const metadata = await read();
    expect(metadata['token_endpoint_auth_methods_supported']).toEqual(['none', 'tls_client_auth']);
    expect(metadata).not.toHaveProperty('token_endpoint_auth_signing_alg_values_supported');
  });
});
