import { expect, test } from 'vitest';
import { createForeignKey, signForeign } from '../support/foreign-issuer.ts';
import { startForeignIssuer } from '../support/foreign-issuer-server.ts';
import { gatewaysOnRedis } from '../support/gateways-on-redis.ts';
import { createOAuthClient, JWT_BEARER } from '../support/oauth-client.ts';
import type { Reply, SettingsChange, TestGateway } from '../support/test-gateway.ts';
import { until } from '../support/until.ts';

/** What is accepted once is accepted once by all replicas together. */
const { startTwoGateways, closeLater } = gatewaysOnRedis();

const sendToBoth = async (
  gateways: readonly TestGateway[],
  fields: Readonly<Record<string, string>>,
): Promise<readonly Reply[]> =>
  Promise.all([...gateways, ...gateways].map((gateway) => createOAuthClient(gateway).post('token', fields)));

const key = await createForeignKey();
const withSigningClient: SettingsChange = (settings) => ({
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
});
const signAssertion = async (exp: number): Promise<Readonly<Record<string, string>>> => ({
  grant_type: 'client_credentials',
  client_assertion: await signForeign(key, {
    iss: 'signing',
    sub: 'signing',
    aud: 'https://localhost:8443',
    exp,
    jti: 'one',
  }),
  client_assertion_type: 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer',
});
const now = (): number => Math.floor(Date.now() / 1_000);

test('a client assertion, on Redis', async () => {
  const gateways = await startTwoGateways(withSigningClient);
  const replies = await sendToBoth(gateways, await signAssertion(now() + 60));
  expect(replies.map(({ status }) => status).toSorted((a, b) => a - b)).toEqual([200, 401, 401, 401]);
});

test('a client assertion that has expired, at a replica whose clock is behind', async () => {
  const [first, second] = await startTwoGateways(withSigningClient);
  second.clock.advance(-20);
  const expires = now() + 4;
  const fields = await signAssertion(expires);
  const send = async (gateway: TestGateway) => (await createOAuthClient(gateway).post('token', fields)).json['error'];
  expect(await send(first)).toBeUndefined();
  await until('it has expired', () => now() > expires + 1);
  expect([await send(first), await send(second)]).toEqual(['invalid_client', 'invalid_client']);
  expect(second.auditEvents('client_assertion_replayed')).toHaveLength(1);
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
