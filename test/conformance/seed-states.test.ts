import { afterAll, beforeAll, expect, test } from 'vitest';
import { createDeviceClient } from '../support/device-client.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { ALICE, startGateway, type TestGateway, type TokenGrant } from '../support/test-gateway.ts';

/** Token API specification, section 3: the states of a grant and their transitions. */
let gateway: TestGateway;
freezeClock(250);
beforeAll(async () => {
  gateway = await startGateway();
});
afterAll(() => gateway.close());

const refreshGrant = async (token: string): Promise<TokenGrant> => {
  const reply = await gateway.refresh(token);
  expect(reply.status, reply.text).toBe(200);
  return reply.json as unknown as TokenGrant;
};

test('seed 3: a pending device code stays pending: HTTP 400 authorization_pending, regardless of how often it is polled', async () => {
  const steps = createDeviceClient(gateway);
  const codes = await steps.requestCodes();
  for (let polls = 0; polls < 3; polls += 1) {
    expect(await steps.exchange(codes.device_code)).toMatchObject({
      status: 400,
      json: { Error: 'authorization_pending' },
    });
    gateway.clock.advance(codes.interval);
  }
});

test('seed 3: the first exchange of a confirmed device code returns a token grant', async () => {
  const steps = createDeviceClient(gateway);
  const codes = await steps.requestCodes();
  await steps.confirm(codes);
  const reply = await steps.exchange(codes.device_code);
  expect(reply.status, reply.text).toBe(200);
  expect((await gateway.api('/files/1', String(reply.json['access_token']))).status).toBe(200);
});

test('seed 3: a device code that was used cannot be used again', async () => {
  const steps = createDeviceClient(gateway);
  const codes = await steps.requestCodes();
  await steps.confirm(codes);
  const grant = (await steps.exchange(codes.device_code)).json as unknown as TokenGrant;
  for (const seconds of [0, 60, 600, 3_600]) {
    gateway.clock.advance(seconds);
    expect(await steps.exchange(codes.device_code)).toMatchObject({
      status: 400,
      json: { Error: 'invalid_grant' },
    });
  }
  await refreshGrant(grant.refresh_token);
});

test('seed 3: a confirmed device code that has expired cannot be exchanged', async () => {
  const steps = createDeviceClient(gateway);
  const codes = await steps.requestCodes();
  await steps.confirm(codes);
  gateway.clock.advance(codes.expires - gateway.clock.now());
  expect(await steps.exchange(codes.device_code)).toMatchObject({
    status: 400,
    json: { Error: 'invalid_grant' },
  });
});

test('seed 3: a valid token is refreshed to a new pair', async () => {
  const first = await gateway.grant();
  const second = await refreshGrant(first.refresh_token);
  expect(second.access_token).not.toBe(first.access_token);
  expect(second.refresh_token).not.toBe(first.refresh_token);
  expect((await gateway.api('/files/1', second.access_token)).status).toBe(200);
});

test('seed 3: an expired but refreshable token is refreshed to a valid one', async () => {
  const first = await gateway.grant();
  gateway.clock.advance(89 * 86_400);
  expect((await gateway.api('/files/1', first.access_token)).status).toBe(401);
  const second = await refreshGrant(first.refresh_token);
  expect((await gateway.api('/files/1', second.access_token)).status).toBe(200);
});

test('seed 3: after refresh_until the refresh token stops working; a new grant is obtained through an Authorize call', async () => {
  const first = await gateway.grant();
  gateway.clock.advance(first.refresh_until + 1 - gateway.clock.now());
  const late = await gateway.refresh(first.refresh_token);
  expect(late).toMatchObject({ status: 400, json: { Error: 'invalid_grant' } });
  expect(late.json['Error_description']).toMatch(/new grant through an Authorize call/i);
  expect((await gateway.api('/files/1', (await gateway.grant()).access_token)).status).toBe(200);
});

test('seed 3: an accepted certificate and an allowed scope return a valid token and the identity', async () => {
  const grant = await gateway.grant({ scope: 'reports:read,write;files:read' });
  expect(grant.identity).toBe(ALICE);
  expect((await gateway.api('/reports/1', grant.access_token)).status).toBe(200);
});

test('seed 3: a revoked grant neither authorizes a request nor can be refreshed', async () => {
  const grant = await gateway.grant();
  const authorization = `Bearer ${grant.access_token}`;
  expect((await gateway.request({ path: '/authsvc/Revoke/Token', headers: { authorization } })).status).toBe(200);
  expect((await gateway.api('/files/1', grant.access_token)).status).toBe(401);
  expect(await gateway.refresh(grant.refresh_token)).toMatchObject({
    status: 400,
    json: { Error: 'invalid_grant' },
  });
});
