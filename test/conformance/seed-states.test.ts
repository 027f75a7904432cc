import { afterAll, beforeAll, expect, test } from 'vitest';
import { deviceSteps } from '../support/device-steps.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { ALICE, type House, openHouse, type TokenGrant } from '../support/house.ts';

/** The specification's section 3: the states of a grant, and what moves it from one to the next. */
let house: House;
freezeClock(250);
beforeAll(async () => {
  house = await openHouse();
});
afterAll(() => house.close());

const refreshed = async (token: string): Promise<TokenGrant> => {
  const reply = await house.refresh(token);
  expect(reply.status, reply.text).toBe(200);
  return reply.json as unknown as TokenGrant;
};

test('seed 3: a pending device code stays pending: HTTP 400 authorization_pending, as often as it is asked', async () => {
  const steps = deviceSteps(house);
  const codes = await steps.ask();
  for (let polls = 0; polls < 3; polls += 1) {
    expect(await steps.exchange(codes.device_code)).toMatchObject({
      status: 400,
      json: { Error: 'authorization_pending' },
    });
    house.clock.advance(codes.interval);
  }
});

test('seed 3: a confirmed device code, used for the first time, gives a token grant', async () => {
  const steps = deviceSteps(house);
  const codes = await steps.ask();
  await steps.confirm(codes);
  const reply = await steps.exchange(codes.device_code);
  expect(reply.status, reply.text).toBe(200);
  expect((await house.api('/files/1', String(reply.json['access_token']))).status).toBe(200);
});

test('seed 3: a device code that was used cannot be used again', async () => {
  const steps = deviceSteps(house);
  const codes = await steps.ask();
  await steps.confirm(codes);
  const grant = (await steps.exchange(codes.device_code)).json as unknown as TokenGrant;
  for (const seconds of [0, 60, 600, 3_600]) {
    house.clock.advance(seconds);
    expect(await steps.exchange(codes.device_code)).toMatchObject({
      status: 400,
      json: { Error: 'invalid_grant' },
    });
  }
  await refreshed(grant.refresh_token);
});

test('seed 3: a confirmed device code that has expired gives nothing', async () => {
  const steps = deviceSteps(house);
  const codes = await steps.ask();
  await steps.confirm(codes);
  house.clock.advance(codes.expires - house.clock.now());
  expect(await steps.exchange(codes.device_code)).toMatchObject({
    status: 400,
    json: { Error: 'invalid_grant' },
  });
});

test('seed 3: a valid token is refreshed to a new pair', async () => {
  const first = await house.grant();
  const second = await refreshed(first.refresh_token);
  expect(second.access_token).not.toBe(first.access_token);
  expect(second.refresh_token).not.toBe(first.refresh_token);
  expect((await house.api('/files/1', second.access_token)).status).toBe(200);
});

test('seed 3: an expired but refreshable token is refreshed to a valid one', async () => {
  const first = await house.grant();
  house.clock.advance(89 * 86_400);
  expect((await house.api('/files/1', first.access_token)).status).toBe(401);
  const second = await refreshed(first.refresh_token);
  expect((await house.api('/files/1', second.access_token)).status).toBe(200);
});

test('seed 3: after refresh_until the refresh token stops working; a new grant is obtained through an Authorize call', async () => {
  const first = await house.grant();
  house.clock.advance(first.refresh_until + 1 - house.clock.now());
  const late = await house.refresh(first.refresh_token);
  expect(late).toMatchObject({ status: 400, json: { Error: 'invalid_grant' } });
  expect(late.json['Error_description']).toMatch(/new grant through an Authorize call/i);
  expect((await house.api('/files/1', (await house.grant()).access_token)).status).toBe(200);
});

test('seed 3: an accepted certificate and an allowed scope give a valid token and the identity', async () => {
  const grant = await house.grant({ scope: 'reports:read,write;files:read' });
  expect(grant.identity).toBe(ALICE);
  expect((await house.api('/reports/1', grant.access_token)).status).toBe(200);
});

test('seed 3: a revoked grant neither opens a call nor is refreshed', async () => {
  const grant = await house.grant();
  const authorization = `Bearer ${grant.access_token}`;
  expect((await house.ask({ path: '/authsvc/Revoke/Token', headers: { authorization } })).status).toBe(200);
  expect((await house.api('/files/1', grant.access_token)).status).toBe(401);
  expect(await house.refresh(grant.refresh_token)).toMatchObject({
    status: 400,
    json: { Error: 'invalid_grant' },
  });
});
