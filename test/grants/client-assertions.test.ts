import { createHmac } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { withFailure } from '../support/fault-injection.ts';
import { createForeignKey, type ForeignKey } from '../support/foreign-issuer.ts';
import { getAccessToken, refusal } from '../support/oauth-client.ts';
import { withIntegration, withSettings } from '../support/reconfigure.ts';
import type { Reply } from '../support/test-gateway.ts';
import {
  ASSERTION_TYPE,
  asserted,
  type ConfidentialClients,
  type Fields,
  INVALID_CLIENT,
  PUBLIC_URL,
  startConfidentialClients,
} from './confidential-clients.ts';

/** Client authentication with a key (RFC 7523 §2.2) at the OAuth endpoints. */
let gateway: ConfidentialClients['gateway'];
let key: ConfidentialClients['key'];
let otherKey: ConfidentialClients['otherKey'];
let keyServer: ConfidentialClients['keyServer'];
let request: ConfidentialClients['request'];
let signAssertion: ConfidentialClients['signAssertion'];
let close: ConfidentialClients['close'];
beforeAll(async () => {
  ({ gateway, key, otherKey, keyServer, request, signAssertion, close } = await startConfidentialClients());
});
afterAll(() => close());

describe('private_key_jwt', () => {
  test('obtains a token, with client_id or without, for each name of the server', async () => {
    for (const aud of [PUBLIC_URL, `${PUBLIC_URL}/authsvc`, `${PUBLIC_URL}/authsvc/oauth2/token`, [PUBLIC_URL]]) {
      const reply = await request(asserted(await signAssertion('signing', { aud })));
      expect((await gateway.api('/files/1', getAccessToken(reply))).status).toBe(200);
    }
    const named = await request(asserted(await signAssertion('signing'), { client_id: 'signing' }));
    expect(named.status).toBe(200);
    const inline = await signAssertion('other-signing', {}, {}, otherKey);
    expect((await request(asserted(inline))).status).toBe(200);
  });

  test('an assertion is accepted once, also after a restart', async () => {
    const assertion = await signAssertion('signing', { exp: Math.floor(gateway.clock.now()) + 3_000 });
    const replies = await Promise.all([1, 2, 3].map(() => request(asserted(assertion))));
    expect(replies.filter(({ status }) => status === 200)).toHaveLength(1);
    expect(gateway.auditEvents('client_assertion_replayed')).not.toEqual([]);
    await gateway.restart();
    expect(await request(asserted(assertion))).toMatchObject(INVALID_CLIENT);
  });

  test('the same jti of two clients does not collide', async () => {
    const jti = crypto.randomUUID();
    expect((await request(asserted(await signAssertion('signing', { jti })))).status).toBe(200);
    const other = await signAssertion('other-signing', { jti }, {}, otherKey);
    expect((await request(asserted(other))).status).toBe(200);
  });

  const now = (): number => Math.floor(gateway.clock.now());
  test.each<[string, () => Readonly<Record<string, unknown>>, Readonly<Record<string, unknown>>?]>([
    ['another issuer', () => ({ iss: 'other-signing' })],
    ['another subject', () => ({ sub: 'other-signing' })],
    ['no issuer', () => ({ iss: undefined })],
    ['an unknown client', () => ({ iss: 'unknown', sub: 'unknown' })],
    ['another audience', () => ({ aud: 'https://other.example.test' })],
    ['several audiences', () => ({ aud: [PUBLIC_URL, 'https://other.example.test'] })],
    ['no audience', () => ({ aud: undefined })],
    ['an empty audience', () => ({ aud: [] })],
    ['no expiry', () => ({ exp: undefined })],
    ['an expiry that has passed', () => ({ exp: now() - 1 })],
    ['an expiry that is now', () => ({ exp: now() })],
    ['an expiry that is too far away', () => ({ exp: now() + 86_400 })],
    ['an expiry that is not a number', () => ({ exp: '9999999999' })],
    ['a time of issue in the future', () => ({ iat: now() + 300 })],
    ['a beginning in the future', () => ({ nbf: now() + 300 })],
    ['no jti', () => ({ jti: undefined })],
    ['a jti that is not a text', () => ({ jti: 7 })],
    ['the type of an access token', () => ({}), { typ: 'at+jwt' }],
    ['a critical extension', () => ({}), { crit: ['b64'], b64: true }],
    ['an unknown key id', () => ({}), { kid: 'unknown' }],
  ])('%s is invalid_client', async (_label, claims, header) => {
    expect(await request(asserted(await signAssertion('signing', claims(), header)))).toMatchObject(INVALID_CLIENT);
  });

  test('an assertion of client A is not one of client B', async () => {
    const assertion = await signAssertion('signing');
    for (const client_id of ['other-signing', 'billing', 'report-runner'])
      expect(await request(asserted(assertion, { client_id })), client_id).toMatchObject(INVALID_CLIENT);
    const forged = await signAssertion('other-signing', {}, {}, key);
    expect(await request(asserted(forged)), 'signed by A in the name of B').toMatchObject(INVALID_CLIENT);
    expect((await request(asserted(assertion))).status, 'it was not used up').toBe(200);
  });

  test('HMAC with the public key, none, and keys in the header are refused', async () => {
    const [, payload = ''] = (await signAssertion('signing')).split('.');
    const header = (alg: string): string => Buffer.from(JSON.stringify({ alg, kid: key.kid })).toString('base64url');
    const signed = `${header('HS256')}.${payload}`;
    const hmac = createHmac('sha256', JSON.stringify(key.jwk)).update(signed).digest('base64url');
    const attacker = await createForeignKey('ES256', 'attacker');
    for (const assertion of [
      `${signed}.${hmac}`,
      `${header('none')}.${payload}.`,
      await signAssertion('signing', {}, { jwk: attacker.jwk }, attacker),
      await signAssertion('signing', {}, {}, await createForeignKey('ES256', key.kid)),
      'x',
      'a.b.c',
    ])
      expect(await request(asserted(assertion, { client_id: 'signing' }))).toMatchObject(INVALID_CLIENT);
  });

  test('a missing or wrong client_assertion_type is invalid_request', async () => {
    const client_assertion = await signAssertion('signing');
    for (const fields of [
      { client_assertion },
      { client_assertion, client_assertion_type: 'urn:ietf:params:oauth:client-assertion-type:saml2-bearer' },
      { client_assertion_type: ASSERTION_TYPE },
    ])
      expect(await request(fields as Fields)).toMatchObject(refusal('invalid_request'));
  });

  test('keys are fetched from jwksUri, a rotation needs no reload, and an outage is 503', async () => {
    const next = await createForeignKey('ES256', 'next');
    const send = async (signer: ForeignKey): Promise<Reply> =>
      request(asserted(await signAssertion('fetching', {}, {}, signer)));
    const [published] = keyServer.published as [ForeignKey];
    expect((await send(published)).status).toBe(200);
    expect(await send(next)).toMatchObject(INVALID_CLIENT);
    keyServer.isUp = false;
    try {
      // Another URL, so that nothing is cached.
      const change = withIntegration('fetching', { jwksUri: `${keyServer.url}/keys/` });
      await withSettings(gateway, change, async () => {
        expect(await send(published)).toMatchObject(refusal('temporarily_unavailable', 503));
      });
    } finally {
      keyServer.isUp = true;
    }
  });

  test('an unreachable store is 503, not a failed authentication', async () => {
    const assertion = await signAssertion('signing');
    const { notes } = gateway.server.store;
    expect(await withFailure(notes, 'create', 'not executed', () => request(asserted(assertion)))).toMatchObject(
      refusal('temporarily_unavailable', 503),
    );
    expect((await request(asserted(assertion))).status).toBe(200);
  });
});
