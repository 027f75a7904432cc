import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { SettingsInput } from '../../src/config/schema.ts';
import { hashClientSecret } from '../../src/grants/client-authentication.ts';
import { createForeignKey, type ForeignKey, formatKeySet, signForeign } from '../support/foreign-issuer.ts';
import { type ForeignIssuerServer, startForeignIssuer } from '../support/foreign-issuer-server.ts';
import { createOAuthClient, type OAuthClient, refusal } from '../support/oauth-client.ts';
import { type Reply, startGateway, type TestGateway, type TestRequest } from '../support/test-gateway.ts';

export const ASSERTION_TYPE = 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer';
export const PUBLIC_URL = 'https://localhost:8443';
export const SECRET = 'ghc_first-secret-of-the-billing-service-0123456789';
export const NEXT_SECRET = 'ghc_second-secret-of-the-billing-service-9876543210';
export const OTHER_SECRET = 'ghc_secret-of-the-other-service-0123456789-abcdef';
export const INVALID_CLIENT = refusal('invalid_client', 401);

export type Fields = Readonly<Record<string, string>>;
type Claims = Readonly<Record<string, unknown>>;

/** A gateway with clients that have secrets (`billing`) and keys (`signing`). */
export interface ConfidentialClients {
  readonly gateway: TestGateway;
  readonly oauth: OAuthClient;
  /** The key of `signing`. */
  readonly key: ForeignKey;
  /** The key of `other-signing`, with the same id. */
  readonly otherKey: ForeignKey;
  /** Where the keys of `fetching` are. */
  readonly keyServer: ForeignIssuerServer;
  /** A request for a token with `client_credentials`. */
  readonly request: (fields: Fields, more?: Partial<TestRequest>) => Promise<Reply>;
  readonly signAssertion: (clientId: string, claims?: Claims, header?: Claims, signer?: ForeignKey) => Promise<string>;
  readonly close: () => Promise<void>;
}

export async function startConfidentialClients(): Promise<ConfidentialClients> {
  const [key, otherKey, keyServer] = await Promise.all([
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
  const gateway = await startGateway(
    (settings) => ({
      ...settings,
      device: { interval: '1s' },
      integrations: [...(settings.integrations ?? []), ...integrations],
    }),
    (folder) => writeFileSync(join(folder, 'signing.json'), formatKeySet(key)),
  );
  const oauth = createOAuthClient(gateway);
  return {
    gateway,
    oauth,
    key,
    otherKey,
    keyServer,
    request: (fields, more = {}) => oauth.post('token', { grant_type: 'client_credentials', ...fields }, more),
    signAssertion(clientId, claims = {}, header = {}, signer = key) {
      const now = Math.floor(gateway.clock.now());
      const standard = { iss: clientId, sub: clientId, aud: PUBLIC_URL, iat: now, exp: now + 60 };
      return signForeign(signer, { ...standard, jti: crypto.randomUUID(), ...claims }, header);
    },
    async close() {
      await gateway.close();
      keyServer.close();
    },
  };
}

export const basic = (id: string, secret: string): Partial<TestRequest> => ({
  headers: {
    authorization: `Basic ${Buffer.from(`${encodeURIComponent(id)}:${encodeURIComponent(secret)}`).toString('base64')}`,
  },
});

export const post = (id: string, secret: string): Fields => ({ client_id: id, client_secret: secret });

export const asserted = (assertion: string, more: Fields = {}): Fields => ({
  client_assertion: assertion,
  client_assertion_type: ASSERTION_TYPE,
  ...more,
});
