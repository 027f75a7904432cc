import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { hashClientSecret } from '../../src/grants/client-authentication.ts';
import { FORM } from '../support/device-client.ts';
import { createForeignKey, type ForeignKey, signForeign } from '../support/foreign-issuer.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { createOAuthClient, type OAuthClient, refusal } from '../support/oauth-client.ts';
import { withIntegration, withSettings } from '../support/reconfigure.ts';
import { type Reply, startGateway, type TestGateway, type TestRequest } from '../support/test-gateway.ts';

/** RFC 7662 §2.1: resource servers authenticate as clients, by the same methods as at the token endpoint. */
const SECRET = 'ghc_a-secret-of-the-resource-server_0123456789-ABC';
const ASSERTION_TYPE = 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer';
const ISSUER = 'https://localhost:8443';

type Fields = Readonly<Record<string, string>>;

let gateway: TestGateway;
let oauth: OAuthClient;
let key: ForeignKey;
freezeClock(250);
beforeAll(async () => {
  key = await createForeignKey('ES256', 'rs');
  const withSecret = { clientSecretHashes: [hashClientSecret(SECRET)] };
  gateway = await startGateway((settings) => ({
    ...settings,
    introspection: { requires: 'tokens:introspect', access: [{ groups: ['operators'] }] },
    integrations: [
      ...(settings.integrations ?? []),
      { clientId: 'files-api', scope: 'tokens:introspect;files:read', grants: ['client'], ...withSecret },
      {
        clientId: 'signing-api',
        scope: 'tokens:introspect',
        grants: ['client'],
        jwks: { keys: [key.jwk as Record<string, string>] },
      },
      { clientId: 'other-scope', scope: 'files:read;tokens:read', grants: ['client'], ...withSecret },
      { clientId: 'bare-scope', scope: 'tokens', grants: ['client'], ...withSecret },
      {
        clientId: 'device-app',
        scope: 'tokens:introspect',
        grants: ['device'],
        access: [{ groups: ['operators'] }],
        ...withSecret,
      },
    ],
  }));
  oauth = createOAuthClient(gateway);
});
afterAll(() => gateway.close());

const introspect = (token: string, fields: Fields, more: Partial<TestRequest> = {}): Promise<Reply> =>
  oauth.post('introspect', { token, ...fields }, more);
const basic = (clientId: string, secret = SECRET): Partial<TestRequest> => ({
  headers: { authorization: `Basic ${btoa(`${clientId}:${secret}`)}` },
});
const post = (clientId: string, secret = SECRET): Fields => ({ client_id: clientId, client_secret: secret });
const assert = async (claims: Readonly<Record<string, unknown>> = {}): Promise<Fields> => {
  const now = Math.floor(gateway.clock.now());
  return {
    client_assertion_type: ASSERTION_TYPE,
    client_assertion: await signForeign(key, {
      iss: 'signing-api',
      sub: 'signing-api',
      aud: ISSUER,
      iat: now,
      exp: now + 60,
      jti: crypto.randomUUID(),
      ...claims,
    }),
  };
};
const ACTIVE = { status: 200, json: { active: true, client_id: 'report-runner', scope: 'files:read' } };

describe.each(['jwt', 'opaque'] as const)('a client introspects %s tokens', (format) => {
  let token: string;
  beforeAll(async () => {
    await gateway.reload((settings) => ({ ...settings, tokens: { ...settings.tokens, format } }));
    token = (await gateway.grant()).access_token;
  });

  test('with client_secret_basic, client_secret_post and private_key_jwt', async () => {
    expect(await introspect(token, {}, basic('files-api'))).toMatchObject(ACTIVE);
    expect(await introspect(token, { client_id: 'files-api' }, basic('files-api'))).toMatchObject(ACTIVE);
    expect(await introspect(token, post('files-api'))).toMatchObject(ACTIVE);
    const endpoint = `${ISSUER}/authsvc/oauth2/introspect`;
    for (const aud of [ISSUER, `${ISSUER}/authsvc/oauth2/token`, endpoint, [endpoint]])
      expect(await introspect(token, await assert({ aud })), String(aud)).toMatchObject(ACTIVE);
  });

  test('whatever certificate the connection has', async () => {
    expect(await introspect(token, {}, { ...basic('files-api'), as: gateway.users.bob })).toMatchObject(ACTIVE);
    // A wrong secret is not replaced by a certificate that may introspect.
    expect(await introspect(token, {}, { ...basic('files-api', `${SECRET}x`), as: gateway.users.alice })).toMatchObject(
      refusal('invalid_client', 401),
    );
  });

  test('and learns nothing about tokens that are not valid', async () => {
    const grant = await gateway.grant();
    await oauth.revoke(grant.access_token);
    for (const inactive of [grant.access_token, grant.refresh_token, 'x'])
      expect((await introspect(inactive, {}, basic('files-api'))).text).toBe('{"active":false}');
    expect(await oauth.post('introspect', {}, basic('files-api'))).toMatchObject(refusal('invalid_request'));
  });
});

describe('introspection is refused', () => {
  let token: string;
  beforeAll(async () => {
    token = (await gateway.grant()).access_token;
  });
  const expectRefused = (reply: Reply, error: string, status: number, what: string): void => {
    expect(reply, what).toMatchObject(refusal(error, status));
    expect(reply.text, what).not.toContain('active');
  };

  test('with a wrong or missing credential', async () => {
    const cases: readonly (readonly [string, Fields, Partial<TestRequest>?])[] = [
      ['wrong secret', {}, basic('files-api', `${SECRET}x`)],
      ['wrong secret in the body', post('files-api', 'x')],
      ['unknown client', {}, basic('nobody')],
      ['no credential of a client that has one', { client_id: 'files-api' }],
      ['a client without a secret', {}, basic('report-runner')],
      ['a secret for a client with a key', post('signing-api')],
      [
        'signature of another key',
        {
          ...(await assert()),
          client_assertion: `${(await assert())['client_assertion']?.slice(0, -8)}AAAAAAAA`,
        },
      ],
      ['another audience', await assert({ aud: 'https://other.example.test' })],
      ['two audiences', await assert({ aud: [ISSUER, 'https://other.example.test'] })],
      ['an expired assertion', await assert({ exp: 1_000 })],
      ['an assertion of another client', await assert({ iss: 'files-api', sub: 'files-api' })],
    ];
    for (const [what, fields, more] of cases) {
      const reply = await introspect(token, fields, more);
      expectRefused(reply, 'invalid_client', 401, what);
      const scheme = more === undefined ? /^Bearer realm="gatehouse", Mutual / : /^Basic realm=/;
      expect(reply.headers['www-authenticate'], what).toMatch(scheme);
    }
  });

  test('with an assertion that was used before', async () => {
    const fields = await assert();
    expect(await introspect(token, fields)).toMatchObject(ACTIVE);
    expectRefused(await introspect(token, fields), 'invalid_client', 401, 'again');
  });

  test('with two methods', async () => {
    const bearer = { headers: { authorization: `Bearer ${token}` } };
    for (const [fields, more] of [
      [post('files-api'), basic('files-api')],
      [{ ...post('files-api'), ...(await assert()) }, {}],
      [post('files-api'), bearer],
      [await assert(), bearer],
    ] as const)
      expectRefused(await introspect(token, fields, more), 'invalid_request', 400, JSON.stringify(more));
  });

  test('with a secret in the query', async () => {
    const reply = await gateway.request({
      path: `/authsvc/oauth2/introspect?client_id=files-api&client_secret=${SECRET}`,
      method: 'POST',
      headers: { 'content-type': FORM },
      body: new URLSearchParams({ token }).toString(),
    });
    expectRefused(reply, 'invalid_request', 400, 'query');
  });

  test('for clients that cannot obtain a token with the required scope for themselves', async () => {
    for (const clientId of ['other-scope', 'bare-scope', 'device-app']) {
      expectRefused(await introspect(token, {}, basic(clientId)), 'unauthorized_client', 400, clientId);
      expectRefused(await introspect(token, post(clientId)), 'unauthorized_client', 400, clientId);
    }
    await withSettings(gateway, withIntegration('files-api', { scope: 'files:read' }), async () =>
      expectRefused(await introspect(token, {}, basic('files-api')), 'unauthorized_client', 400, 'narrowed'),
    );
    await withSettings(
      gateway,
      (settings) => ({ ...settings, introspection: { access: [{ groups: ['operators'] }] } }),
      async () => expectRefused(await introspect(token, {}, basic('files-api')), 'unauthorized_client', 400, 'off'),
    );
  });

  test('as often as secrets are guessed: wrong ones are limited, the correct one is not', async () => {
    await withSettings(
      gateway,
      (settings) => ({
        ...settings,
        limits: { ...settings.limits, rates: { ...settings.limits?.rates, allClientGuesses: '5/h' } },
      }),
      async () => {
        const statuses: number[] = [];
        for (let count = 0; count < 10; count += 1)
          statuses.push((await introspect(token, {}, basic('files-api', `guess-${count}`))).status);
        expect(statuses.at(0)).toBe(401);
        expect(statuses.at(-1)).toBe(429);
        expect(await introspect(token, {}, basic('files-api'))).toMatchObject(ACTIVE);
      },
    );
  });
});

describe('the metadata', () => {
  const read = async (): Promise<Readonly<Record<string, unknown>>> =>
    (await gateway.request({ path: '/.well-known/oauth-authorization-server' })).json;

  test('lists the methods by which some client may introspect, and the algorithms of assertions', async () => {
    expect(await read()).toMatchObject({
      introspection_endpoint_auth_methods_supported: [
        'tls_client_auth',
        'client_secret_basic',
        'client_secret_post',
        'private_key_jwt',
        'Bearer',
      ],
      introspection_endpoint_auth_signing_alg_values_supported: expect.arrayContaining(['ES256']),
    });
    await withSettings(gateway, withIntegration('signing-api', { scope: 'files:read' }), async () => {
      const metadata = await read();
      expect(metadata['introspection_endpoint_auth_methods_supported']).toEqual([
        'tls_client_auth',
        'client_secret_basic',
        'client_secret_post',
        'Bearer',
      ]);
      expect(metadata).not.toHaveProperty('introspection_endpoint_auth_signing_alg_values_supported');
      expect(metadata).toHaveProperty('token_endpoint_auth_signing_alg_values_supported');
    });
    await withSettings(
      gateway,
      (settings) => ({ ...settings, introspection: { access: [{ groups: ['operators'] }] } }),
      async () => expect((await read())['introspection_endpoint_auth_methods_supported']).toEqual(['tls_client_auth']),
    );
  });

  test('lists tls_client_auth for the token endpoint only if client_credentials accepts certificates', async () => {
    const methods = async (): Promise<unknown> => (await read())['token_endpoint_auth_methods_supported'];
    const clientMethods = ['client_secret_basic', 'client_secret_post', 'private_key_jwt'];
    expect(await methods()).toEqual(['none', 'tls_client_auth', ...clientMethods]);
    const requestToken = () => oauth.clientCredentials({ client_id: 'report-runner', scope: 'files:read' });
    expect((await requestToken()).status).toBe(200);
    await withSettings(
      gateway,
      (settings) => ({
        ...settings,
        integrations: settings.integrations?.map((integration) => ({
          ...integration,
          grants: integration.grants?.includes('client') === true ? ['client'] : ['device'],
        })),
      }),
      async () => {
        expect(await methods()).toEqual(['none', ...clientMethods]);
        expect((await requestToken()).status).not.toBe(200);
        expect(await read()).toMatchObject({
          grant_types_supported: expect.arrayContaining(['client_credentials']),
        });
      },
    );
  });

  test('lists no method "none" for the token endpoint where all clients must authenticate', async () => {
    await withSettings(
      gateway,
      (settings) => ({
        ...settings,
        integrations: settings.integrations?.filter(({ clientId }) => ['files-api', 'signing-api'].includes(clientId)),
        routes: [{ path: '/files/**', requires: 'files:read' }],
      }),
      async () => {
        const metadata = await read();
        expect(metadata['token_endpoint_auth_methods_supported']).not.toContain('none');
        expect(metadata['token_endpoint_auth_methods_supported']).not.toContain('tls_client_auth');
        // The token is enough to revoke it.
        expect(metadata['revocation_endpoint_auth_methods_supported']).toContain('none');
      },
    );
  });
});
