import { expect, onTestFinished, test } from 'vitest';
import { getRateLimitKey } from '../../src/lib/rate-limiter.ts';
import { createDeviceClient } from '../support/device-client.ts';
import { createOAuthClient } from '../support/oauth-client.ts';
import { connectRawTls, isCompleteResponse, parseRawResponse } from '../support/raw-client.ts';
import { type Reply, startGateway, type TestGateway, type TestRequest } from '../support/test-gateway.ts';

test('all addresses of an IPv6 /64 share one limit, in every notation, and no two networks share one', () => {
  const same = ['2001:db8:0:7::1', '2001:DB8:0:7:a:b:c:d', '2001:0db8:0000:0007::', '2001:db8:0:7:0:0:0:2'];
  expect(new Set(same.map(getRateLimitKey)).size).toBe(1);
  const others = ['2001::7:1:2:3:4', '2001::8:1:2:3:4', '2001::1', '::1', '2001:db8::1'];
  expect(new Set(others.map(getRateLimitKey)).size).toBe(others.length);
});

test('client_credentials is subject to the rate limit of Authorize/Certificate', async () => {
  const gateway = await startGateway((settings) => ({
    ...settings,
    limits: { rates: { ...settings.limits?.rates, certificate: '1/h' } },
  }));
  onTestFinished(() => gateway.close());
  const steps = createOAuthClient(gateway);
  expect((await steps.clientCredentials()).status).toBe(200);
  const second = await steps.clientCredentials();
  expect(second.status).toBe(429);
  expect(second.headers['retry-after']).toMatch(/^\d+$/);
});

type Rates = Readonly<Record<string, string>>;

async function startWithRates(rates: Rates): Promise<TestGateway> {
  const gateway = await startGateway((settings) => ({
    ...settings,
    trustedProxies: ['127.0.0.1'],
    limits: { rates: { ...settings.limits?.rates, ...rates } },
  }));
  onTestFinished(() => gateway.close());
  return gateway;
}

/** Authorize/Token responds to every failure with 400: a long Retry-After identifies the rate limit. */
const isLimited = ({ status, headers }: Reply): boolean =>
  (status === 429 || status === 400) && Number(headers['retry-after'] ?? 0) > 60;
const from = (address: string): Partial<TestRequest> => ({ headers: { 'x-forwarded-for': address } });
const refreshFrom = (gateway: TestGateway, token: string, address: string): Promise<Reply> =>
  gateway.post('/Authorize/Token', { client_id: 'report-runner', refresh_token: token }, from(address));

test('clients with valid refresh tokens behind one address do not share a limit, on both token endpoints', async () => {
  const gateway = await startWithRates({ token: '3/h' });
  const steps = createOAuthClient(gateway);
  for (let count = 0; count < 6; count += 1) {
    const { refresh_token: token } = await gateway.grant();
    const refreshed = await gateway.refresh(token);
    expect(refreshed.status).toBe(200);
    expect((await steps.refresh(String(refreshed.json['refresh_token']))).status).toBe(200);
  }
});

test('each grant has its own limit', async () => {
  const gateway = await startWithRates({ token: '3/h' });
  let { refresh_token: token } = await gateway.grant();
  for (let count = 0; count < 3; count += 1) {
    const { status, json } = await gateway.refresh(token);
    expect(status).toBe(200);
    token = String(json['refresh_token']);
  }
  expect(isLimited(await gateway.refresh(token))).toBe(true);
});

test('calls with invalid tokens count against their address, and not against the client they name', async () => {
  const gateway = await startWithRates({ token: '3/h' });
  const { refresh_token: token } = await gateway.grant();
  const forged = `${token.slice(0, -4)}AAAA`;
  const limited: boolean[] = [];
  for (let count = 0; count < 5; count += 1) limited.push(isLimited(await gateway.refresh(forged)));
  expect(limited).toEqual([false, false, false, true, true]);
  // A malformed body counts as well.
  expect(isLimited(await gateway.post('/Authorize/Token', 'not an object'))).toBe(true);
  expect((await gateway.refresh(token)).status).toBe(200);
});

test('a device request over the limit of its address is refused before its body is read, and each counts once', async () => {
  const gateway = await startWithRates({ device: '2/h' });
  await gateway.reload((settings) => ({
    ...settings,
    limits: { ...settings.limits, headerTimeout: '60s' },
  }));
  const post = (body: unknown): Promise<Reply> => gateway.post('/Authorize/Device', body);
  expect((await post('not an object')).status).toBe(400);
  expect((await post({ client_id: 'report-runner', scope: 'files:read' })).status).toBe(200);
  const client = await connectRawTls(gateway.port, gateway.ca.pem);
  onTestFinished(() => client.destroy());
  client.send(
    'POST /authsvc/Authorize/Device HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n',
  );
  // If gatehouse waits for the body, there is no response for a minute.
  expect(parseRawResponse(await client.until(isCompleteResponse)).status).toBe(429);
});

test('a spent refresh token from another address does not count against its grant', async () => {
  const gateway = await startWithRates({ token: '3/h' });
  await gateway.reload((settings) => ({
    ...settings,
    tokens: { refresh: { retryWindow: '0s', reuse: 'reject' } },
  }));
  const { refresh_token: spent } = await gateway.grant();
  const { json } = await refreshFrom(gateway, spent, '203.0.113.1');
  const limited: boolean[] = [];
  for (let count = 0; count < 4; count += 1) limited.push(isLimited(await refreshFrom(gateway, spent, '203.0.113.2')));
  expect(limited).toEqual([false, false, false, true]);
  expect((await refreshFrom(gateway, String(json['refresh_token']), '203.0.113.1')).status).toBe(200);
});

test('each certificate behind one address has its own limit; calls without one, or for an unknown client, count against the address', async () => {
  const gateway = await startWithRates({ certificate: '2/h' });
  const { alice, bob } = gateway.users;
  const authorize = (as: TestRequest['as'], clientId = 'report-runner'): Promise<Reply> =>
    gateway.post('/Authorize/Certificate', { client_id: clientId, scope: 'files:read' }, as ? { as } : {});
  const areLimited = async (...calls: readonly Parameters<typeof authorize>[]): Promise<readonly boolean[]> => {
    const limited: boolean[] = [];
    for (const args of calls) limited.push(isLimited(await authorize(...args)));
    return limited;
  };
  expect(await areLimited([undefined], [undefined], [undefined])).toEqual([false, false, true]);
  expect(await areLimited([alice, 'unknown-1'])).toEqual([true]);
  expect(await areLimited([alice], [alice], [alice], [bob])).toEqual([false, false, true, false]);
  // Both endpoints share the limit.
  expect(isLimited(await createOAuthClient(gateway).clientCredentials({}, { as: alice }))).toBe(true);
});

test('each authentic access token behind one address has its own limit for Verify and for revocation', async () => {
  const gateway = await startWithRates({ token: '2/h' });
  const verify = (token: string): Promise<Reply> => gateway.api('/authsvc/Authorize/Verify', token);
  const revoke = (token: string): Promise<Reply> => gateway.api('/authsvc/Revoke/Token', token);
  const junk = 'a.b.c';
  for (const operation of [verify, revoke]) {
    const limited: boolean[] = [];
    for (let count = 0; count < 3; count += 1) limited.push(isLimited(await operation(junk)));
    expect(limited).toEqual([false, false, true]);
    for (let count = 0; count < 4; count += 1)
      expect((await operation((await gateway.grant()).access_token)).status).toBe(200);
  }
  const { access_token: token } = await gateway.grant();
  await verify(token);
  await verify(token);
  expect(isLimited(await verify(token))).toBe(true);
});

test('a device that waits for its user can poll without using up the limit of its address', async () => {
  const gateway = await startWithRates({ token: '3/h' });
  const steps = createDeviceClient(gateway);
  const poll = (code: string): Promise<Reply> => steps.exchange(code);
  const { device_code: code } = await steps.requestCodes();
  // After the first poll has found the code in the store, the code has its own limit.
  for (let count = 0; count < 4; count += 1) expect((await poll(code)).json['Error']).toBe('authorization_pending');
  const limited: boolean[] = [];
  for (let count = 0; count < 3; count += 1) limited.push(isLimited(await poll('ghd_unknown')));
  expect(limited).toEqual([false, false, true]);
});
