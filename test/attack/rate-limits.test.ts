import { expect, onTestFinished, test } from 'vitest';
import { limitName } from '../../src/http/rate-limit.ts';
import { deviceSteps } from '../support/device-steps.ts';
import { type Ask, type House, openHouse, type Reply } from '../support/house.ts';
import { oauthSteps } from '../support/oauth-steps.ts';

test('an IPv6 network of 64 bits has one limit, shared with no other network, in every notation', () => {
  const same = ['2001:db8:0:7::1', '2001:DB8:0:7:a:b:c:d', '2001:0db8:0000:0007::', '2001:db8:0:7:0:0:0:2'];
  expect(new Set(same.map(limitName)).size).toBe(1);
  const others = ['2001::7:1:2:3:4', '2001::8:1:2:3:4', '2001::1', '::1', '2001:db8::1'];
  expect(new Set(others.map(limitName)).size).toBe(others.length);
});

test('client_credentials is subject to the rate limit of Authorize/Certificate', async () => {
  const house = await openHouse((settings) => ({
    ...settings,
    limits: { rates: { ...settings.limits?.rates, certificate: '1/h' } },
  }));
  onTestFinished(() => house.close());
  const steps = oauthSteps(house);
  expect((await steps.clientCredentials()).status).toBe(200);
  const second = await steps.clientCredentials();
  expect(second.status).toBe(429);
  expect(second.headers['retry-after']).toMatch(/^\d+$/);
});

type Rates = Readonly<Record<string, string>>;

async function houseWith(rates: Rates): Promise<House> {
  const house = await openHouse((settings) => ({
    ...settings,
    trustedProxies: ['127.0.0.1'],
    limits: { rates: { ...settings.limits?.rates, ...rates } },
  }));
  onTestFinished(() => house.close());
  return house;
}

/** Authorize/Token knows only 400: a long wait tells a limit apart from other failures. */
const isLimited = ({ status, headers }: Reply): boolean =>
  (status === 429 || status === 400) && Number(headers['retry-after'] ?? 0) > 60;
const from = (address: string): Partial<Ask> => ({ headers: { 'x-forwarded-for': address } });
const refreshFrom = (house: House, token: string, address: string): Promise<Reply> =>
  house.post('/Authorize/Token', { client_id: 'report-runner', refresh_token: token }, from(address));

test('clients with valid refresh tokens behind one address do not share a limit, on both token endpoints', async () => {
  const house = await houseWith({ token: '3/h' });
  const steps = oauthSteps(house);
  for (let count = 0; count < 6; count += 1) {
    const { refresh_token: token } = await house.grant();
    const refreshed = await house.refresh(token);
    expect(refreshed.status).toBe(200);
    expect((await steps.refresh(String(refreshed.json['refresh_token']))).status).toBe(200);
  }
});

test('one grant has a limit of its own', async () => {
  const house = await houseWith({ token: '3/h' });
  let { refresh_token: token } = await house.grant();
  for (let count = 0; count < 3; count += 1) {
    const { status, json } = await house.refresh(token);
    expect(status).toBe(200);
    token = String(json['refresh_token']);
  }
  expect(isLimited(await house.refresh(token))).toBe(true);
});

test('calls with invalid tokens are limited by address, and use up nothing of the client that they name', async () => {
  const house = await houseWith({ token: '3/h' });
  const { refresh_token: token } = await house.grant();
  const forged = `${token.slice(0, -4)}AAAA`;
  const limited: boolean[] = [];
  for (let count = 0; count < 5; count += 1) limited.push(isLimited(await house.refresh(forged)));
  expect(limited).toEqual([false, false, false, true, true]);
  // A body that cannot be read counts as well.
  expect(isLimited(await house.post('/Authorize/Token', 'not an object'))).toBe(true);
  expect((await house.refresh(token)).status).toBe(200);
});

test('a spent refresh token uses up nothing of its grant when it comes from another address', async () => {
  const house = await houseWith({ token: '3/h' });
  await house.reload((settings) => ({
    ...settings,
    tokens: { refresh: { retryWindow: '0s', reuse: 'reject' } },
  }));
  const { refresh_token: spent } = await house.grant();
  const { json } = await refreshFrom(house, spent, '203.0.113.1');
  const limited: boolean[] = [];
  for (let count = 0; count < 4; count += 1)
    limited.push(isLimited(await refreshFrom(house, spent, '203.0.113.2')));
  expect(limited).toEqual([false, false, false, true]);
  expect((await refreshFrom(house, String(json['refresh_token']), '203.0.113.1')).status).toBe(200);
});

test('certificates behind one address have a limit each; calls without one, or for an unknown client, count by address', async () => {
  const house = await houseWith({ certificate: '2/h' });
  const { alice, bob } = house.people;
  const ask = (as: Ask['as'], clientId = 'report-runner'): Promise<Reply> =>
    house.post('/Authorize/Certificate', { client_id: clientId, scope: 'files:read' }, as ? { as } : {});
  const limits = async (...asked: readonly Parameters<typeof ask>[]): Promise<readonly boolean[]> => {
    const found: boolean[] = [];
    for (const words of asked) found.push(isLimited(await ask(...words)));
    return found;
  };
  expect(await limits([undefined], [undefined], [undefined])).toEqual([false, false, true]);
  expect(await limits([alice, 'unknown-1'])).toEqual([true]);
  expect(await limits([alice], [alice], [alice], [bob])).toEqual([false, false, true, false]);
  // The limit is one for both endpoints.
  expect(isLimited(await oauthSteps(house).clientCredentials({}, { as: alice }))).toBe(true);
});

test('authentic access tokens behind one address have a limit each for Verify and for revocation', async () => {
  const house = await houseWith({ verify: '2/h', revoke: '2/h' });
  const verify = (token: string): Promise<Reply> => house.api('/authsvc/Authorize/Verify', token);
  const revoke = (token: string): Promise<Reply> => house.api('/authsvc/Revoke/Token', token);
  const junk = 'a.b.c';
  for (const ask of [verify, revoke]) {
    const limited: boolean[] = [];
    for (let count = 0; count < 3; count += 1) limited.push(isLimited(await ask(junk)));
    expect(limited).toEqual([false, false, true]);
    for (let count = 0; count < 4; count += 1)
      expect((await ask((await house.grant()).access_token)).status).toBe(200);
  }
  const { access_token: token } = await house.grant();
  await verify(token);
  await verify(token);
  expect(isLimited(await verify(token))).toBe(true);
});

test('a device that waits for its user polls without using up the limit of its address', async () => {
  const house = await houseWith({ token: '3/h' });
  const steps = deviceSteps(house);
  const poll = (code: string): Promise<Reply> => steps.exchange(code);
  const { device_code: code } = await steps.ask();
  // The first poll finds it in the store; from then on it has a limit of its own.
  for (let count = 0; count < 4; count += 1)
    expect((await poll(code)).json['Error']).toBe('authorization_pending');
  const limited: boolean[] = [];
  for (let count = 0; count < 3; count += 1) limited.push(isLimited(await poll('ghd_unknown')));
  expect(limited).toEqual([false, false, true]);
});
