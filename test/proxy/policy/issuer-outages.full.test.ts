import { createServer, type RequestListener } from 'node:http';
import { expect, onTestFinished, test } from 'vitest';
import { createForeignKey, formatKeySet, signForeign } from '../../support/foreign-issuer.ts';
import { startForeignIssuer, withTrustedIssuer } from '../../support/foreign-issuer-server.ts';
import { scrape } from '../../support/scrape.ts';
import { listenTcp } from '../../support/tcp-server.ts';
import { startGateway } from '../../support/test-gateway.ts';
import { until } from '../../support/until.ts';

const COMMON = { audience: 'files-api', scopes: { 'files.read': 'files:read' } };
const AGE = 'gatehouse_issuer_keys_age_seconds{issuer="corp"}';

test('an issuer that is unreachable during a key rotation, and for longer than maxStaleness', async () => {
  const issuer = await startForeignIssuer();
  onTestFinished(() => issuer.close());
  const gateway = await startGateway(withTrustedIssuer(issuer, { cooldown: '1s', maxStaleness: '3s' }));
  onTestFinished(() => gateway.close());
  const call = async (token: string): Promise<number> => (await gateway.api('/files/1', token)).status;
  const { access_token: own } = await gateway.grant();
  const known = await issuer.sign();
  const next = await createForeignKey('ES256', 'k2');
  const rotated = await issuer.sign({}, next);
  expect(await call(known)).toBe(200);

  issuer.isUp = false;
  issuer.published = [...issuer.published, next];
  expect(await call(rotated), 'its keys are fetched again').toBe(503);
  expect(gateway.log.filter(({ event }) => event === 'issuer_unavailable')).toMatchObject([{ issuer: 'corp' }]);
  await until('the keys are too old, also for a cached token', async () => {
    const [status, age] = [await call(known), (await scrape(gateway.adminPort)).value(AGE)];
    // Not before that.
    if (status === 503) expect(age).toBeGreaterThan(3);
    else expect(status).toBe(200);
    return status === 503;
  });
  const replies = await Promise.all([known, rotated].map((token) => gateway.api('/files/1', token)));
  for (const { status, headers } of replies) expect([status, Number(headers['retry-after']) > 0]).toEqual([503, true]);
  expect(await call(own)).toBe(200);
  expect((await fetch(`http://127.0.0.1:${gateway.adminPort}/readyz`)).status).toBe(200);

  issuer.isUp = true;
  await until('its tokens are accepted', async () => (await call(rotated)) === 200);
  expect(await call(known)).toBe(200);
  expect(gateway.log.some(({ event }) => event === 'issuer_available')).toBe(true);
});

test('after a long outage, tokens are accepted within seconds', async () => {
  const issuer = await startForeignIssuer();
  onTestFinished(() => issuer.close());
  issuer.isUp = false;
  const gateway = await startGateway(withTrustedIssuer(issuer));
  onTestFinished(() => gateway.close());
  const token = await issuer.sign();
  const call = async (): Promise<number> => (await gateway.api('/files/1', token)).status;
  const outageEnd = performance.now() + 30_000;
  await until('the outage is over', async () => {
    expect(await call()).toBe(503);
    return performance.now() > outageEnd;
  });
  issuer.isUp = true;
  const back = performance.now();
  await until('its tokens are accepted', async () => (await call()) === 200);
  // Documented: a request causes a fetch after 3 seconds at the latest.
  expect(performance.now() - back).toBeLessThan(6_000);
});

const LISTENERS: Readonly<Record<string, RequestListener>> = {
  html: (_, response) => response.writeHead(200, { 'content-type': 'text/html' }).end('<html>'),
  redirect: (request, response) =>
    request.url === '/elsewhere'
      ? response.writeHead(200, { 'content-type': 'application/json' }).end(KEY_SET)
      : response.writeHead(302, { location: '/elsewhere' }).end(),
  huge: (_, response) =>
    response
      .writeHead(200, { 'content-type': 'application/json' })
      .end(KEY_SET.replace('{', `{"padding":"${'x'.repeat(600_000)}",`)),
  slow: (_, response) => {
    response.writeHead(200, { 'content-type': 'application/json' });
    response.write(KEY_SET.slice(0, 10));
  },
};
const key = await createForeignKey('ES256', 'k1');
const KEY_SET = formatKeySet(key);

test('providers that respond slowly, hugely, with a redirect or with HTML: 503 for their tokens, own ones are accepted', async () => {
  const requests: string[] = [];
  const issuers = await Promise.all(
    Object.entries(LISTENERS).map(async ([name, listener]) => {
      const server = createServer((request, response) => {
        requests.push(`${name} ${request.url}`);
        listener(request, response);
      });
      const { port, close } = await listenTcp(server);
      onTestFinished(() => close());
      const url = `http://127.0.0.1:${port}`;
      return [name, { ...COMMON, issuer: url, jwksUri: `${url}/keys`, timeout: '1s' }] as const;
    }),
  );
  const gateway = await startGateway((settings) => ({
    ...settings,
    trustedIssuers: Object.fromEntries(issuers),
    routes: [{ path: '/files/**', requires: 'files:read', issuers: ['own', ...Object.keys(LISTENERS)] }],
  }));
  onTestFinished(() => gateway.close());
  const { access_token: own } = await gateway.grant();
  const now = Math.floor(gateway.clock.now());
  const replies = issuers.map(async ([name, { issuer }]) => {
    const claims = {
      iss: issuer,
      aud: 'files-api',
      sub: 'f3c1',
      scope: 'files.read',
      iat: now,
      exp: now + 300,
    };
    const { status, headers } = await gateway.api('/files/1', await signForeign(key, claims));
    return [name, status, Number(headers['retry-after']) > 0];
  });
  expect((await gateway.api('/files/1', own)).status, 'while the slow one is awaited').toBe(200);
  expect(await Promise.all(replies)).toEqual(Object.keys(LISTENERS).map((name) => [name, 503, true]));
  const logged = gateway.log.filter(({ event }) => event === 'issuer_unavailable');
  expect(new Set(logged.map(({ issuer }) => issuer))).toEqual(new Set(Object.keys(LISTENERS)));
  expect(requests.filter((request) => !request.endsWith('/keys'))).toEqual([]);
  expect((await fetch(`http://127.0.0.1:${gateway.adminPort}/readyz`)).status).toBe(200);
});
