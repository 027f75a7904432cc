import { expect, test } from 'vitest';
import { type CodeFlow, createCodeFlow, withCodeClients } from '../support/code-client.ts';
import { gatewaysOnRedis, redisUrl } from '../support/gateways-on-redis.ts';
import { createOAuthClient, getAccessToken, refusal } from '../support/oauth-client.ts';
import { until } from '../support/until.ts';

/** A code that is approved at one replica is used once by all of them. */
const { startTwoGateways, startGatewayOn, startServer, startRelay, closeLater } = gatewaysOnRedis();

async function startFlows(): Promise<readonly [CodeFlow, CodeFlow, ...Awaited<ReturnType<typeof startTwoGateways>>]> {
  const [first, second] = await startTwoGateways(withCodeClients);
  const one = createCodeFlow(first);
  // The same app, and its user in the same browser.
  const other = createCodeFlow(second, one.pkce);
  closeLater(() => one[Symbol.asyncDispose]());
  closeLater(() => other[Symbol.asyncDispose]());
  return [one, other, first, second];
}

test('each step of an authorization can be served by another replica', async () => {
  const [one, other, first] = await startFlows();
  const pushed = await createOAuthClient(first).post('par', one.parameters());
  const query = new URLSearchParams({ client_id: 'app', request_uri: String(pushed.json['request_uri']) });
  const begun = await other.authorize(query.toString());
  one.browser.cookie = other.browser.cookie;
  await one.browser.open(begun.redirectTo ?? '');
  const review = await one.signIn();
  other.browser.cookie = one.browser.cookie;
  await other.browser.open(review.url);
  const { searchParams } = await other.decide('approve');
  expect((await one.exchange(searchParams.get('code') ?? '')).status).toBe(200);
});

test('a request that is approved at one replica cannot be decided at another', async () => {
  const [one, other] = await startFlows();
  const review = await one.reachReview();
  other.browser.cookie = one.browser.cookie;
  await other.browser.open(review.url);
  const code = (await one.decide('approve')).searchParams.get('code') ?? '';
  // Not used yet: a second click at any replica gets the same code.
  expect((await other.decide('approve')).searchParams.get('code')).toBe(code);
  expect((await other.browser.get(review.url)).status).toBe(409);
});

test('concurrent exchanges at both replicas give at most one grant, which both then refuse', async () => {
  const [one, other, first, second] = await startFlows();
  const code = await one.obtainCode();
  const replies = await Promise.all([one, other, one, other].map((flow) => flow.exchange(code)));
  const granted = replies.filter(({ status }) => status === 200);
  expect(granted.map(({ status }) => status)).toEqual([200]);
  const token = String(granted[0]?.json['access_token']);
  for (const gateway of [first, second])
    await until('it is refused', async () => (await gateway.api('/files/a', token)).status === 401);
});

test('a spent code that is presented to another replica revokes the grant on all of them before the response', async () => {
  const [one, other, first, second] = await startFlows();
  const code = await one.obtainCode();
  const token = getAccessToken(await one.exchange(code));
  expect((await second.api('/files/a', token)).status).toBe(200);
  expect(await other.exchange(code)).toMatchObject(refusal('invalid_grant'));
  expect((await second.api('/files/a', token)).status).toBe(401);
  await until('it is refused', async () => (await first.api('/files/a', token)).status === 401);
  expect(second.auditEvents('code_replayed')).toHaveLength(1);
});

test('an unreachable Redis is a temporary error, and the code can be used afterwards', async () => {
  const redis = await startServer();
  const relay = await startRelay(redis.port);
  const gateway = await startGatewayOn(redisUrl(relay), {}, withCodeClients, 500);
  const flow = createCodeFlow(gateway);
  closeLater(() => flow[Symbol.asyncDispose]());
  const code = await flow.obtainCode();
  relay.set('refuse');
  expect(await flow.exchange(code)).toMatchObject(refusal('temporarily_unavailable', 503));
  const page = await flow.browser.open('/authsvc/oauth2/authorize?client_id=nobody');
  expect(page.status, 'requests are checked without the store').toBe(400);
  relay.set('pass');
  await until('it succeeds', async () => (await flow.exchange(code)).status === 200);
});
