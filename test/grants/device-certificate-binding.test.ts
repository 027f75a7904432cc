import { afterAll, beforeAll, expect, test } from 'vitest';
import { createCodeFlow } from '../support/code-client.ts';
import { DEVICE_GRANT } from '../support/device-client.ts';
import { createOAuthClient, getAccessToken, refusal } from '../support/oauth-client.ts';
import { startGateway, type TestGateway } from '../support/test-gateway.ts';

let gateway: TestGateway;
beforeAll(async () => {
  gateway = await startGateway((settings) => ({
    ...settings,
    integrations: settings.integrations?.map((one) => ({ ...one, bindToCertificate: true })),
  }));
});
afterAll(() => gateway.close());

/** Approves a device; returns its code. */
async function approveDevice(): Promise<string> {
  const started = await createOAuthClient(gateway).post('device_authorization', {
    client_id: 'report-runner',
    scope: 'files:read',
  });
  await using flow = createCodeFlow(gateway);
  const { browser } = flow;
  await browser.open(new URL(String(started.json['verification_uri_complete'])).pathname);
  await browser.submit('/device', { user_code: String(started.json['user_code']) });
  await flow.signIn();
  expect((await browser.submit('/approve')).text).toContain('<h1>Approved</h1>');
  return String(started.json['device_code']);
}

test('with bindToCertificate, a device needs a client certificate, and its tokens are valid only with it', async () => {
  const { alice, bob } = gateway.users;
  const client = createOAuthClient(gateway);
  const device_code = await approveDevice();
  const fields = { grant_type: DEVICE_GRANT, client_id: 'report-runner', device_code };
  expect(await client.post('token', fields)).toMatchObject(refusal('invalid_client', 401));
  const reply = await client.post('token', fields, { as: bob });
  const token = getAccessToken(reply);
  expect((await gateway.api('/files/a', token)).status).toBe(401);
  expect((await gateway.api('/files/a', token, { as: alice })).status).toBe(401);
  expect((await gateway.api('/files/a', token, { as: bob })).status).toBe(200);
  const refresh = { grant_type: 'refresh_token', client_id: 'report-runner' };
  const refresh_token = String(reply.json['refresh_token']);
  expect(await client.post('token', { ...refresh, refresh_token })).toMatchObject(refusal('invalid_grant'));
  expect((await client.post('token', { ...refresh, refresh_token }, { as: bob })).status).toBe(200);
});

test('the token API requires it too', async () => {
  const device_code = await approveDevice();
  const fields = { grant_type: DEVICE_GRANT, client_id: 'report-runner', device_code };
  expect((await gateway.post('/Authorize/Token', fields)).json['access_token']).toBeUndefined();
  const reply = await gateway.post('/Authorize/Token', fields, { as: gateway.users.alice });
  const token = getAccessToken(reply);
  expect((await gateway.api('/files/a', token)).status).toBe(401);
  expect((await gateway.api('/files/a', token, { as: gateway.users.alice })).status).toBe(200);
});
