import { createHash } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { hashClientSecret } from '../../src/grants/client-authentication.ts';
import { createDeviceClient } from '../support/device-client.ts';
import { decodeJwt } from '../support/forged-tokens.ts';
import { getAccessToken, refusal } from '../support/oauth-client.ts';
import { withIntegration, withSettings } from '../support/reconfigure.ts';
import {
  basic,
  type ConfidentialClients,
  INVALID_CLIENT,
  NEXT_SECRET,
  OTHER_SECRET,
  post,
  SECRET,
  startConfidentialClients,
} from './confidential-clients.ts';

/** Client authentication with a secret (RFC 6749 §2.3.1) at the OAuth endpoints. */
let gateway: ConfidentialClients['gateway'];
let oauth: ConfidentialClients['oauth'];
let request: ConfidentialClients['request'];
let close: ConfidentialClients['close'];
beforeAll(async () => {
  ({ gateway, oauth, request, close } = await startConfidentialClients());
});
afterAll(() => close());

describe('client secrets', () => {
  test('client_secret_basic and client_secret_post obtain a token for the client itself', async () => {
    for (const reply of [
      await request({}, basic('billing', SECRET)),
      await request({ client_id: 'billing' }, basic('billing', SECRET)),
      await request(post('billing', SECRET)),
      await request(post('billing', NEXT_SECRET)),
    ]) {
      const token = getAccessToken(reply);
      expect(reply.json).toMatchObject({ token_type: 'Bearer', scope: 'files:read reports:write' });
      expect(reply.json).not.toHaveProperty('refresh_token');
      const id = createHash('sha256').update('client:billing').digest('hex');
      expect(decodeJwt(token).claims).toMatchObject({ sub: `client:${id}`, client_id: 'billing' });
      expect((await gateway.api('/files/1', token)).status).toBe(200);
    }
    expect(gateway.auditEvents('grant_issued').at(-1)).toMatchObject({
      client: 'billing',
      grant_type: 'client',
    });
    expect((await request({ ...post('billing', SECRET), scope: 'files:read' })).json['scope']).toBe('files:read');
    expect(await request({ ...post('billing', SECRET), scope: 'mail:send' })).toMatchObject(refusal('invalid_scope'));
  });

  test.each([
    ['a wrong secret', 'billing', `${SECRET}x`],
    ['a prefix', 'billing', SECRET.slice(0, -1)],
    ['the hash', 'billing', hashClientSecret(SECRET)],
    ['the secret of another client', 'billing', OTHER_SECRET],
    ['an unknown client', 'unknown', SECRET],
    ['another case of the client', 'Billing', SECRET],
  ])('%s is invalid_client, with a challenge in the scheme that was used', async (_label, id, secret) => {
    const byHeader = await request({}, basic(id, secret));
    expect(byHeader).toMatchObject(INVALID_CLIENT);
    expect(byHeader.headers['www-authenticate']).toBe('Basic realm="gatehouse"');
    const byPost = await request(post(id, secret));
    expect(byPost).toMatchObject(INVALID_CLIENT);
    expect(byPost.json, 'the same response for known and unknown clients').toEqual(byHeader.json);
  });

  test('a removed secret is no longer accepted, and a rotation needs no gap', async () => {
    const change = withIntegration('billing', { clientSecretHashes: [hashClientSecret(NEXT_SECRET)] });
    await withSettings(gateway, change, async () => {
      expect(await request(post('billing', SECRET))).toMatchObject(INVALID_CLIENT);
      expect((await request(post('billing', NEXT_SECRET))).status).toBe(200);
    });
  });

  test('an empty or missing secret does not make a confidential client public', async () => {
    const { refresh_token } = await gateway.grant({ clientId: 'billing' });
    for (const [fields, more] of [
      [{ grant_type: 'client_credentials', client_id: 'billing' }, {}],
      [{ grant_type: 'client_credentials', client_id: 'billing', client_secret: '' }, {}],
      [{ grant_type: 'refresh_token', client_id: 'billing', refresh_token }, {}],
      [{ grant_type: 'refresh_token', client_id: 'billing', refresh_token }, { as: gateway.users.alice }],
      [{ grant_type: 'client_credentials' }, basic('billing', '')],
    ] as const)
      expect(await oauth.post('token', fields, more), JSON.stringify(fields).slice(0, 70)).toMatchObject(
        INVALID_CLIENT,
      );
    expect(await oauth.post('device_authorization', { client_id: 'billing', scope: 'files:read' })).toMatchObject(
      INVALID_CLIENT,
    );
    const refreshed = await oauth.post('token', {
      grant_type: 'refresh_token',
      refresh_token,
      ...post('billing', SECRET),
    });
    expect(refreshed.status, 'nothing was changed').toBe(200);
  });

  test('a certificate still authenticates client_credentials, as its user', async () => {
    const token = getAccessToken(await request({ client_id: 'billing' }, { as: gateway.users.alice }));
    expect(decodeJwt(token).claims['sub']).toMatch(/^local:/);
  });

  test('the token API, which knows no secrets, issues certificate grants only', async () => {
    const { refresh_token } = await gateway.grant({ clientId: 'billing' });
    const refreshAs = (as?: typeof gateway.users.alice) =>
      gateway.post('/Authorize/Token', { client_id: 'billing', refresh_token }, { ...(as && { as }) });
    expect((await refreshAs()).status, 'without the certificate').toBe(400);
    expect((await refreshAs(gateway.users.bob)).status, 'with another certificate').toBe(400);
    expect((await refreshAs(gateway.users.alice)).status).toBe(200);
    const body = { client_id: 'billing', scope: 'files:read' };
    expect(await gateway.post('/Authorize/Device', body)).toMatchObject({
      status: 400,
      json: { Error: 'unauthorized_client' },
    });
    const codes = await oauth.post('device_authorization', {
      ...post('billing', SECRET),
      scope: 'files:read',
    });
    const device = createDeviceClient(gateway);
    await device.decideInBrowser(codes.json as never, { decision: 'approve' });
    expect(await device.exchange(String(codes.json['device_code']), 'billing')).toMatchObject({
      status: 400,
      json: { Error: 'invalid_grant' },
    });
  });

  test('a grant from before the integration had a secret needs it from then on', async () => {
    const device = createDeviceClient(gateway);
    let refreshToken = '';
    await withSettings(
      gateway,
      withIntegration('billing', { clientSecretHashes: [], grants: ['device'] }),
      async () => {
        const codes = await device.requestCodes('billing', 'files:read');
        await device.decideInBrowser(codes, { decision: 'approve' });
        refreshToken = String((await device.exchange(codes.device_code, 'billing')).json['refresh_token']);
      },
    );
    expect(refreshToken).toMatch(/^ghr_/);
    expect((await gateway.refresh(refreshToken, { client_id: 'billing' })).status).toBe(400);
    expect((await oauth.refresh(refreshToken, post('billing', SECRET))).status).toBe(200);
  });

  test('a grant of an authenticated client can be refreshed only by an authenticated client', async () => {
    const device = createDeviceClient(gateway);
    const codes = await oauth.post('device_authorization', {
      ...post('billing', SECRET),
      scope: 'files:read',
    });
    expect(codes.status, codes.text).toBe(200);
    await device.decideInBrowser(codes.json as never, { decision: 'approve' });
    const device_code = String(codes.json['device_code']);
    const granted = await oauth.poll(device_code, post('billing', SECRET));
    expect(granted.status, granted.text).toBe(200);
    const refreshToken = String(granted.json['refresh_token']);
    expect(await gateway.refresh(refreshToken, { client_id: 'billing' })).toMatchObject({
      status: 400,
      json: { Error: 'invalid_grant' },
    });
    expect(await oauth.refresh(refreshToken, { client_id: 'billing' })).toMatchObject(INVALID_CLIENT);
    expect(await oauth.refresh(refreshToken, post('other-billing', OTHER_SECRET))).toMatchObject(
      refusal('invalid_grant'),
    );
    expect((await oauth.refresh(refreshToken, post('billing', SECRET))).status).toBe(200);
  });

  test('client_credentials needs the grant type client', async () => {
    await withSettings(gateway, withIntegration('billing', { grants: ['device'] }), async () => {
      expect(await request(post('billing', SECRET))).toMatchObject(refusal('unauthorized_client'));
    });
  });

  test.each(['Basic', 'Basic !!!', `Basic ${Buffer.from('billing').toString('base64')}`, 'Basic Og=='])(
    'a malformed header %j is refused',
    async (authorization) => {
      expect((await request({ client_id: 'billing' }, { headers: { authorization } })).status).toBe(400);
    },
  );

  test('secrets in the query are refused and not logged', async () => {
    for (const query of [`client_secret=${SECRET}`, `%63lient_secret=${SECRET}`, 'client_assertion=x.y.z']) {
      const reply = await gateway.request({
        path: `/authsvc/oauth2/token?${query}`,
        method: 'POST',
        headers: { 'content-type': 'application/x-www-form-urlencoded' },
        body: `grant_type=client_credentials&client_id=billing&client_secret=${SECRET}`,
      });
      expect(reply).toMatchObject(refusal('invalid_request'));
    }
  });

  test('revocation accepts a credential, does not require one, and refuses a wrong one', async () => {
    const obtain = async (): Promise<string> => getAccessToken(await request(post('billing', SECRET)));
    const token = await obtain();
    expect(await oauth.revoke(token, post('billing', `${SECRET}x`))).toMatchObject(INVALID_CLIENT);
    expect(await oauth.revoke(token, post('other-billing', OTHER_SECRET))).toMatchObject(refusal('invalid_grant'));
    expect((await gateway.api('/files/1', token)).status).toBe(200);
    expect((await oauth.revoke(token, post('billing', SECRET))).status).toBe(200);
    expect((await gateway.api('/files/1', token)).status).toBe(401);
    const other = await obtain();
    expect((await oauth.revoke(other)).status).toBe(200);
    expect((await gateway.api('/files/1', other)).status).toBe(401);
  });

  test('guesses are limited by address, and by client from all addresses', async () => {
    const limit = (name: string) => (settings: SettingsInput) => ({
      ...settings,
      trustedProxies: ['127.0.0.1'],
      limits: { ...settings.limits, rates: { ...settings.limits?.rates, [name]: '3/h' } },
    });
    const from = (address: string, secret: string, id = 'billing') =>
      request(post(id, secret), { headers: { 'x-forwarded-for': address } });
    await withSettings(gateway, limit('clientGuesses'), async () => {
      for (let count = 0; count < 3; count += 1) expect(await from('192.0.2.1', 'wrong')).toMatchObject(INVALID_CLIENT);
      const blocked = await from('192.0.2.1', SECRET);
      expect(blocked).toMatchObject(refusal('temporarily_unavailable', 429));
      expect(blocked.headers['retry-after']).toMatch(/^[1-9]/);
      expect(await from('192.0.2.1', OTHER_SECRET, 'other-billing')).toMatchObject({ status: 429 });
      expect((await from('192.0.2.2', SECRET)).status, 'from another address').toBe(200);
    });
    await withSettings(gateway, limit('allClientGuesses'), async () => {
      for (let count = 0; count < 3; count += 1)
        expect(await from(`192.0.2.${count + 10}`, 'wrong')).toMatchObject(INVALID_CLIENT);
      expect(await from('192.0.2.20', 'wrong')).toMatchObject({ status: 429 });
      expect((await from('192.0.2.21', SECRET)).status, 'guessing does not lock the client out').toBe(200);
      expect((await from('192.0.2.20', OTHER_SECRET, 'other-billing')).status, 'another client').toBe(200);
    });
  });
});
