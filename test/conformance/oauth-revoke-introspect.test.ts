import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { withFailure } from '../support/fault-injection.ts';
import { decodeJwt } from '../support/forged-tokens.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { createOAuthClient, type OAuthClient, refusal } from '../support/oauth-client.ts';
import { withIntegration, withoutIntegration, withSettings, withTokens } from '../support/reconfigure.ts';
import { ALICE, startGateway, type TestGateway, type TestRequest, type TokenGrant } from '../support/test-gateway.ts';

/** Wire specification, section 9: revocation, introspection and metadata, with both access token formats. */
let gateway: TestGateway;
freezeClock(250);
let oauth: OAuthClient;
beforeAll(async () => {
  gateway = await startGateway((settings) => ({
    ...settings,
    service: { paths: ['/authsvc', '/auth'] },
    introspection: { requires: 'reports:read', access: [{ groups: ['operators'] }] },
    // A rule that forwards everything, so that a request reaches the upstream unless gatehouse handles it.
    routes: [...(settings.routes ?? []), { path: '/**', public: true }],
  }));
  oauth = createOAuthClient(gateway);
});
afterAll(() => gateway.close());

const isAccepted = async (token: string): Promise<boolean> => (await gateway.api('/files/1', token)).status === 200;
const expectRevoked = async ({ access_token, refresh_token }: TokenGrant): Promise<void> => {
  expect(await isAccepted(access_token)).toBe(false);
  expect(await oauth.refresh(refresh_token)).toMatchObject(refusal('invalid_grant'));
};

describe.each(['jwt', 'opaque'] as const)('with %s tokens', (format) => {
  beforeAll(() => gateway.reload(withTokens({ format })));

  describe('revoke', () => {
    test('RFC 7009: an access token or a refresh token revokes the entire grant', async () => {
      for (const which of ['access_token', 'refresh_token'] as const)
        for (const more of [
          {},
          { token_type_hint: 'refresh_token' },
          { token_type_hint: 'made-up', client_id: 'report-runner' },
        ]) {
          const grant = await gateway.grant();
          const reply = await oauth.revoke(grant[which], more);
          expect(reply.status).toBe(200);
          expect(reply.text).toBe('{}');
          await expectRevoked(grant);
          expect((await oauth.revoke(grant[which], more)).status, 'again').toBe(200);
        }
    });

    test('RFC 7009 §2.2: an unknown token gets 200 and changes nothing', async () => {
      const { access_token, refresh_token } = await gateway.grant();
      for (const token of [
        'x',
        access_token.slice(0, -3),
        `${refresh_token}x`,
        'eyJhbGciOiJub25lIn0.e30.',
        `${'A'.repeat(62)}==`,
      ])
        expect((await oauth.revoke(token)).status).toBe(200);
      expect(await isAccepted(access_token)).toBe(true);
      expect((await oauth.refresh(refresh_token)).status).toBe(200);
    });

    test('RFC 7009 §2.1: a client cannot revoke grants of another client', async () => {
      const grant = await gateway.grant();
      for (const token of [grant.access_token, grant.refresh_token])
        expect(await oauth.revoke(token, { client_id: 'other-app' })).toMatchObject(refusal('invalid_grant'));
      expect(await isAccepted(grant.access_token)).toBe(true);
    });

    test('RFC 7009: spent, superseded or expired tokens also revoke their grant', async () => {
      const first = await gateway.grant();
      const second = (await oauth.refresh(first.refresh_token)).json as unknown as TokenGrant;
      expect((await oauth.revoke(first.refresh_token)).status).toBe(200);
      await expectRevoked(second);
      const late = await gateway.grant();
      gateway.clock.advance(3_601);
      expect((await oauth.revoke(late.access_token)).status).toBe(200);
      expect(await oauth.refresh(late.refresh_token)).toMatchObject(refusal('invalid_grant'));
    });

    test('RFC 7009 §2.2.1: a store failure is 503 with Retry-After, never 200, and this process rejects the token at once', async () => {
      const { grants, revocations } = gateway.server.store;
      for (const which of ['access_token', 'refresh_token'] as const) {
        const grant = await gateway.grant();
        const reply = await withFailure(grants, 'read', 'not executed', () =>
          withFailure(revocations, 'announce', 'not executed', () => oauth.revoke(grant[which])),
        );
        expect(reply).toMatchObject(refusal('temporarily_unavailable', 503));
        expect(reply.headers['retry-after']).toMatch(/^[1-9]/);
        expect(await isAccepted(grant.access_token)).toBe(false);
      }
    });

    test('RFC 7009: a missing token is invalid_request', async () => {
      expect(await oauth.post('revoke', {})).toMatchObject(refusal('invalid_request'));
      expect(await oauth.post('revoke', 'token=')).toMatchObject(refusal('invalid_request'));
    });
  });

  describe('introspect', () => {
    test('RFC 7662: a valid token is described with its current scope', async () => {
      const grant = await gateway.grant({ scope: 'reports:write,read;Files:read;' });
      const reply = await oauth.introspect(grant.access_token);
      expect(reply).toMatchObject({
        status: 200,
        json: {
          active: true,
          scope: 'files:read reports:read reports:write',
          client_id: 'report-runner',
          token_type: 'Bearer',
          exp: grant.expires,
          sub: ALICE,
          iss: 'https://localhost:8443',
          aud: 'https://localhost:8443',
        },
      });
      expect(reply.json['iat']).toBe(grant.expires - 3_600);
      await withSettings(gateway, withIntegration('report-runner', { scope: 'files:read' }), async () =>
        expect((await oauth.introspect(grant.access_token)).json['scope']).toBe('files:read'),
      );
    });

    test('RFC 7662 §2.2: an invalid token is inactive, without further members', async () => {
      const revoked = await gateway.grant();
      await oauth.revoke(revoked.access_token);
      const removed = await gateway.grant({ clientId: 'other-app' });
      const expired = await gateway.grant();
      gateway.clock.advance(3_601);
      const expectInactive = async (token: string): Promise<void> => {
        const reply = await oauth.introspect(token);
        expect(reply.status).toBe(200);
        expect(reply.text).toBe('{"active":false}');
      };
      for (const token of [revoked.access_token, expired.access_token, 'x', `${'A'.repeat(62)}==`])
        await expectInactive(token);
      await expectInactive((await gateway.grant()).refresh_token);
      await withSettings(gateway, withoutIntegration('other-app'), () => expectInactive(removed.access_token));
    });

    test('RFC 8705: a bound token without its certificate cannot introspect', async () => {
      const { access_token: about } = await gateway.grant();
      await withSettings(gateway, withIntegration('report-runner', { bindToCertificate: true }), async () => {
        const { access_token: shown } = await gateway.grant({ scope: 'reports:read' });
        const introspectWithBoundToken = (more: Partial<TestRequest> = {}) =>
          oauth.introspect(about, { headers: { authorization: `Bearer ${shown}` }, ...more });
        expect(await introspectWithBoundToken({ as: gateway.users.alice })).toMatchObject({
          status: 200,
          json: { active: true },
        });
        for (const more of [{}, { as: gateway.users.bob }]) {
          const reply = await introspectWithBoundToken(more);
          expect(reply).toMatchObject(refusal('invalid_token', 401));
          expect(reply.json).not.toHaveProperty('active');
        }
      });
    });

    test('RFC 7662: the response for a bound token contains the certificate thumbprint', async () => {
      await withSettings(gateway, withIntegration('report-runner', { bindToCertificate: true }), async () => {
        const { access_token } = await gateway.grant();
        const { json } = await oauth.introspect(access_token);
        expect(json).toMatchObject({
          active: true,
          cnf: { 'x5t#S256': expect.stringMatching(/^[\w-]{43}$/) },
        });
      });
    });

    test('RFC 7662 §2.1: a bearer token with the required scope may introspect', async () => {
      const { access_token } = await gateway.grant();
      const as = async (scope: string) =>
        oauth.introspect(access_token, {
          headers: { authorization: `Bearer ${(await gateway.grant({ scope })).access_token}` },
        });
      expect(await as('reports:read,write')).toMatchObject({ status: 200, json: { active: true } });
      const poor = await as('files:read');
      expect(poor).toMatchObject(refusal('insufficient_scope', 401));
      expect(poor.headers['www-authenticate']).toBe('Bearer realm="gatehouse", error="insufficient_scope"');
    });

    test('RFC 7662 §4: other clients may not introspect', async () => {
      const { access_token } = await gateway.grant();
      const unknown = await oauth.introspect(access_token, {});
      expect(unknown).toMatchObject(refusal('invalid_client', 401));
      expect(unknown.headers['www-authenticate']).toMatch(/^Bearer realm=/);
      expect(await oauth.introspect(access_token, { as: gateway.users.bob })).toMatchObject(
        refusal('invalid_client', 401),
      );
      const revoked = await gateway.grant({ scope: 'reports:read' });
      await oauth.revoke(revoked.access_token);
      for (const credentials of [
        `Bearer ${revoked.access_token}`,
        'Bearer x',
        'Bearer',
        `Bearer ${revoked.refresh_token}`,
      ]) {
        const reply = await oauth.introspect(access_token, { headers: { authorization: credentials } });
        expect(reply, credentials.slice(0, 12)).toMatchObject(refusal('invalid_token', 401));
      }
      for (const reply of [unknown]) expect(reply.text).not.toContain('active');
      expect(await oauth.post('introspect', {}, { as: gateway.users.alice })).toMatchObject(refusal('invalid_request'));
    });

    test('RFC 7662: without configured access, introspection is disabled and omitted from the metadata', async () => {
      const { access_token } = await gateway.grant({ scope: 'reports:read' });
      const other = await gateway.grant({ scope: 'reports:read' });
      await withSettings(
        gateway,
        (settings) => ({ ...settings, introspection: {} }),
        async () => {
          expect(await oauth.introspect(access_token)).toMatchObject(refusal('invalid_client', 401));
          const headers = { authorization: `Bearer ${other.access_token}` };
          expect(await oauth.introspect(access_token, { headers })).toMatchObject(refusal('insufficient_scope', 401));
          const { json } = await gateway.request({ path: '/.well-known/oauth-authorization-server' });
          expect(json).not.toHaveProperty('introspection_endpoint');
        },
      );
    });
  });
});

test('introspection access without identities, or for an unknown directory, is a configuration error', async () => {
  for (const [entry, problem] of [
    [{}, /introspection\.access\[0\].*selects no one/],
    [{ directory: 'nowhere' }, /introspection\.access\[0\]\.directory.*no such directory/],
    [{ identities: ['else:0123456789abcdef'] }, /no directory has the label/],
  ] satisfies [object, RegExp][])
    await expect(gateway.reload((settings) => ({ ...settings, introspection: { access: [entry] } }))).rejects.toThrow(
      problem,
    );
});

describe('metadata', () => {
  const METADATA = '/.well-known/oauth-authorization-server';

  test('RFC 8414: the metadata lists every endpoint, and each is served', async () => {
    const reply = await gateway.request({ path: METADATA });
    expect(reply.status).toBe(200);
    expect(reply.headers['content-type']).toMatch(/^application\/json/);
    expect(reply.json).toEqual({
      issuer: 'https://localhost:8443',
      token_endpoint: 'https://localhost:8443/authsvc/oauth2/token',
      device_authorization_endpoint: 'https://localhost:8443/authsvc/oauth2/device_authorization',
      revocation_endpoint: 'https://localhost:8443/authsvc/oauth2/revoke',
      introspection_endpoint: 'https://localhost:8443/authsvc/oauth2/introspect',
      jwks_uri: 'https://localhost:8443/authsvc/oauth2/jwks',
      grant_types_supported: ['urn:ietf:params:oauth:grant-type:device_code', 'refresh_token', 'client_credentials'],
      response_types_supported: [],
      token_endpoint_auth_methods_supported: ['none', 'tls_client_auth'],
      revocation_endpoint_auth_methods_supported: ['none'],
      introspection_endpoint_auth_methods_supported: ['tls_client_auth', 'Bearer'],
      tls_client_certificate_bound_access_tokens: false,
    });
    const { iss } = decodeJwt((await jwtGrant()).access_token).claims;
    expect(iss, 'the issuer of our tokens').toBe(reply.json['issuer']);
    for (const [name, url] of Object.entries(reply.json)) {
      if (!/_endpoint$|_uri$/.test(name)) continue;
      const { status } = await gateway.request({ path: new URL(String(url)).pathname, method: 'PUT' });
      expect(status, name).toBe(405);
    }
  });

  const jwtGrant = async (): Promise<TokenGrant> => {
    await gateway.reload(withTokens({ format: 'jwt' }));
    return gateway.grant();
  };

  test('RFC 8414 §3.1: metadata is found for an issuer that includes the service path', async () => {
    for (const [below, issuer] of [
      ['', ''],
      ['/authsvc', '/authsvc'],
      ['/auth', '/auth'],
      ['/AuthSvc', '/AuthSvc'],
    ]) {
      const { status, json } = await gateway.request({ path: `${METADATA}${below}` });
      expect(status).toBe(200);
      expect(json).toMatchObject({
        issuer: `https://localhost:8443${issuer}`,
        token_endpoint: 'https://localhost:8443/authsvc/oauth2/token',
      });
    }
  });

  test('RFC 8414: only the metadata path takes precedence over the routes', async () => {
    const before = gateway.upstream.requests.length;
    expect((await gateway.request({ path: METADATA, method: 'POST' })).headers.allow).toBe('GET, HEAD');
    const head = await gateway.request({ path: METADATA, method: 'HEAD' });
    expect(head.status).toBe(200);
    expect(head.text).toBe('');
    expect((await gateway.request({ path: `${METADATA}?x=1` })).json).toHaveProperty('issuer');
    expect((await gateway.request({ path: '/.well-known/oauth%2Dauthorization-server' })).json).toHaveProperty(
      'issuer',
    );
    expect(gateway.upstream.requests.length).toBe(before);
    for (const path of [`${METADATA}x`, `${METADATA}/`, `${METADATA}/files`, '/.well-known/openid-configuration'])
      expect((await gateway.request({ path })).json, path).toMatchObject({ url: path });
  });

  test('RFC 8414: the metadata omits disabled features', async () => {
    await withSettings(
      gateway,
      (settings) => ({ ...settings, device: { enabled: false } }),
      async () => {
        const { json } = await gateway.request({ path: METADATA });
        expect(json).not.toHaveProperty('device_authorization_endpoint');
        expect(json['grant_types_supported']).toEqual(['refresh_token', 'client_credentials']);
      },
    );
  });
});
