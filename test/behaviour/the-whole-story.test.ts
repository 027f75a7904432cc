import { afterAll, beforeAll, expect, test } from 'vitest';
import { ALICE, type House, openHouse, type TokenGrant } from '../support/house.ts';

let house: House;
beforeAll(async () => {
  house = await openHouse();
});
afterAll(() => house.close());

test('a certificate buys a token, the token opens the API, a refresh renews it, a revocation ends it', async () => {
  const asked = { client_id: 'report-runner', scope: 'Files:read' };
  const reply = await house.post('/Authorize/Certificate', asked, { as: house.people.alice });
  expect(reply.status, reply.text).toBe(200);
  const first = reply.json as unknown as TokenGrant;
  expect(first).toMatchObject({ token_type: 'Bearer', scope: 'Files:read', identity: ALICE });

  const allowed = await house.api('/files/1', first.access_token);
  expect(allowed.status, allowed.text).toBe(200);
  expect(allowed.json['headers']).toMatchObject({
    'x-forwarded-user': ALICE,
    'x-forwarded-client-id': 'report-runner',
    'x-forwarded-scope': 'files:read',
  });
  expect((await house.api('/reports/1', first.access_token)).status).toBe(403);
  expect((await house.api('/files/1')).status).toBe(401);
  expect((await house.api('/nowhere', first.access_token)).status).toBe(404);
  expect((await house.api('/health')).status).toBe(200);

  const refreshed = await house.refresh(first.refresh_token);
  expect(refreshed.status, refreshed.text).toBe(200);
  const second = refreshed.json as unknown as TokenGrant;
  expect(second.refresh_until).toBe(first.refresh_until);
  expect(second).not.toHaveProperty('identity');

  const revoked = await house.ask({
    path: '/authsvc/Revoke/Token',
    headers: { authorization: `Bearer ${second.access_token}` },
  });
  expect(revoked.status, revoked.text).toBe(200);
  expect((await house.api('/files/1', first.access_token)).status).toBe(401);
  expect((await house.api('/files/1', second.access_token)).status).toBe(401);
  expect((await house.refresh(second.refresh_token)).json).toMatchObject({ Error: 'invalid_grant' });
});
