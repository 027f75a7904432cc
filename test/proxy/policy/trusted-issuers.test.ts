import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { createForeignKey, formatKeySet } from '../../support/foreign-issuer.ts';
import {
  type ForeignIssuerServer,
  startForeignIssuer,
  withTrustedIssuer,
} from '../../support/foreign-issuer-server.ts';
import { scrape } from '../../support/scrape.ts';
import { startGateway, type TestGateway } from '../../support/test-gateway.ts';
import { until } from '../../support/until.ts';

describe('tokens of a trusted issuer', () => {
  let issuer: ForeignIssuerServer;
  let gateway: TestGateway;
  beforeAll(async () => {
    issuer = await startForeignIssuer();
    gateway = await startGateway((settings) => ({
      ...withTrustedIssuer(issuer, { cooldown: '1h' })(settings),
      routes: [
        { path: '/files/**', requires: 'files:read', issuers: ['own', 'corp'] },
        { path: '/own/**', requires: 'files:read' },
        { path: '/corp/**', requires: 'any-token', issuers: ['corp'] },
        { path: '/cli/**', requires: 'any-token', issuers: ['corp'], clients: ['corp/cli'] },
        { path: '/admin/**', requires: 'admin:manage', issuers: ['own', 'corp'] },
      ],
    }));
  });
  afterAll(async () => {
    await gateway?.close();
    issuer?.close();
  });
  const call = async (path: string, token: string): Promise<number> => (await gateway.api(path, token)).status;

  test('are accepted on the routes that list it, and the upstream receives the identity of the caller', async () => {
    const token = await issuer.sign();
    expect(await call('/files/1', token)).toBe(200);
    expect(await call('/files/2', token)).toBe(200);
    const { headers } = gateway.upstream.requests.at(-1) ?? {};
    expect(headers).toMatchObject({
      'x-forwarded-user': 'corp:f3c1',
      'x-forwarded-client-id': 'corp/cli',
      'x-forwarded-scope': 'files:read',
    });
    const line = await until('the log line', () => gateway.log.find((entry) => entry['path'] === '/files/2'));
    expect(line).toMatchObject({ identity: 'corp:f3c1', client: 'corp/cli', decision: 'forwarded' });
  });

  test('are refused on every other route, and own tokens where only the issuer is listed', async () => {
    const token = await issuer.sign();
    const { access_token: own } = await gateway.grant();
    const calls = ['/files/1', '/own/1', '/corp/1', '/none'].map(async (path) => [
      path,
      await call(path, token),
      await call(path, own),
    ]);
    expect(await Promise.all(calls)).toEqual([
      ['/files/1', 200, 200],
      ['/own/1', 401, 200],
      ['/corp/1', 200, 401],
      ['/none', 401, 404],
    ]);
  });

  test('are refused with the same response, whatever the reason in the log', async () => {
    const attacker = await createForeignKey('ES256', 'k1');
    const cases: readonly (readonly [string, string, string])[] = [
      ['/files/signature', await issuer.sign({}, attacker), 'invalid_signature (issuer corp)'],
      ['/files/issuer', await issuer.sign({ iss: 'https://evil.example.test' }), 'unknown_issuer'],
      ['/own/expired', await issuer.sign({ exp: 1_000 }), 'expired (issuer corp)'],
      ['/files/subject', await issuer.sign({ sub: '' }), 'claim_missing sub (issuer corp)'],
      ['/own/route', await issuer.sign(), 'issuer_not_accepted (issuer corp)'],
    ];
    for (const [path, token, reason] of cases) {
      const { status, json, headers } = await gateway.api(path, token);
      expect([status, json['error'], json['error_description']], path).toEqual([
        401,
        'invalid_token',
        'The access token was not issued by this service.',
      ]);
      expect(headers['www-authenticate'], path).not.toContain(reason);
      const line = await until('the log line', () => gateway.log.find((entry) => entry['path'] === path));
      expect(line).toMatchObject({ decision: 'refused', reason: `token_not_authentic: ${reason}` });
      expect(JSON.stringify(line)).not.toContain(token.split('.')[1]);
    }
  });

  test('need the scope of the route, and the client that it lists', async () => {
    const token = await issuer.sign();
    const reply = await gateway.api('/admin/1', token);
    expect(reply.status).toBe(403);
    expect(reply.headers['www-authenticate']).toContain('insufficient_scope');
    expect(await call('/cli/1', token)).toBe(200);
    expect(await call('/cli/1', await issuer.sign({ azp: 'other' }))).toBe(403);
    // The client id of an own integration stays another client.
    expect(await call('/cli/1', await issuer.sign({ azp: 'report-runner' }))).toBe(403);
  });

  test('are not accepted by the token API', async () => {
    const token = await issuer.sign();
    const reply = await gateway.request({
      path: '/authsvc/Authorize/Verify',
      headers: { authorization: `Bearer ${token}` },
    });
    expect([400, 401, 404, 405]).toContain(reply.status);
    expect(reply.text).not.toContain('f3c1');
  });

  test('end with their expiry, to the second', async () => {
    const now = Math.floor(gateway.clock.now());
    const token = await issuer.sign({ exp: now + 100 });
    expect(await call('/files/1', token)).toBe(200);
    gateway.clock.advance(101);
    expect(await call('/files/1', token)).toBe(401);
    gateway.clock.advance(-101);
  });

  test('are revoked by identity, and a new token of the subject is accepted', async () => {
    const token = await issuer.sign({ sub: 'revoked-subject' });
    const other = await issuer.sign();
    expect(await call('/files/1', token)).toBe(200);
    await gateway.server.store.revocations.announce({
      of: 'identity',
      identity: 'corp:revoked-subject',
      notBefore: gateway.clock.now(),
      keepUntil: gateway.clock.now() + 3_600,
    });
    expect(await call('/files/1', token)).toBe(401);
    expect(await call('/files/1', other)).toBe(200);
    const later = Math.floor(gateway.clock.now()) + 1;
    expect(await call('/files/1', await issuer.sign({ sub: 'revoked-subject', iat: later }))).toBe(200);
  });

  test('signed with a new key are accepted at once, also just after tokens with invented keys', async () => {
    const [next, other] = await Promise.all([createForeignKey('ES256', 'k2'), createForeignKey('ES256', 'x')]);
    const [first] = issuer.published;
    onTestFinished(() => void (issuer.published = first === undefined ? [] : [first]));
    const junk = await issuer.sign({}, other);
    for (let count = 0; count < 10; count += 1) expect(await call('/files/1', junk)).toBe(401);
    issuer.published = [...issuer.published, next];
    const before = issuer.fetches;
    const tokens = await Promise.all(Array.from({ length: 10 }, () => issuer.sign({}, next)));
    const statuses = await Promise.all(tokens.map((token) => call('/files/1', token)));
    expect(statuses).toEqual(tokens.map(() => 200));
    expect(issuer.fetches - before).toBe(1);
  });

  // Last: later tokens must be newer than the revocation.
  test.each([
    ['client', { client: 'corp/to-revoke' }, { azp: 'to-revoke' }],
    ['issuer', { issuer: 'corp' }, {}],
  ])('are revoked by %s through the admin API, and later ones are accepted', async (_, body, claims) => {
    const token = await issuer.sign(claims);
    const { access_token: own } = await gateway.grant();
    expect(await call('/files/1', token)).toBe(200);
    const adminToken = readFileSync(join(gateway.folder, 'data/admin-token'), 'utf8').trim();
    const revoke = (revocation: object): Promise<Response> =>
      fetch(`http://127.0.0.1:${gateway.adminPort}/admin/v1/revoke`, {
        method: 'POST',
        headers: { authorization: `Bearer ${adminToken}`, 'content-type': 'application/json' },
        body: JSON.stringify(revocation),
      });
    const response = await revoke(body);
    expect([response.status, await response.json()]).toEqual([200, { ended: body }]);
    expect(await call('/files/1', token)).toBe(401);
    expect(await call('/files/1', own)).toBe(200);
    gateway.clock.advance(2);
    const later = await issuer.sign({ ...claims, iat: Math.floor(gateway.clock.now()) });
    expect(await call('/files/1', later)).toBe(200);
    expect((await revoke({ issuer: 'unknown' })).status).toBe(404);
    expect((await revoke({ client: 'unknown/x' })).status).toBe(404);
    expect(gateway.auditEvents('admin_action').at(-1)).toMatchObject(body);
  });
});

test('an issuer that is unreachable: own tokens work, its tokens get 503 until it is back', async () => {
  const issuer = await startForeignIssuer();
  onTestFinished(() => issuer.close());
  issuer.isUp = false;
  const gateway = await startGateway(withTrustedIssuer(issuer));
  onTestFinished(() => gateway.close());
  const { access_token: own } = await gateway.grant();
  const token = await issuer.sign();
  expect((await gateway.api('/files/1', own)).status).toBe(200);
  const reply = await gateway.api('/files/1', token);
  expect(reply.status).toBe(503);
  expect(Number(reply.headers['retry-after'])).toBeGreaterThan(0);
  expect(gateway.log.filter(({ event }) => event === 'issuer_unavailable')).toMatchObject([{ issuer: 'corp' }]);
  const ready = await fetch(`http://127.0.0.1:${gateway.adminPort}/readyz`);
  expect(ready.status, 'readiness does not depend on an issuer').toBe(200);
  const failing = await scrape(gateway.adminPort);
  expect(failing.value('gatehouse_issuer_key_fetches_total{issuer="corp",outcome="failure"}')).toBeGreaterThan(0);
  expect(failing.value('gatehouse_issuer_keys_fetch_success_timestamp_seconds{issuer="corp"}')).toBe(0);
  expect(failing.families.has('gatehouse_issuer_keys_age_seconds'), 'no age without keys').toBe(false);
  // Junk does not make gatehouse fetch more.
  const before = issuer.fetches;
  await Promise.all(Array.from({ length: 200 }, async () => gateway.api('/files/1', await issuer.sign({ jti: 'x' }))));
  expect(issuer.fetches - before).toBeLessThanOrEqual(3);
  issuer.isUp = true;
  await until('its tokens are accepted', async () => (await gateway.api('/files/1', token)).status === 200);
  expect(gateway.log.some(({ event }) => event === 'issuer_available')).toBe(true);
  const fetched = await scrape(gateway.adminPort);
  expect(fetched.value('gatehouse_issuer_key_fetches_total{issuer="corp",outcome="success"}')).toBe(1);
  expect(fetched.value('gatehouse_issuer_keys_age_seconds{issuer="corp"}')).toBeLessThan(600);
  expect(fetched.value('gatehouse_issuer_keys_fetch_success_timestamp_seconds{issuer="corp"}')).toBeGreaterThan(
    gateway.clock.now() - 600,
  );
});

test.each([
  ['an empty key set', 'ES256', true],
  ['no key for its algorithms', 'RS256', false],
] as const)(
  'an issuer with %s: a warning is logged, and only its tokens are refused',
  async (_, algorithm, isEmpty) => {
    const issuer = await startForeignIssuer();
    onTestFinished(() => issuer.close());
    const { published } = issuer;
    if (isEmpty) issuer.published = [];
    const gateway = await startGateway(withTrustedIssuer(issuer, { cooldown: '1s', algorithms: [algorithm] }));
    onTestFinished(() => gateway.close());
    const findEvent = (name: string) => until(name, () => gateway.log.find(({ event }) => event === name));
    expect(await findEvent('issuer_keys_unusable')).toMatchObject({ level: 'warn', issuer: 'corp' });
    const { access_token: own } = await gateway.grant();
    expect((await gateway.api('/files/own', own)).status).toBe(200);
    const rsa = await createForeignKey('RS256', 'r1');
    const token = await issuer.sign({}, isEmpty ? published[0] : rsa);
    expect((await gateway.api('/files/corp', token)).status).toBe(401);
    const line = await until('the log line', () => gateway.log.find((entry) => entry['path'] === '/files/corp'));
    expect(line).toMatchObject({ reason: 'token_not_authentic: no_usable_key (issuer corp)' });
    issuer.published = [...published, rsa];
    await until('its tokens are accepted', async () => (await gateway.api('/files/1', token)).status === 200);
    expect(await findEvent('issuer_keys_usable')).toMatchObject({ issuer: 'corp' });
    expect(gateway.log.filter(({ event }) => event === 'issuer_keys_unusable')).toHaveLength(1);
  },
);

test('a reload without changes keeps the keys, and one that removes the issuer refuses its tokens', async () => {
  const issuer = await startForeignIssuer();
  onTestFinished(() => issuer.close());
  const gateway = await startGateway(withTrustedIssuer(issuer));
  onTestFinished(() => gateway.close());
  const token = await issuer.sign();
  expect((await gateway.api('/files/1', token)).status).toBe(200);
  const { fetches } = issuer;
  await gateway.reload((settings) => ({ ...settings, limits: { ...settings.limits, body: '1MiB' } }));
  expect((await gateway.api('/files/1', token)).status).toBe(200);
  expect(issuer.fetches).toBe(fetches);
  await gateway.reload((settings) => ({
    ...settings,
    trustedIssuers: {},
    routes: [{ path: '/files/**', requires: 'files:read' }],
  }));
  expect((await gateway.api('/files/1', token)).status).toBe(401);
});

test('a reload during an outage keeps the last keys, but not those of another URL or file', async () => {
  const issuer = await startForeignIssuer();
  onTestFinished(() => issuer.close());
  const corp = { issuer: issuer.url, audience: 'files-api', scopes: { 'files.read': 'files:read' } };
  const gateway = await startGateway((settings) => ({
    ...settings,
    trustedIssuers: { corp },
    routes: [{ path: '/files/**', requires: 'files:read', issuers: ['own', 'corp'] }],
  }));
  onTestFinished(() => gateway.close());
  const cached = await issuer.sign();
  const call = async (token: string): Promise<number> => (await gateway.api('/files/1', token)).status;
  const reloadWith = (changes: Readonly<Record<string, unknown>>): Promise<void> =>
    gateway.reload((settings) => ({ ...settings, trustedIssuers: { corp: { ...corp, ...changes } } }));
  expect(await call(cached)).toBe(200);

  issuer.isUp = false;
  const isLogged = (event: string): boolean => gateway.log.some((line) => line.event === event);
  for (const changes of [{ timeout: '6s' }, { cooldown: '2s' }, { refreshInterval: '1h' }]) {
    await reloadWith(changes);
    await until('the fetch fails', () => isLogged('issuer_unavailable'));
    expect([await call(cached), await call(await issuer.sign())]).toEqual([200, 200]);
  }
  // One outage is logged once.
  expect(gateway.log.filter(({ event }) => event === 'issuer_unavailable')).toHaveLength(1);

  await reloadWith({ maxStaleness: '0s' });
  await until('the keys are too old', async () => (await call(cached)) === 503);
  await reloadWith({ jwksUri: `${issuer.url}/other-keys` });
  expect([await call(cached), await call(await issuer.sign())]).toEqual([503, 503]);
  const attacker = await createForeignKey('ES256', 'k1');
  writeFileSync(join(gateway.folder, 'keys.json'), formatKeySet(attacker));
  await reloadWith({ jwksFile: 'keys.json' });
  expect([await call(cached), await call(await issuer.sign({}, attacker))]).toEqual([401, 200]);
  await reloadWith({});
  expect([await call(cached), await call(await issuer.sign({}, attacker))]).toEqual([503, 503]);

  issuer.isUp = true;
  await until('the keys are fetched', async () => (await call(cached)) === 200);
  expect(await call(await issuer.sign({}, attacker))).toBe(401);
});
