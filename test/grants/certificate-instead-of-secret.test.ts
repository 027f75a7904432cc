import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { hashClientSecret } from '../../src/grants/client-authentication.ts';
import { createOAuthClient } from '../support/oauth-client.ts';
import { createCrl } from '../support/pki.ts';
import { startGateway } from '../support/test-gateway.ts';

const SECRET = 'ghc_first-secret-of-the-billing-service-0123456789';

test('a revoked certificate does not replace the secret at a refresh, and does not revoke the grant', async () => {
  const gateway = await startGateway((settings) => ({
    ...settings,
    integrations: [
      {
        clientId: 'billing',
        scope: 'files:read',
        grants: ['certificate'],
        clientSecretHashes: [hashClientSecret(SECRET)],
        access: [{ groups: ['operators'] }],
      },
    ],
    routes: [],
  }));
  onTestFinished(() => gateway.close());
  const { alice } = gateway.users;
  const refresh = (token: string) =>
    gateway.post('/Authorize/Token', { client_id: 'billing', refresh_token: token }, { as: alice });
  const { refresh_token: spent } = await gateway.grant({ clientId: 'billing', scope: 'files:read' });
  const refreshed = await refresh(spent);
  expect(refreshed.status).toBe(200);
  const current = String(refreshed.json['refresh_token']);

  writeFileSync(join(gateway.folder, 'ca.crl'), (await createCrl(gateway.ca, { revoked: [alice] })).pem);
  await gateway.reload((settings) => ({
    ...settings,
    certificates: { ...settings.certificates, crls: ['ca.crl'] },
  }));
  gateway.clock.advance(60);
  expect((await refresh(current)).status).toBe(400);
  // Its reuse would revoke the grant.
  expect((await refresh(spent)).status).toBe(400);
  const authenticated = { client_id: 'billing', client_secret: SECRET };
  expect((await createOAuthClient(gateway).refresh(current, authenticated)).status).toBe(200);
});
