import { writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { exportPKCS8 } from 'jose';
import * as oauth from 'oauth4webapi';
import * as openid from 'openid-client';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type ClientGateway, startClientGateway } from '../support/client-gateway.ts';
import { createForeignKey, type ForeignKey } from '../support/foreign-issuer.ts';
import { installPythonTools, runPython } from './python.ts';
import { RESOURCE_SERVER_SECRET as SECRET, withResourceServers } from './resource-servers.ts';

/** Third-party libraries for resource servers introspect and validate the tokens of gatehouse. */
const SCOPES = ['files:read', 'reports:read', 'reports:write'];

let at: ClientGateway;
let key: ForeignKey;
let token: string;
beforeAll(async () => {
  key = await createForeignKey('RS256', 'signer');
  at = await startClientGateway(withResourceServers(key));
  token = (await at.gateway.grant({ scope: 'reports:write,read;files:read' })).access_token;
});
afterAll(() => at.close());

describe.each([
  ['client_secret_basic', 'files-api', () => openid.ClientSecretBasic(SECRET)],
  ['client_secret_post', 'files-api', () => openid.ClientSecretPost(SECRET)],
  ['private_key_jwt', 'signing-api', () => openid.PrivateKeyJwt({ key: key.privateKey, kid: key.kid })],
  ['tls_client_auth', 'files-api', () => openid.TlsClientAuth()],
] as const)('%s', (method, clientId, authenticate) => {
  const fetch = () => at.fetch(method === 'tls_client_auth' ? at.gateway.users.alice : undefined);

  test('openid-client introspects', async () => {
    const config = await openid.discovery(new URL(at.url), clientId, undefined, authenticate(), {
      algorithm: 'oauth2',
      [openid.customFetch]: fetch(),
    });
    expect(config.serverMetadata().introspection_endpoint_auth_methods_supported).toContain(method);
    const { active, scope, ...claims } = await openid.tokenIntrospection(config, token);
    expect([active, scope?.split(' ')]).toEqual([true, SCOPES]);
    expect(claims).toMatchObject({ iss: at.url, client_id: 'report-runner' });
    expect(await openid.tokenIntrospection(config, 'x')).toEqual({ active: false });
  });

  test('oauth4webapi introspects', async () => {
    const options = { [oauth.customFetch]: fetch() };
    const server = await oauth.processDiscoveryResponse(
      new URL(at.url),
      await oauth.discoveryRequest(new URL(at.url), { ...options, algorithm: 'oauth2' }),
    );
    const client = { client_id: clientId };
    const response = await oauth.introspectionRequest(server, client, authenticate(), token, options);
    expect(await oauth.processIntrospectionResponse(server, client, response)).toMatchObject({
      active: true,
      scope: SCOPES.join(' '),
    });
  });
});

test('openid-client reports a wrong secret as invalid_client', async () => {
  const config = await openid.discovery(
    new URL(at.url),
    'files-api',
    undefined,
    openid.ClientSecretBasic(`${SECRET}x`),
    { algorithm: 'oauth2', [openid.customFetch]: at.fetch() },
  );
  await expect(openid.tokenIntrospection(config, token)).rejects.toMatchObject({ status: 401 });
});

test('Authlib introspects with every method, and reads each scope of a response and of a JWT', async () => {
  const bin = await installPythonTools();
  const keyFile = join(at.gateway.folder, 'signer.pem');
  writeFileSync(keyFile, await exportPKCS8(key.privateKey), { mode: 0o600 });
  const results: Record<string, unknown> = {};
  const script = join(dirname(fileURLToPath(import.meta.url)), 'authlib_resource_server.py');
  const { code, output } = await runPython(join(bin, 'python'), [script], {
    env: {
      ISSUER: at.url,
      REQUESTS_CA_BUNDLE: at.files.ca,
      CLIENT_SECRET: SECRET,
      SIGNING_KEY: keyFile,
      ACCESS_TOKEN: token,
      PYTHONDONTWRITEBYTECODE: '1',
    },
    onLine(line) {
      const result = JSON.parse(line) as { readonly validator: string; readonly results: unknown };
      results[result.validator] = result.results;
    },
  });
  expect(code, output).toBe(0);
  const expected = {
    'files:read': 'accepted',
    'reports:read': 'accepted',
    'reports:write': 'accepted',
    'files:read reports:write': 'accepted',
    'admin:manage': 'insufficient_scope',
    altered: 'invalid_token',
  };
  expect(results).toEqual({
    client_secret_basic: expected,
    client_secret_post: expected,
    private_key_jwt: expected,
    jwt: expected,
  });
});
