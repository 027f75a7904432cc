import { expect, test } from 'vitest';
import { createForeignKey, signForeign } from '../support/foreign-issuer.ts';
import { startForeignIssuer } from '../support/foreign-issuer-server.ts';
import { gatewaysOnRedis } from '../support/gateways-on-redis.ts';
import { createOAuthClient, JWT_BEARER } from '../support/oauth-client.ts';
import type { Reply, TestGateway } from '../support/test-gateway.ts';

/** What is accepted once is accepted once by all replicas together. */
const { startTwoGateways, closeLater } = gatewaysOnRedis();

const sendToBoth = async (
  gateways: readonly TestGateway[],
  fields: Readonly<Record<string, string>>,
): Promise<readonly Reply[]> =>
  Promise.all([...gateways, ...gateways].map((gateway) => createOAuthClient(gateway).post('token', fields)));

test('a client assertion, on Redis', async () => {
  const key = await createForeignKey();
  const gateways = await startTwoGateways((settings) => ({
    ...settings,
    integrations: [
      {
        clientId: 'signing',
        scope: 'files:read',
        grants: ['client'],
        jwks: { keys: [key.jwk as Record<string, string>] },
      },
    ],
    routes: [],
  }));
  const now = Math.floor(Date.now() / 1_000);
  const claims = { iss: 'signing', sub: 'signing', aud: 'https://localhost:8443', exp: now + 60, jti: 'one' };
  const replies = await sendToBoth(gateways, {
    grant_type: 'client_credentials',
    client_assertion: await signForeign(key, claims),
    client_assertion_type: 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer',
  });
  expect(replies.map(({ status }) => status).toSorted((a, b) => a - b)).toEqual([200, 401, 401, 401]);
});

test('a token that is exchanged once, on Redis', async () => {
  const issuer = await startForeignIssuer();
  closeLater(() => issuer.close());
  const gateways = await startTwoGateways((settings) => ({
    ...settings,
    trustedIssuers: { corp: { issuer: issuer.url, audience: 'files-api' } },
    integrations: [
      {
        clientId: 'jobs',
        scope: 'files:read',
        exchange: [{ issuer: 'corp', subject: 'f3c1', once: true }],
      },
    ],
    routes: [],
  }));
  const replies = await sendToBoth(gateways, {
    grant_type: JWT_BEARER,
    client_id: 'jobs',
    // A new Redis may have lost revocations, so it accepts no token that was issued before it.
    assertion: await issuer.sign({ iat: Math.floor(Date.now() / 1_000) + 2 }),
  });
  expect(
    replies.map(({ status }) => status).toSorted((a, b) => a - b),
    replies.map(({ text }) => text).join(),
  ).toEqual([200, 400, 400, 400]);
});
