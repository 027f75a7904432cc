import { afterAll, beforeAll, expect, test } from 'vitest';
import { ALICE, startGateway, type TestGateway, type TokenGrant } from '../support/test-gateway.ts';

let gateway: TestGateway;
beforeAll(async () => {
  gateway = await startGateway();
});
afterAll(() => gateway.close());

test('a client obtains a token with a certificate, calls the API, refreshes the token and revokes it', async () => {
  const body = { client_id: 'report-runner', scope: 'Files:read' };
  const reply = await gateway.post('/Authorize/Certificate', body, { as: gateway.users.alice });
  expect(reply.status, reply.text).toBe(200);
  const first = reply.json as unknown as TokenGrant;
  expect(first).toMatchObject({ token_type: 'Bearer', scope: 'Files:read', identity: ALICE });

  const allowed = await gateway.api('/files/1', first.access_token);
  expect(allowed.status, allowed.text).toBe(200);
  expect(allowed.json['headers']).toMatchObject({
    'x-forwarded-user': ALICE,
    'x-forwarded-client-id': 'report-runner',
    'x-forwarded-scope': 'files:read',
  });
  expect((await gateway.api('/reports/1', first.access_token)).status).toBe(403);
  expect((await gateway.api('/files/1')).status).toBe(401);
  expect((await gateway.api('/nowhere', first.access_token)).status).toBe(404);
  expect((await gateway.api('/health')).status).toBe(200);

  const refreshed = await gateway.refresh(first.refresh_token);
  expect(refreshed.status, refreshed.text).toBe(200);
  const second = refreshed.json as unknown as TokenGrant;
  expect(second.refresh_until).toBe(first.refresh_until);
  expect(second).not.toHaveProperty('identity');

  const revoked = await gateway.request({
    path: '/authsvc/Revoke/Token',
    headers: { authorization: `Bearer ${second.access_token}` },
  });
  expect(revoked.status, revoked.text).toBe(200);
  expect((await gateway.api('/files/1', first.access_token)).status).toBe(401);
  expect((await gateway.api('/files/1', second.access_token)).status).toBe(401);
  expect((await gateway.refresh(second.refresh_token)).json).toMatchObject({ Error: 'invalid_grant' });
});
