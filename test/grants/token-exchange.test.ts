import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { withFailure } from '../support/fault-injection.ts';
import { decodeJwt } from '../support/forged-tokens.ts';
import { getAccessToken, JWT_BEARER, refusal, TOKEN_EXCHANGE, TOKEN_TYPE } from '../support/oauth-client.ts';
import { withIntegration, withSettings } from '../support/reconfigure.ts';
import { type ExchangeGateway, startExchangeGateway, withExchange } from './exchange-gateway.ts';

/** Token exchange (RFC 8693) and JWT bearer (RFC 7523 §2.1): what is issued. */
let gateway: ExchangeGateway['gateway'];
let oauth: ExchangeGateway['oauth'];
let issuers: ExchangeGateway['issuers'];
let live: ExchangeGateway['live'];
let exchange: ExchangeGateway['exchange'];
let bear: ExchangeGateway['bear'];
let close: ExchangeGateway['close'];
beforeAll(async () => {
  ({ gateway, oauth, issuers, live, exchange, bear, close } = await startExchangeGateway());
});
afterAll(() => close());

describe('issued tokens', () => {
  test('a service account token becomes an access token without a refresh token', async () => {
    const reply = await exchange(await issuers.cluster.sign());
    expect(reply.json).toMatchObject({
      token_type: 'Bearer',
      issued_token_type: `${TOKEN_TYPE}access_token`,
      scope: 'files:read',
    });
    expect([3_599, 3_600]).toContain(reply.json['expires_in']);
    expect(reply.json).not.toHaveProperty('refresh_token');
    const token = getAccessToken(reply);
    expect(decodeJwt(token).claims).toMatchObject({
      sub: 'cluster:system:serviceaccount:shop:builder',
      client_id: 'jobs',
      scope: 'files:read',
    });
    const call = await gateway.api('/files/1', token);
    expect(call.status, call.text).toBe(200);
    expect(call.json['headers']).toMatchObject({
      'x-forwarded-user': 'cluster:system:serviceaccount:shop:builder',
      'x-forwarded-client-id': 'jobs',
    });
    expect(gateway.auditEvents('grant_issued').at(-1)).toMatchObject({
      client: 'jobs',
      identity: 'cluster:system:serviceaccount:shop:builder',
      grant_type: 'exchange',
      issuer: 'cluster',
    });
  });

  test.each(['jwt', 'access_token', 'id_token'])('subject_token_type %s is accepted', async (type) => {
    const reply = await exchange(await issuers.cluster.sign(), {
      subject_token_type: `${TOKEN_TYPE}${type}`,
    });
    expect(reply.status, reply.text).toBe(200);
  });

  test('an access token of Dex, which has the claims of an ID token', async () => {
    const token = await issuers.okta.sign({ at_hash: 'dGVzdA', scp: undefined, nonce: 'n' });
    const reply = await exchange(token, { subject_token_type: `${TOKEN_TYPE}access_token` });
    expect(reply.status, reply.text).toBe(200);
  });

  test('an RFC 9068 access token is not an ID token', async () => {
    const token = await issuers.keycloak.sign({}, { typ: 'at+jwt' });
    expect(await exchange(token, { subject_token_type: `${TOKEN_TYPE}id_token` })).toMatchObject(
      refusal('invalid_request'),
    );
    expect((await exchange(token, { subject_token_type: `${TOKEN_TYPE}access_token` })).status).toBe(200);
  });

  test.each([
    ['cluster', 'cluster:system:serviceaccount:shop:builder'],
    ['github', 'github:repo:octo-org/shop:ref:refs/heads/main'],
    ['gitlab', 'gitlab:project_path:shop/api:ref_type:branch:ref:main'],
    ['keycloak', 'keycloak:2a7b1c30-8f0d-4c5e-9b1a-3f2e1d0c9b8a'],
    ['entra', 'entra:3f2e1d0c-9b8a-4c5e-9b1a-2a7b1c308f0d'],
    ['entraV1', 'entraV1:3f2e1d0c-9b8a-4c5e-9b1a-2a7b1c308f0d'],
    ['okta', 'okta:dave@example.test'],
  ] as const)('a token of %s, by either grant type', async (name, identity) => {
    for (const send of [exchange, bear]) {
      const reply = await send(await issuers[name].sign());
      expect(decodeJwt(getAccessToken(reply)).claims['sub']).toBe(identity);
    }
  });

  test('JWT bearer has no issued_token_type', async () => {
    expect((await bear(await issuers.okta.sign())).json).not.toHaveProperty('issued_token_type');
  });

  test('the scope is that of integration and entry, and a request within it', async () => {
    const token = await issuers.github.sign();
    expect((await exchange(token)).json['scope']).toBe('files:read reports:write');
    expect((await exchange(token, { scope: 'reports:write' })).json['scope']).toBe('reports:write');
    expect(await exchange(token, { scope: 'mail:send' })).toMatchObject(refusal('invalid_scope'));
    expect(await exchange(token, { scope: 'a b:' })).toMatchObject(refusal('invalid_scope'));
    const limited = await issuers.cluster.sign();
    expect(await exchange(limited, { scope: 'reports:write' })).toMatchObject(refusal('invalid_scope'));
  });

  test('entries add up', async () => {
    const subject = 'system:serviceaccount:shop:builder';
    await withSettings(
      gateway,
      withExchange([
        { issuer: 'cluster', subject, scope: 'files:read' },
        { issuer: 'cluster', subject: 'system:serviceaccount:shop:*', scope: 'reports:write' },
      ]),
      async () => {
        const reply = await exchange(await issuers.cluster.sign());
        expect(reply.json['scope']).toBe('files:read reports:write');
      },
    );
  });

  test('opaque tokens work, and introspection names the identity', async () => {
    await withSettings(gateway, withIntegration('jobs', { tokenFormat: 'opaque' }), async () => {
      const token = getAccessToken(await exchange(await issuers.okta.sign()));
      expect((await gateway.api('/files/1', token)).status).toBe(200);
      expect((await oauth.introspect(token)).json).toMatchObject({
        active: true,
        sub: 'okta:dave@example.test',
        client_id: 'jobs',
      });
    });
  });

  test('the metadata lists the grant types only where an integration allows them', async () => {
    const read = async () =>
      (await gateway.request({ path: '/.well-known/oauth-authorization-server' })).json['grant_types_supported'];
    expect(await read()).toEqual(expect.arrayContaining([TOKEN_EXCHANGE, JWT_BEARER]));
    await withSettings(gateway, withExchange([]), async () => {
      expect(await read()).not.toContain(TOKEN_EXCHANGE);
      expect(await exchange(await issuers.okta.sign())).toMatchObject(refusal('unsupported_grant_type'));
    });
  });
});

describe('failures of ours', () => {
  test('an issuer whose keys cannot be fetched is 503, never an error of the client', async () => {
    live.isUp = false;
    try {
      await withSettings(
        gateway,
        (settings) => ({
          ...settings,
          trustedIssuers: {
            ...settings.trustedIssuers,
            live: { issuer: live.url, audience: 'files-api', label: 'live', maxStaleness: '0s' },
          },
        }),
        async () => {
          for (const send of [exchange, bear]) {
            const reply = await send(await live.sign());
            expect(reply).toMatchObject(refusal('temporarily_unavailable', 503));
            expect(reply.headers['retry-after']).toMatch(/^[1-9]/);
          }
        },
      );
    } finally {
      live.isUp = true;
    }
  });

  test('an unreachable store is 503', async () => {
    const token = await issuers.cluster.sign();
    const { grants } = gateway.server.store;
    const reply = await withFailure(grants, 'create', 'not executed', () => exchange(token));
    expect(reply).toMatchObject(refusal('temporarily_unavailable', 503));
  });
});

test('a grant can be bound to the certificate of the connection', async () => {
  await withSettings(gateway, withIntegration('jobs', { bindToCertificate: true }), async () => {
    const token = await issuers.cluster.sign();
    expect(await exchange(token)).toMatchObject(refusal('invalid_client', 401));
    const bound = getAccessToken(await exchange(token, {}, { as: gateway.users.alice }));
    expect((await gateway.api('/files/1', bound)).status).toBe(401);
    expect((await gateway.api('/files/1', bound, { as: gateway.users.bob })).status).toBe(401);
    expect((await gateway.api('/files/1', bound, { as: gateway.users.alice })).status).toBe(200);
  });
});
