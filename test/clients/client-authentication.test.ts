import { writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { exportPKCS8 } from 'jose';
import * as oauth from 'oauth4webapi';
import * as openid from 'openid-client';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { hashClientSecret } from '../../src/grants/client-authentication.ts';
import { type ClientGateway, startClientGateway } from '../support/client-gateway.ts';
import { createForeignKey, type ForeignKey } from '../support/foreign-issuer.ts';
import { type ForeignIssuerServer, startForeignIssuer } from '../support/foreign-issuer-server.ts';
import { decodeJwt } from '../support/forged-tokens.ts';
import { installPythonTools, runPython } from './python.ts';

/** Third-party libraries authenticate their clients and exchange tokens, as documented. */
const SECRET = 'ghc_a-secret-for-the-client-libraries_0123456789-ABC';
const FILES = 'https://files.example.test';
const EXCHANGE = 'urn:ietf:params:oauth:grant-type:token-exchange';
const JWT_BEARER = 'urn:ietf:params:oauth:grant-type:jwt-bearer';

let at: ClientGateway;
let key: ForeignKey;
let issuer: ForeignIssuerServer;
beforeAll(async () => {
  [key, issuer] = await Promise.all([createForeignKey('RS256', 'signer'), startForeignIssuer()]);
  at = await startClientGateway((settings) => ({
    ...settings,
    trustedIssuers: { corp: { issuer: issuer.url, audience: 'files-api' } },
    integrations: [
      ...(settings.integrations ?? []),
      {
        clientId: 'billing',
        scope: 'files:read',
        grants: ['client', 'exchange'],
        clientSecretHashes: [hashClientSecret(SECRET)],
        exchange: [{ issuer: 'corp', subject: 'f3c1' }],
      },
      {
        clientId: 'signing',
        scope: 'files:read',
        grants: ['client', 'exchange'],
        jwks: { keys: [key.jwk as Record<string, string>] },
        exchange: [{ issuer: 'corp', subject: 'f3c1' }],
      },
      { clientId: 'pods', scope: 'files:read', exchange: [{ issuer: 'corp', subject: 'f3c1' }] },
      {
        clientId: 'files-only',
        scope: 'files:read',
        grants: ['client'],
        audience: FILES,
        clientSecretHashes: [hashClientSecret(SECRET)],
      },
    ],
  }));
});
afterAll(async () => {
  await at.close();
  issuer.close();
});

const discover = (clientId: string, authentication: openid.ClientAuth): Promise<openid.Configuration> =>
  openid.discovery(new URL(at.url), clientId, undefined, authentication, {
    algorithm: 'oauth2',
    [openid.customFetch]: at.fetch(),
  });
const call = async (token: string): Promise<number> => (await at.gateway.api('/files/1', token)).status;

describe('openid-client', () => {
  test.each([
    ['client_secret_basic', 'billing', () => openid.ClientSecretBasic(SECRET)],
    ['client_secret_post', 'billing', () => openid.ClientSecretPost(SECRET)],
    ['private_key_jwt', 'signing', () => openid.PrivateKeyJwt({ key: key.privateKey, kid: key.kid })],
  ] as const)('%s', async (method, clientId, authenticate) => {
    const config = await discover(clientId, authenticate());
    expect(config.serverMetadata().token_endpoint_auth_methods_supported).toContain(method);
    for (let count = 0; count < 2; count += 1) {
      const { access_token } = await openid.clientCredentialsGrant(config, { scope: 'files:read' });
      expect(await call(access_token)).toBe(200);
    }
  });

  test('a wrong secret is invalid_client', async () => {
    const config = await discover('billing', openid.ClientSecretBasic(`${SECRET}x`));
    await expect(openid.clientCredentialsGrant(config)).rejects.toMatchObject({ status: 401 });
  });

  test('token exchange and JWT bearer, as a public and as a confidential client', async () => {
    for (const [clientId, authentication] of [
      ['pods', openid.None()],
      ['billing', openid.ClientSecretPost(SECRET)],
      ['signing', openid.PrivateKeyJwt({ key: key.privateKey, kid: key.kid })],
    ] as const) {
      const config = await discover(clientId, authentication);
      const exchanged = await openid.genericGrantRequest(config, EXCHANGE, {
        subject_token: await issuer.sign(),
        subject_token_type: 'urn:ietf:params:oauth:token-type:jwt',
      });
      expect(exchanged['issued_token_type']).toBe('urn:ietf:params:oauth:token-type:access_token');
      expect(await call(exchanged.access_token)).toBe(200);
      const borne = await openid.genericGrantRequest(config, JWT_BEARER, { assertion: await issuer.sign() });
      expect(await call(borne.access_token)).toBe(200);
    }
  });
});

describe('oauth4webapi', () => {
  const discoverServer = async (options: oauth.DiscoveryRequestOptions): Promise<oauth.AuthorizationServer> =>
    oauth.processDiscoveryResponse(
      new URL(at.url),
      await oauth.discoveryRequest(new URL(at.url), { ...options, algorithm: 'oauth2' }),
    );

  test.each([
    ['none', 'pods', () => oauth.None()],
    ['client_secret_basic', 'billing', () => oauth.ClientSecretBasic(SECRET)],
    ['private_key_jwt', 'signing', () => oauth.PrivateKeyJwt({ key: key.privateKey, kid: key.kid })],
  ] as const)('token exchange and JWT bearer with %s', async (_, clientId, authenticate) => {
    const options = { [oauth.customFetch]: at.fetch() };
    const server = await discoverServer(options);
    const client = { client_id: clientId };
    const send = async (grantType: string, parameters: Record<string, string>) =>
      oauth.processGenericTokenEndpointResponse(
        server,
        client,
        await oauth.genericTokenEndpointRequest(server, client, authenticate(), grantType, parameters, options),
      );
    const subjectTokenType = 'urn:ietf:params:oauth:token-type:jwt';
    const exchanged = await send(EXCHANGE, {
      subject_token: await issuer.sign(),
      subject_token_type: subjectTokenType,
    });
    expect(exchanged['issued_token_type']).toBe('urn:ietf:params:oauth:token-type:access_token');
    const borne = await send(JWT_BEARER, { assertion: await issuer.sign() });
    for (const { access_token } of [exchanged, borne]) expect(await call(access_token)).toBe(200);
    const other = await issuer.sign({ sub: 'another-subject' });
    await expect(send(EXCHANGE, { subject_token: other, subject_token_type: subjectTokenType })).rejects.toMatchObject({
      error: 'invalid_request',
    });
    await expect(send(JWT_BEARER, { assertion: other })).rejects.toMatchObject({ error: 'invalid_grant' });
  });

  test('resource chooses the audience, and the resource server verifies it', async () => {
    const options = { [oauth.customFetch]: at.fetch() };
    const server = await discoverServer(options);
    const client = { client_id: 'files-only' };
    const obtain = async (resource: string) =>
      oauth.processClientCredentialsResponse(
        server,
        client,
        await oauth.clientCredentialsGrantRequest(
          server,
          client,
          oauth.ClientSecretBasic(SECRET),
          { resource },
          options,
        ),
      );
    const { access_token } = await obtain(FILES);
    const request = new Request(FILES, { headers: { authorization: `Bearer ${access_token}` } });
    const validate = (audience: string) =>
      oauth.validateJwtAccessToken(server, request.clone(), audience, {
        ...options,
        signingAlgorithms: ['EdDSA', 'Ed25519'],
      });
    expect(await validate(FILES)).toMatchObject({ client_id: 'files-only' });
    await expect(validate(at.url)).rejects.toThrow();
    await expect(obtain('https://other.example.test')).rejects.toMatchObject({ error: 'invalid_target' });
  });
});

test('Authlib: client_secret_basic, client_secret_post, private_key_jwt, token exchange and JWT bearer', async () => {
  const bin = await installPythonTools();
  const keyFile = join(at.gateway.folder, 'signer.pem');
  writeFileSync(keyFile, await exportPKCS8(key.privateKey), { mode: 0o600 });
  const tokens: string[] = [];
  const script = join(dirname(fileURLToPath(import.meta.url)), 'authlib_client_authentication.py');
  const { code, output } = await runPython(join(bin, 'python'), [script], {
    env: {
      TOKEN_ENDPOINT: `${at.url}/authsvc/oauth2/token`,
      REQUESTS_CA_BUNDLE: at.files.ca,
      CLIENT_SECRET: SECRET,
      SIGNING_KEY: keyFile,
      SUBJECT_TOKEN: await issuer.sign(),
      PYTHONDONTWRITEBYTECODE: '1',
    },
    onLine: async (line) => {
      tokens.push((JSON.parse(line) as { readonly token: string }).token);
      return undefined;
    },
  });
  expect(code, output).toBe(0);
  expect(tokens).toHaveLength(5);
  for (const token of tokens) expect(await call(token), String(decodeJwt(token).claims['sub'])).toBe(200);
}, 300_000);
