import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import * as openid from 'openid-client';
import { afterAll, beforeAll, beforeEach, describe, expect, test, vi } from 'vitest';
import type { SettingsInput } from '../../../src/config/schema.ts';
import { type ClientGateway, startClientGateway } from '../../support/client-gateway.ts';
import { decodeJwt } from '../../support/forged-tokens.ts';
import { freezeClock } from '../../support/frozen-clock.ts';
import {
  INTROSPECTION_CLIENT,
  type OpenIdTokenProvider,
  startOpenIdTokenProvider,
} from '../../support/openid-token-provider.ts';
import { issueServer } from '../../support/pki.ts';
import { withSettings } from '../../support/reconfigure.ts';
import { until } from '../../support/until.ts';

/** Tokens, keys, introspection and logout tokens of an OpenID provider that is not ours (oidc-provider), over TLS. */
const EXCHANGE = 'urn:ietf:params:oauth:grant-type:token-exchange';
const TYPE = 'urn:ietf:params:oauth:token-type:';

let at: ClientGateway;
let provider: OpenIdTokenProvider;
// Date is the clock of the provider, too.
freezeClock();
const advance = (seconds: number): void => void vi.setSystemTime(Date.now() + seconds * 1_000);
beforeAll(async () => {
  at = await startClientGateway();
  provider = await startOpenIdTokenProvider({
    ca: at.gateway.ca,
    server: await issueServer(at.gateway.ca),
    logoutUrl: `${at.url}/authsvc/oauth2/backchannel_logout`,
  });
  await at.gateway.reload((settings) => ({
    ...settings,
    dpop: { enabled: true },
    trustedIssuers: {
      corp: {
        issuer: provider.issuer,
        audience: 'files-api',
        ca: 'ca.pem',
        scopes: { 'files.read': 'files:read' },
        cooldown: '1s',
        timeout: '60s',
        logout: { audience: ['cli', 'cli-with-sessions'], tokenLifetime: '1h' },
        introspection: {
          url: provider.introspectionUrl,
          clientId: INTROSPECTION_CLIENT.id,
          clientSecret: INTROSPECTION_CLIENT.secret,
        },
      },
    },
    integrations: [
      ...(settings.integrations ?? []),
      {
        clientId: 'jobs',
        scope: 'files:read',
        exchange: [
          { issuer: 'corp', subject: 'reports' },
          { issuer: 'corp', subject: 'alice', refresh: true },
        ],
      },
    ],
    routes: [
      { path: '/files/**', requires: 'files:read', issuers: ['own', 'corp'] },
      { path: '/own/**', requires: 'files:read' },
    ],
  }));
});
afterAll(async () => {
  await at?.close();
  await provider?.stop();
});
// A logout revokes what was issued in the same second, too.
beforeEach(() => advance(2));

type IssuerSettings = NonNullable<SettingsInput['trustedIssuers']>[string];
const withIssuer =
  (changes: Partial<IssuerSettings>) =>
  (settings: SettingsInput): SettingsInput => ({
    ...settings,
    trustedIssuers: { corp: { ...(settings.trustedIssuers?.['corp'] as IssuerSettings), ...changes } },
  });

const call = async (token: string, path = '/files/1'): Promise<number> => (await at.gateway.api(path, token)).status;
const discover = (): Promise<openid.Configuration> =>
  openid.discovery(new URL(at.url), 'jobs', undefined, openid.None(), {
    algorithm: 'oauth2',
    [openid.customFetch]: at.fetch(),
  });
const callWithProof = async (token: string, keys: openid.CryptoKeyPair): Promise<number> => {
  const config = await discover();
  const DPoP = openid.getDPoPHandle(config, keys);
  const url = new URL(`${at.url}/files/1`);
  const response = await openid
    .fetchProtectedResource(config, token, url, 'GET', null, undefined, { DPoP })
    .catch((error: unknown) => error as openid.WWWAuthenticateChallengeError);
  return response.status;
};
const exchange = async (token: string, type = 'access_token') => {
  const config = await discover();
  return {
    config,
    ...(await openid.genericGrantRequest(config, EXCHANGE, {
      subject_token: token,
      subject_token_type: `${TYPE}${type}`,
    })),
  };
};

describe('JWT access tokens', () => {
  test('of a program are accepted on routes that list the issuer', async () => {
    const token = await provider.issueToService();
    expect(decodeJwt(token).header).toMatchObject({ typ: 'at+jwt', alg: 'ES256' });
    expect(await call(token)).toBe(200);
    expect(at.gateway.upstream.requests.at(-1)?.headers).toMatchObject({
      'x-forwarded-user': 'corp:reports',
      'x-forwarded-client-id': 'corp/reports',
      'x-forwarded-scope': 'files:read',
    });
    expect(await call(token, '/own/1')).toBe(401);
    advance(601);
    expect(await call(token), 'expired').toBe(401);
  });

  test('of a user are accepted, and the ID token and the refresh token are not', async () => {
    const { tokens } = await provider.signIn('alice');
    expect(await call(tokens.access_token)).toBe(200);
    expect(at.gateway.upstream.requests.at(-1)?.headers).toMatchObject({
      'x-forwarded-user': 'corp:alice',
      'x-forwarded-client-id': 'corp/cli',
    });
    expect(await call(String(tokens.id_token))).toBe(401);
    expect(await call(String(tokens.refresh_token))).toBe(401);
  });

  test('for another API are refused', async () => {
    expect(await call(await provider.issueToService('mail'))).toBe(401);
    await expect(exchange(await provider.issueToService('mail'))).rejects.toMatchObject({
      error: 'invalid_request',
    });
  });

  test('can be revoked by their jti', async () => {
    const [token, other] = [await provider.issueToService(), await provider.issueToService()];
    expect([await call(token), await call(other)]).toEqual([200, 200]);
    const adminToken = readFileSync(join(at.gateway.folder, 'data/admin-token'), 'utf8').trim();
    const response = await fetch(`http://127.0.0.1:${at.gateway.adminPort}/admin/v1/revoke`, {
      method: 'POST',
      headers: { authorization: `Bearer ${adminToken}`, 'content-type': 'application/json' },
      body: JSON.stringify({ issuer: 'corp', jti: decodeJwt(token).claims['jti'] }),
    });
    expect(response.status, await response.text()).toBe(200);
    expect([await call(token), await call(other)]).toEqual([401, 200]);
  });

  test('that are bound to a key need proofs (DPoP)', async () => {
    const keys = await openid.randomDPoPKeyPair('ES256');
    const token = await provider.issueToService('jwt', keys);
    expect(await call(token)).toBe(401);
    expect(await callWithProof(token, keys)).toBe(200);
    expect(await callWithProof(token, await openid.randomDPoPKeyPair('ES256'))).toBe(401);
  });

  test('are verified with the new key after a rotation, and no longer with a key that was removed', async () => {
    const first = await provider.issueToService();
    expect(await call(first)).toBe(200);
    await provider.rotateKey();
    const second = await provider.issueToService();
    expect(decodeJwt(second).header['kid']).not.toBe(decodeJwt(first).header['kid']);
    await until('the new key is known', async () => (await call(second)) === 200);
    expect(await call(first), 'its key is still published').toBe(200);

    await provider.rotateKey({ removePrevious: true });
    const third = await provider.issueToService();
    await until('the third key is known', async () => (await call(third)) === 200);
    expect([await call(first), await call(second)]).toEqual([401, 401]);
  });
});

describe('opaque access tokens', () => {
  test('are accepted while the provider reports them as active, and refused after `cacheLifetime` once it revoked them', async () => {
    const user = await provider.signIn('bob', { resource: 'opaque' });
    const token = user.tokens.access_token;
    const before = provider.requests.length;
    expect(token).not.toContain('.');
    expect(await call(token)).toBe(200);
    expect(at.gateway.upstream.requests.at(-1)?.headers).toMatchObject({
      'x-forwarded-user': 'corp:bob',
      'x-forwarded-client-id': 'corp/cli',
      'x-forwarded-scope': 'files:read',
    });
    expect(await call(token, '/own/1')).toBe(401);
    expect(await call(token)).toBe(200);
    expect(provider.requests.slice(before)).toEqual(['/token/introspection']);

    await user.revoke(token);
    expect(await call(token), 'the result is cached').toBe(200);
    advance(31);
    expect(await call(token)).toBe(401);
  });

  test('for another API, unknown tokens and refresh tokens are refused', async () => {
    const mail = await provider.signIn('bob', { resource: 'opaqueMail' });
    const before = provider.requests.length;
    expect(await call(mail.tokens.access_token)).toBe(401);
    expect(await call(String(mail.tokens.refresh_token))).toBe(401);
    expect(await call('a-token-that-was-never-issued')).toBe(401);
    expect(provider.requests.slice(before)).toEqual(Array(3).fill('/token/introspection'));
  });

  test('of a program have no subject: they are accepted if the identity is `client_id`, with proofs if they are bound', async () => {
    expect(await call(await provider.issueToService('opaque'))).toBe(401);
    await withSettings(at.gateway, withIssuer({ claims: { identity: 'client_id' } }), async () => {
      expect(await call(await provider.issueToService('opaque'))).toBe(200);
      expect(at.gateway.upstream.requests.at(-1)?.headers['x-forwarded-user']).toBe('corp:reports');
      const keys = await openid.randomDPoPKeyPair('ES256');
      const bound = await provider.issueToService('opaque', keys);
      expect(await call(bound)).toBe(401);
      expect(await callWithProof(bound, keys)).toBe(200);
      expect(await callWithProof(bound, await openid.randomDPoPKeyPair('ES256'))).toBe(401);
    });
  });

  test('get 503 if the provider refuses the credentials of gatehouse, never 401', async () => {
    const { tokens } = await provider.signIn('bob', { resource: 'opaque' });
    const introspection = {
      url: provider.introspectionUrl,
      clientId: INTROSPECTION_CLIENT.id,
      clientSecret: 'wrong',
    };
    await withSettings(at.gateway, withIssuer({ introspection }), async () => {
      expect(await call(tokens.access_token)).toBe(503);
    });
    expect(await call(tokens.access_token)).toBe(200);
  });
});

describe('back-channel logout', () => {
  test.each(['cli', 'cli-with-sessions'])(
    'ends the tokens of the user and the grants exchanged from them (%s)',
    async (clientId) => {
      const alice = await provider.signIn('alice', { clientId });
      const opaque = await provider.signIn('alice', { clientId, resource: 'opaque' });
      const other = await provider.signIn('carol', { clientId });
      const grant = await exchange(alice.tokens.access_token);
      const tokens = [
        alice.tokens.access_token,
        opaque.tokens.access_token,
        grant.access_token,
        other.tokens.access_token,
      ];
      const callAll = (): Promise<number[]> => Promise.all(tokens.map((token) => call(token)));
      expect(await callAll()).toEqual([200, 200, 200, 200]);

      await alice.signOut();
      expect(provider.logouts.at(-1)).toBe('200');
      expect(at.gateway.auditEvents('issuer_logout').at(-1)).toMatchObject({
        issuer: 'corp',
        identity: 'corp:alice',
      });
      // The second session is still active at the provider: a subject is signed out everywhere.
      expect(await callAll()).toEqual([401, 401, 401, 200]);
      await expect(openid.refreshTokenGrant(grant.config, String(grant.refresh_token))).rejects.toMatchObject({
        error: 'invalid_grant',
      });
      await expect(exchange(alice.tokens.access_token)).rejects.toMatchObject({ error: 'invalid_request' });

      advance(2);
      const again = await provider.signIn('alice', { clientId });
      expect(await call(again.tokens.access_token), 'signed in again').toBe(200);
    },
  );

  test('is sent only to clients that the user signed in to', async () => {
    const before = provider.logouts.length;
    const alice = await provider.signIn('alice', { clientId: 'without-logout' });
    await alice.signOut();
    expect(provider.logouts).toHaveLength(before);
    expect(await call(alice.tokens.access_token)).toBe(200);
  });

  test('is refused for clients that are not listed, and the provider learns it', async () => {
    const logout = { audience: 'another-client', tokenLifetime: '1h' };
    await withSettings(at.gateway, withIssuer({ logout }), async () => {
      const dave = await provider.signIn('dave');
      await dave.signOut();
      expect(provider.logouts.at(-1)).toContain('400');
      expect(await call(dave.tokens.access_token)).toBe(200);
    });
  });
});

describe('token exchange', () => {
  test('of a token of a program, and a call with the result', async () => {
    const exchanged = await exchange(await provider.issueToService());
    expect(exchanged).toMatchObject({ issued_token_type: `${TYPE}access_token`, scope: 'files:read' });
    expect(exchanged.refresh_token).toBeUndefined();
    for (const path of ['/files/1', '/own/1']) expect(await call(exchanged.access_token, path)).toBe(200);
    expect(at.gateway.upstream.requests.at(-1)?.headers).toMatchObject({
      'x-forwarded-user': 'corp:reports',
      'x-forwarded-client-id': 'jobs',
    });
  });

  test('of a token of a user, whose grant is refreshed', async () => {
    const { tokens } = await provider.signIn('alice');
    const exchanged = await exchange(tokens.access_token, 'jwt');
    const refreshed = await openid.refreshTokenGrant(exchanged.config, String(exchanged.refresh_token));
    expect(await call(refreshed.access_token)).toBe(200);
  });

  test('is refused for other subjects, other kinds of tokens and opaque tokens', async () => {
    const carol = await provider.signIn('carol');
    const alice = await provider.signIn('alice', { resource: 'opaque' });
    for (const [token, type] of [
      [carol.tokens.access_token, 'access_token'],
      [alice.tokens.access_token, 'access_token'],
      [String(alice.tokens.id_token), 'id_token'],
      [String(alice.tokens.refresh_token), 'jwt'],
    ] as const)
      await expect(exchange(token, type)).rejects.toMatchObject({ error: 'invalid_request' });
  });
});

test('no token of the provider is logged', () => {
  const log = at.gateway.logLines.join('\n');
  expect(log).not.toMatch(/eyJ[\w-]+\.eyJ/);
  for (const token of provider.issued) expect(log).not.toContain(token);
});
