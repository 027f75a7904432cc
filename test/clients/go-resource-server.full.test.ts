import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { finish, spawnChild } from '../support/child-process.ts';
import { type ClientGateway, startClientGateway } from '../support/client-gateway.ts';
import { createForeignKey } from '../support/foreign-issuer.ts';
import { goResourceServer } from './go.ts';
import { RESOURCE_SERVER_SECRET, withResourceServers } from './resource-servers.ts';

const { missing } = goResourceServer;
if (missing !== undefined) console.log(`test/clients/go-resource-server.full.test.ts is skipped. ${missing}`);

describe.skipIf(missing !== undefined)('github.com/zitadel/oidc', () => {
  let at: ClientGateway;
  beforeAll(async () => {
    at = await startClientGateway(withResourceServers(await createForeignKey('RS256', 'signer')));
  });
  afterAll(() => at?.close());

  test('introspects with a client secret and reads each scope', async () => {
    const results: unknown[] = [];
    const endpoints = `${at.url}/authsvc/oauth2`;
    const child = spawnChild([await goResourceServer.build()], {
      env: {
        ...process.env,
        ISSUER: at.url,
        TOKEN_ENDPOINT: `${endpoints}/token`,
        INTROSPECTION_ENDPOINT: `${endpoints}/introspect`,
        SSL_CERT_FILE: at.files.ca,
        CLIENT_SECRET: RESOURCE_SERVER_SECRET,
        ACCESS_TOKEN: (await at.gateway.grant({ scope: 'reports:write,read;files:read' })).access_token,
      },
      onLine: (line) => void results.push(JSON.parse(line)),
    });
    const { code, output } = await finish(child, 60);
    expect(code, output).toBe(0);
    expect(results).toEqual([
      { step: 'client_secret_basic', active: true, scope: ['files:read', 'reports:read', 'reports:write'] },
      { step: 'another token', active: false },
      { step: 'wrong secret', active: false, error: expect.stringContaining('invalid_client') },
    ]);
  });
});
