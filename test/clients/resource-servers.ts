import { hashClientSecret } from '../../src/grants/client-authentication.ts';
import type { ForeignKey } from '../support/foreign-issuer.ts';
import type { SettingsChange } from '../support/test-gateway.ts';

export const RESOURCE_SERVER_SECRET = 'ghc_a-secret-of-the-resource-server_0123456789-ABC';

/** Integrations that may introspect, as documented: `files-api` with a secret, `signing-api` with a key. Operators may with a certificate. */
export const withResourceServers =
  (key: ForeignKey): SettingsChange =>
  (settings) => ({
    ...settings,
    // Authlib validates no EdDSA signatures.
    keys: { ...settings.keys, algorithm: 'ES256' },
    introspection: { requires: 'tokens:introspect', access: [{ groups: ['operators'] }] },
    integrations: [
      ...(settings.integrations ?? []),
      {
        clientId: 'files-api',
        scope: 'tokens:introspect',
        grants: ['client'],
        clientSecretHashes: [hashClientSecret(RESOURCE_SERVER_SECRET)],
      },
      {
        clientId: 'signing-api',
        scope: 'tokens:introspect',
        grants: ['client'],
        jwks: { keys: [key.jwk as Record<string, string>] },
      },
    ],
  });
