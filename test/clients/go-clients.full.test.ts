import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { exportPKCS8 } from 'jose';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { hashClientSecret } from '../../src/grants/client-authentication.ts';
import { finish, spawnChild } from '../support/child-process.ts';
import { type ClientGateway, startClientGateway } from '../support/client-gateway.ts';
import { createForeignKey } from '../support/foreign-issuer.ts';
import { type ForeignIssuerServer, startForeignIssuer } from '../support/foreign-issuer-server.ts';
import { ALICE } from '../support/test-gateway.ts';
import { buildGoClient, missingGo } from './go.ts';

const SECRET = 'ghc_a-secret-for-the-client-libraries_0123456789-ABC';
const SUBJECT = 'system:serviceaccount:shop:builder';
const ACCESS_TOKEN = 'urn:ietf:params:oauth:token-type:access_token';

const NATIVE_APP = {
  clientId: 'native',
  scope: 'files:read',
  grants: ['code'],
  redirectUris: ['http://127.0.0.1/callback'],
  access: [{ groups: ['operators'] }],
} satisfies NonNullable<SettingsInput['integrations']>[number];

interface Step {
  readonly step: string;
  readonly status?: number;
  readonly proto?: string;
  readonly error?: string;
  readonly scope?: string;
  readonly issued_token_type?: string;
  readonly user?: string;
  readonly url?: string;
}

if (missingGo !== undefined) console.log(`test/clients/go-clients.full.test.ts is skipped. ${missingGo}`);

/** Where Go is missing, the test is skipped with a message. */
describe.skipIf(missingGo !== undefined)('golang.org/x/oauth2', () => {
  let at: ClientGateway;
  let issuer: ForeignIssuerServer;
  const steps = new Map<string, Step>();
  beforeAll(async () => {
    const [program, key] = await Promise.all([buildGoClient(), createForeignKey('RS256', 'go')]);
    issuer = await startForeignIssuer();
    issuer.published = [key];
    const exchange = { issuer: 'corp', subject: 'system:serviceaccount:shop:*' };
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
          exchange: [exchange],
        },
        {
          clientId: 'signing',
          scope: 'files:read',
          grants: ['client'],
          jwks: { keys: [key.jwk as Record<string, string>] },
        },
        NATIVE_APP,
        { ...NATIVE_APP, clientId: 'desktop', clientSecretHashes: [hashClientSecret(SECRET)] },
        { clientId: 'pods', scope: 'files:read', exchange: [exchange] },
        { clientId: 'jobs', scope: 'files:read', exchange: [{ ...exchange, refresh: true }] },
      ],
    }));
    const keyFile = join(at.gateway.folder, 'go-key.pem');
    writeFileSync(keyFile, await exportPKCS8(key.privateKey), { mode: 0o600 });
    const { code, stdout, stderr } = await finish(
      spawnChild([program], {
        env: {
          PATH: process.env['PATH'],
          TEST_RUN_FOLDER: process.env['TEST_RUN_FOLDER'],
          SSL_CERT_FILE: at.files.ca,
          GATEHOUSE_URL: at.url,
          CLIENT_SECRET: SECRET,
          ISSUER: issuer.url,
          AUDIENCE: 'files-api',
          SUBJECT,
          SIGNING_KEY: keyFile,
          SIGNING_KEY_ID: key.kid,
        },
      }),
      120,
    );
    expect(code, stderr).toBe(0);
    for (const line of stdout.trim().split('\n')) {
      const step = JSON.parse(line) as Step;
      steps.set(step.step, step);
    }
  }, 1_200_000);
  afterAll(async () => {
    await at?.close();
    issuer?.close();
  });

  test.each(['client_secret_basic', 'client_secret_post', 'detected style', 'private_key_jwt'])(
    'client_credentials with %s, and a call over HTTP/2',
    (name) => {
      expect(steps.get(name)).toMatchObject({
        status: 200,
        proto: 'HTTP/2.0',
        scope: 'files:read',
        user: expect.stringMatching(/^client:/),
      });
    },
  );

  test.each([
    'jwt package with credentials in the URL',
    'jwt bearer, public client',
    'jwt bearer, confidential client',
  ])('RFC 7523: %s', (name) => {
    expect(steps.get(name)).toMatchObject({ status: 200, user: `corp:${SUBJECT}` });
    expect(steps.get(name)).not.toHaveProperty('issued_token_type');
  });

  test.each([
    'exchange, public client',
    'exchange, public client, detected style',
    'exchange, confidential client',
    'exchange with a refresh token',
  ])('RFC 8693: %s', (name) => {
    expect(steps.get(name)).toMatchObject({
      status: 200,
      user: `corp:${SUBJECT}`,
      issued_token_type: ACCESS_TOKEN,
    });
  });

  test.each(['externalaccount', 'externalaccount without a scope', 'refresh'])('%s', (name) => {
    expect(steps.get(name)).toMatchObject({ status: 200, user: `corp:${SUBJECT}` });
  });

  test('authorization code with PKCE and a loopback redirect, as a public client and with a secret', async () => {
    const program = await buildGoClient();
    const results = new Map<string, Step>();
    const child = spawnChild([program], {
      env: {
        PATH: process.env['PATH'],
        TEST_RUN_FOLDER: process.env['TEST_RUN_FOLDER'],
        SSL_CERT_FILE: at.files.ca,
        GATEHOUSE_URL: at.url,
        CLIENT_SECRET: SECRET,
        FLOW: 'code',
      },
      onLine(line) {
        const step = JSON.parse(line) as Step;
        results.set(step.step, step);
        if (step.url !== undefined) void at.authorize(step.url).then((location) => fetch(location));
      },
    });
    const { code, stderr } = await finish(child, 120);
    expect(code, stderr).toBe(0);
    for (const client of ['native', 'desktop']) {
      const ofStep = (name: string) => results.get(`${client}: ${name}`);
      expect(ofStep('wrong verifier')).toMatchObject({ status: 400, error: 'invalid_grant' });
      expect(ofStep('exchange')).toMatchObject({ status: 200, scope: 'files:read', user: ALICE });
      expect(ofStep('refresh')).toMatchObject({ status: 200 });
      expect(ofStep('second exchange')).toMatchObject({ status: 400, error: 'invalid_grant' });
      expect(ofStep('after the second exchange')).toMatchObject({ status: 401 });
    }
  });

  test.each([
    ['wrong secret in the header', 401, 'invalid_client'],
    ['wrong secret in the body', 401, 'invalid_client'],
    ['replayed private_key_jwt', 401, 'invalid_client'],
    ['exchange, confidential client without its secret', 401, 'invalid_client'],
    ['jwt package without a client', 400, 'invalid_request'],
    ['externalaccount for another audience', undefined, 'invalid_target'],
  ])('%s is refused', (name, status, error) => {
    const step = steps.get(name);
    expect(step?.status).toBe(status);
    // The packages jwt and externalaccount report the response as text.
    expect(step?.error).toContain(error);
  });

  test('no secret, assertion or token is logged', () => {
    const log = at.gateway.logLines.join('\n');
    expect(log).not.toContain(SECRET);
    expect(log).not.toMatch(/eyJ[\w-]+\.eyJ|ghr_\w+\./);
    expect(steps.size).toBe(20);
  });
});
