import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import * as oauth from 'oauth4webapi';
import * as openid from 'openid-client';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { hashClientSecret } from '../../src/grants/client-authentication.ts';
import { type ClientGateway, startClientGateway } from '../support/client-gateway.ts';
import { createForeignKey } from '../support/foreign-issuer.ts';
import { installPythonTools, runPython } from './python.ts';

/** Third-party libraries sign users in with the authorization code flow, used as documented. */
const SECRET = 'ghc_a-secret-for-the-client-libraries_0123456789-ABC';
const CALLBACK = 'https://app.example.test/callback';

let at: ClientGateway;
const key = await createForeignKey('ES256', 'app-1');
beforeAll(async () => {
  const app = {
    scope: 'files:read',
    grants: ['code' as const],
    redirectUris: [CALLBACK],
    access: [{ groups: ['operators'] }],
  };
  const clientSecretHashes = [hashClientSecret(SECRET)];
  at = await startClientGateway((settings) => ({
    ...settings,
    dpop: { enabled: true },
    integrations: [
      { ...app, clientId: 'public' },
      { ...app, clientId: 'python' },
      { ...app, clientId: 'web', clientSecretHashes },
      { ...app, clientId: 'python-web', clientSecretHashes },
      { ...app, clientId: 'signing', jwks: { keys: [key.jwk as Record<string, string>] } },
    ],
    routes: [{ path: '/files/**', requires: 'files:read' }],
  }));
});
afterAll(() => at.close());

const call = async (token: string): Promise<number> => (await at.gateway.api('/files/1', token)).status;

describe('openid-client', () => {
  test.each<[string, string, openid.ClientAuth, boolean]>([
    ['a public client', 'public', openid.None(), false],
    ['a client secret', 'web', openid.ClientSecretBasic(SECRET), false],
    ['a client secret, pushed request', 'web', openid.ClientSecretPost(SECRET), true],
    ['private_key_jwt, pushed request', 'signing', openid.PrivateKeyJwt({ key: key.privateKey, kid: key.kid }), true],
  ])('%s', async (_, clientId, authentication, isPushed) => {
    const config = await openid.discovery(new URL(at.url), clientId, undefined, authentication, {
      algorithm: 'oauth2',
      [openid.customFetch]: at.fetch(),
    });
    const verifier = openid.randomPKCECodeVerifier();
    const state = openid.randomState();
    const parameters = {
      redirect_uri: CALLBACK,
      scope: 'files:read',
      state,
      code_challenge: await openid.calculatePKCECodeChallenge(verifier),
      code_challenge_method: 'S256',
    };
    const url = isPushed
      ? await openid.buildAuthorizationUrlWithPAR(config, parameters)
      : openid.buildAuthorizationUrl(config, parameters);
    const response = new URL(await at.authorize(url.href));
    const checks = { pkceCodeVerifier: verifier, expectedState: state };
    const tokens = await openid.authorizationCodeGrant(config, response, checks);
    expect(await call(tokens.access_token)).toBe(200);
    const next = await openid.refreshTokenGrant(config, String(tokens.refresh_token));
    expect(await call(next.access_token)).toBe(200);
    await expect(openid.authorizationCodeGrant(config, response, checks)).rejects.toMatchObject({
      error: 'invalid_grant',
    });
    expect(await call(next.access_token)).toBe(401);
  });

  test('a response of another issuer is refused by the library (mix-up)', async () => {
    const config = await openid.discovery(new URL(at.url), 'public', undefined, openid.None(), {
      algorithm: 'oauth2',
      [openid.customFetch]: at.fetch(),
    });
    const response = new URL(`${CALLBACK}?code=x&iss=https://evil.example.test`);
    await expect(openid.authorizationCodeGrant(config, response, { pkceCodeVerifier: 'v' })).rejects.toMatchObject({
      code: 'OAUTH_INVALID_RESPONSE',
    });
  });
});

test('oauth4webapi: the issuer of the service path, a pushed request, and a code that is bound to a DPoP key', async () => {
  const options = { [oauth.customFetch]: at.fetch() };
  const client = { client_id: 'public' };
  const issuer = new URL(`${at.url}/authsvc`);
  const as = await oauth.processDiscoveryResponse(
    issuer,
    await oauth.discoveryRequest(issuer, { ...options, algorithm: 'oauth2' }),
  );
  const keys = await oauth.generateKeyPair('ES256');
  const DPoP = oauth.DPoP({}, keys);
  const verifier = oauth.generateRandomCodeVerifier();
  const state = oauth.generateRandomState();
  const parameters = new URLSearchParams({
    response_type: 'code',
    redirect_uri: CALLBACK,
    scope: 'files:read',
    state,
    code_challenge: await oauth.calculatePKCECodeChallenge(verifier),
    code_challenge_method: 'S256',
    dpop_jkt: await DPoP.calculateThumbprint(),
  });
  const pushed = await oauth.processPushedAuthorizationResponse(
    as,
    client,
    await oauth.pushedAuthorizationRequest(as, client, oauth.None(), parameters, options),
  );
  const url = new URL(as.authorization_endpoint ?? '');
  url.searchParams.set('client_id', 'public');
  url.searchParams.set('request_uri', pushed.request_uri);
  const response = new URL(await at.authorize(url.href));
  // Compares `iss` with the issuer of the service path.
  const validated = oauth.validateAuthResponse(as, client, response, state);
  const exchange = async (proof: oauth.DPoPHandle) =>
    oauth.processAuthorizationCodeResponse(
      as,
      client,
      await oauth.authorizationCodeGrantRequest(as, client, oauth.None(), validated, CALLBACK, verifier, {
        ...options,
        DPoP: proof,
      }),
    );
  const other = oauth.DPoP({}, await oauth.generateKeyPair('ES256'));
  await expect(exchange(other)).rejects.toMatchObject({ error: 'invalid_grant' });
  const tokens = await exchange(DPoP);
  expect(tokens.token_type).toBe('dpop');
  const called = await oauth.protectedResourceRequest(
    tokens.access_token,
    'GET',
    new URL(`${at.url}/files/1`),
    undefined,
    undefined,
    { ...options, DPoP },
  );
  expect(called.status).toBe(200);
});

test('Authlib: a public client and client secrets', async () => {
  const bin = await installPythonTools();
  const done: unknown[] = [];
  const script = join(dirname(fileURLToPath(import.meta.url)), 'authlib_authorization_code.py');
  const { code, output } = await runPython(join(bin, 'python'), [script], {
    env: {
      GATEHOUSE_URL: at.url,
      REQUESTS_CA_BUNDLE: at.files.ca,
      CLIENT_SECRET: SECRET,
      PYTHONDONTWRITEBYTECODE: '1',
    },
    onLine: async (line) => {
      const { step, url, ...rest } = JSON.parse(line) as { step: string; url?: string; method?: string };
      if (url !== undefined) return at.authorize(url);
      done.push([step, rest.method]);
      return undefined;
    },
  });
  expect(code, output).toBe(0);
  expect(done).toEqual([
    ['done', 'none'],
    ['done', 'client_secret_basic'],
    ['done', 'client_secret_post'],
  ]);
}, 300_000);
