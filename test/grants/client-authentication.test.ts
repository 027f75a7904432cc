import { afterAll, beforeAll, expect, test } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { hashClientSecret } from '../../src/grants/client-authentication.ts';
import { refusal } from '../support/oauth-client.ts';
import { withSettings } from '../support/reconfigure.ts';
import {
  ASSERTION_TYPE,
  asserted,
  basic,
  type ConfidentialClients,
  NEXT_SECRET,
  post,
  SECRET,
  startConfidentialClients,
} from './confidential-clients.ts';

/** Client authentication (RFC 6749 §2.3) at the OAuth endpoints, with every method. */
let gateway: ConfidentialClients['gateway'];
let request: ConfidentialClients['request'];
let signAssertion: ConfidentialClients['signAssertion'];
let close: ConfidentialClients['close'];
beforeAll(async () => {
  ({ gateway, request, signAssertion, close } = await startConfidentialClients());
});
afterAll(() => close());

test('two methods in one request are refused, whichever is right', async () => {
  const assertion = await signAssertion('signing');
  for (const [fields, more] of [
    [post('billing', SECRET), basic('billing', SECRET)],
    [asserted(assertion), basic('signing', SECRET)],
    [{ ...asserted(assertion), client_secret: SECRET }, {}],
    [{ client_assertion_type: ASSERTION_TYPE }, basic('billing', SECRET)],
  ] as const)
    expect(await request(fields, more)).toMatchObject(refusal('invalid_request'));
  const twice = basic('billing', SECRET).headers?.['authorization'];
  expect(await request({}, { headers: { authorization: [String(twice), String(twice)] as never } })).toMatchObject(
    refusal('invalid_request'),
  );
  expect(await request({ client_id: 'other-billing' }, basic('billing', SECRET))).toMatchObject(
    refusal('invalid_request'),
  );
  expect((await request(asserted(assertion))).status, 'the assertion was not used up').toBe(200);
});

test('no secret, assertion or hash is ever logged', async () => {
  const assertion = await signAssertion('signing');
  await request(asserted(assertion));
  await request(post('billing', SECRET));
  await request({}, basic('billing', `${SECRET}x`));
  const encoded = Buffer.from(`billing:${SECRET}`).toString('base64').slice(0, 40);
  for (const line of gateway.logLines)
    for (const secret of [SECRET, NEXT_SECRET, hashClientSecret(SECRET), encoded, assertion.slice(60)])
      expect(line).not.toContain(secret);
});

test('the metadata lists the methods that a client can use', async () => {
  const read = async () => (await gateway.request({ path: '/.well-known/oauth-authorization-server' })).json;
  expect(await read()).toMatchObject({
    token_endpoint_auth_methods_supported: [
      'none',
      'tls_client_auth',
      'client_secret_basic',
      'client_secret_post',
      'private_key_jwt',
    ],
    token_endpoint_auth_signing_alg_values_supported: expect.arrayContaining(['ES256', 'RS256', 'EdDSA']),
  });
  const withoutCredentials = (settings: SettingsInput) => ({
    ...settings,
    integrations: (settings.integrations ?? []).slice(0, 2),
  });
  await withSettings(gateway, withoutCredentials, async () => {
    const metadata = await read();
    expect(metadata['token_endpoint_auth_methods_supported']).toEqual(['none', 'tls_client_auth']);
    expect(metadata).not.toHaveProperty('token_endpoint_auth_signing_alg_values_supported');
  });
});
