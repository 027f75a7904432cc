import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { afterAll, afterEach, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import {
  type ForeignIssuerServer,
  startForeignIssuer,
  withTrustedIssuer,
} from '../../support/foreign-issuer-server.ts';
import { type IntrospectionServer, startIntrospectionServer } from '../../support/introspection-server.ts';
import { startGateway, type TestGateway } from '../../support/test-gateway.ts';
import { until } from '../../support/until.ts';

type Claims = Readonly<Record<string, unknown>>;

describe('opaque tokens of a trusted issuer', () => {
  let issuer: ForeignIssuerServer;
  let server: IntrospectionServer;
  let gateway: TestGateway;
  beforeAll(async () => {
    [issuer, server] = await Promise.all([startForeignIssuer(), startIntrospectionServer()]);
    gateway = await startGateway((settings) => ({
      ...withTrustedIssuer(issuer, {
        introspection: {
          url: server.url,
          clientId: 'gate:house',
          clientSecret: 'a secret',
        },
        timeout: '60s',
      })(settings),
      routes: [
        { path: '/files/**', requires: 'files:read', issuers: ['own', 'corp'] },
        { path: '/own/**', requires: 'files:read' },
      ],
    }));
  });
  afterEach(() => {
    server.respond = undefined;
    server.gate = undefined;
  });
  afterAll(async () => {
    await gateway?.close();
    issuer?.close();
    server?.close();
  });
  const call = async (token: string, path = '/files/1'): Promise<number> => (await gateway.api(path, token)).status;
  /** A token that the issuer reports as active. */
  const issue = (claims: Claims = {}): string => {
    const token = randomBytes(24).toString('base64url').replace(/^/, 'op-');
    const now = Math.floor(gateway.clock.now());
    server.active.set(token, {
      iss: issuer.url,
      aud: 'files-api',
      sub: 'f3c1',
      client_id: 'cli',
      scope: 'files.read',
      token_type: 'Bearer',
      iat: now - 1,
      exp: now + 300,
      jti: crypto.randomUUID(),
      ...claims,
    });
    return token;
  };
  const countRequests = (token: string): number => server.requests.filter((request) => request.token === token).length;

  const revoke = async (revocation: Claims): Promise<void> => {
    const { adminPort, folder } = gateway;
    const response = await fetch(`http://127.0.0.1:${adminPort}/admin/v1/revoke`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${readFileSync(`${folder}/data/admin-token`, 'utf8').trim()}`,
        'content-type': 'application/json',
      },
      body: JSON.stringify(revocation),
    });
    expect(response.status).toBe(200);
  };

  test('are accepted while the issuer reports them as active, and the result is cached', async () => {
    const token = issue();
    expect(await call(token)).toBe(200);
    expect(gateway.upstream.requests.at(-1)?.headers).toMatchObject({
      'x-forwarded-user': 'corp:f3c1',
      'x-forwarded-client-id': 'corp/cli',
      'x-forwarded-scope': 'files:read',
    });
    expect(await call(token)).toBe(200);
    expect(countRequests(token)).toBe(1);
    // RFC 6749 §2.3.1: form-encoded before Basic.
    expect(server.requests.at(-1)?.authorization).toBe(`Basic ${btoa('gate%3Ahouse:a+secret')}`);
    server.active.delete(token);
    gateway.clock.advance(31);
    expect(await call(token), 'no longer active').toBe(401);
    gateway.clock.advance(-31);
  });

  test('are not introspected again and again when they are inactive', async () => {
    const token = `op-${randomBytes(20).toString('hex')}`;
    expect(await call(token)).toBe(401);
    expect(await call(token)).toBe(401);
    expect(countRequests(token)).toBe(1);
  });

  test('end with their expiry, although the result is cached', async () => {
    const token = issue({ exp: Math.floor(gateway.clock.now()) + 10 });
    expect(await call(token)).toBe(200);
    gateway.clock.advance(11);
    expect(await call(token)).toBe(401);
    gateway.clock.advance(-11);
  });

  test.each<[string, Claims]>([
    ['for another API', { aud: 'other-api' }],
    ['without an audience', { aud: undefined }],
    ['of another issuer', { iss: 'https://other.example.test' }],
    ['without a subject', { sub: undefined }],
    ['without an expiry', { exp: undefined }],
    ['with an expiry that is not a number', { exp: '9999999999' }],
    ['without a time of issue', { iat: undefined }],
    ['that are expired', { exp: 1_000 }],
    ['that are not valid yet', { nbf: 9_999_999_999 }],
    ['that are refresh tokens', { token_type: 'refresh_token' }],
    ['that Keycloak calls refresh tokens', { typ: 'Refresh' }],
    ['that are bound to a DPoP key', { cnf: { jkt: 'x' } }],
    ['that are bound to a certificate', { cnf: { 'x5t#S256': 'x' } }],
  ])('%s are refused', async (_, claims) => {
    expect(await call(issue(claims))).toBe(401);
  });

  test('may begin like a JWT', async () => {
    const token = `eyJ${randomBytes(24).toString('base64url')}`;
    server.active.set(token, server.active.get(issue()) ?? {});
    expect(await call(token)).toBe(200);
    expect(await call(`${token}.e30.x`)).toBe(401);
    expect(countRequests(`${token}.e30.x`)).toBe(0);
  });

  test.each<[string, object, string]>([
    ['with a direct key, as Auth0 issues them', { alg: 'dir', enc: 'A256GCM', iss: 'x' }, ''],
    ['with an encrypted key', { alg: 'RSA-OAEP-256', enc: 'A128GCM', cty: 'JWT' }, 'a2V5'],
  ])('may be encrypted %s', async (_, header, key) => {
    const encode = (text: string): string => Buffer.from(text).toString('base64url');
    const random = (): string => randomBytes(24).toString('base64url');
    const createToken = (): string => [encode(JSON.stringify(header)), key, random(), random(), random()].join('.');
    const token = createToken();
    server.active.set(token, server.active.get(issue()) ?? {});
    expect(await call(token)).toBe(200);
    expect(await call(token)).toBe(200);
    expect(countRequests(token)).toBe(1);
    const inactive = createToken();
    expect(await call(inactive)).toBe(401);
    expect(countRequests(inactive)).toBe(1);
    const unlisted = createToken();
    expect(await call(unlisted, '/own/1')).toBe(401);
    // Neither a signed nor an encrypted JWT.
    const others = [`${token}.x`, token.slice(0, token.lastIndexOf('.')), `${await issuer.sign()}.a.b.c`];
    for (const other of others) expect(await call(other)).toBe(401);
    expect([unlisted, ...others].map(countRequests)).toEqual([0, 0, 0, 0]);
  });

  test('with an active that is not true are refused', async () => {
    expect(await call(issue({ active: false }))).toBe(401);
  });

  test('need the scope of the route', async () => {
    expect(await call(issue({ scope: 'other' }))).toBe(403);
  });

  test('are never sent to the issuer from routes that do not list it, and neither are other credentials', async () => {
    const token = issue();
    expect(await call(token, '/own/1')).toBe(401);
    expect(await call(token, '/none')).toBe(401);
    const others = [
      `ghr_${randomBytes(24).toString('base64url')}`,
      randomBytes(46).toString('base64'),
      `${await issuer.sign()}x`,
      'eyJhbGciOiJub25lIn0.e30.',
      // A JWT with white space in its header.
      `${Buffer.from('{ "alg":"ES256"}').toString('base64url')}.e30.AAAA`,
      'x'.repeat(2_049),
    ];
    for (const other of others) expect(await call(other)).toBe(401);
    expect([token, ...others].map(countRequests)).toEqual([0, 0, 0, 0, 0, 0, 0]);
  });

  test.each<[string, NonNullable<IntrospectionServer['respond']>]>([
    ['an error', () => ({ status: 500, type: 'application/json', body: '{"active":false}' })],
    ['a refusal of the credentials', () => ({ status: 401, type: 'application/json', body: '{}' })],
    ['a redirect', () => ({ status: 302, type: 'application/json', body: '{"active":true}' })],
    ['HTML', () => ({ status: 200, type: 'text/html', body: '<p>' })],
    ['malformed JSON', () => ({ status: 200, type: 'application/json', body: '{"active":' })],
    ['a repeated member', () => ({ status: 200, type: 'application/json', body: '{"active":false,"active":true}' })],
    ['no active', () => ({ status: 200, type: 'application/json', body: '{"sub":"x"}' })],
    ['active as text', () => ({ status: 200, type: 'application/json', body: '{"active":"true"}' })],
    ['a list', () => ({ status: 200, type: 'application/json', body: '[]' })],
    ['a huge response', () => ({ status: 200, type: 'application/json', body: ' '.repeat(70_000) })],
  ])('get 503 when the issuer responds with %s, and are accepted afterwards', async (_, respond) => {
    const token = issue();
    server.respond = respond;
    const reply = await gateway.api('/files/1', token);
    expect(reply.status).toBe(503);
    expect(Number(reply.headers['retry-after'])).toBeGreaterThan(0);
    expect(countRequests(token)).toBe(1);
    server.respond = undefined;
    await until('it is introspected again', async () => (await call(token)) === 200);
    expect(countRequests(token)).toBe(2);
    expect(gateway.log.some(({ event }) => event === 'introspection_failed')).toBe(true);
    expect(
      server.requests.some((request) => request.token === null),
      'no redirect was followed',
    ).toBe(false);
  });

  test('that were active are used for maxStaleness while the endpoint fails, unless they are revoked', async () => {
    const [token, other] = [issue(), issue({ sub: 'stale-and-revoked' })];
    expect([await call(token), await call(other)]).toEqual([200, 200]);
    server.respond = () => ({ status: 500, type: 'text/plain', body: '' });
    gateway.clock.advance(31);
    for (let count = 0; count < 3; count += 1) expect(await call(token)).toBe(200);
    expect(await call(issue()), 'a token that is not known').toBe(503);
    expect(await call(other)).toBe(200);
    await revoke({ issuer: 'corp', subject: 'stale-and-revoked' });
    expect(await call(other)).toBe(401);
    gateway.clock.advance(30);
    expect(await call(token), 'after maxStaleness').toBe(503);
    gateway.clock.advance(-61);
  });

  test('that were active are not delayed once the endpoint has failed: they are introspected in the background', async () => {
    const [token, ended] = [issue(), issue()];
    expect([await call(token), await call(ended)]).toEqual([200, 200]);
    server.respond = () => ({ status: 500, type: 'text/plain', body: '' });
    expect(await call(issue())).toBe(503);
    const gate = Promise.withResolvers<void>();
    server.gate = gate.promise;
    gateway.clock.advance(31);
    expect([await call(token), await call(ended)], 'while they are introspected').toEqual([200, 200]);
    await until('they are introspected', () => countRequests(token) + countRequests(ended) === 4);
    server.respond = undefined;
    server.active.delete(ended);
    gate.resolve();
    await until('the end of the token is known', async () => (await call(ended)) === 401);
    expect(await call(token)).toBe(200);
    gateway.clock.advance(-31);
  });

  test('share one request for one token, and a flood of unknown tokens is bounded and spares known ones', async () => {
    const known = issue();
    expect(await call(known)).toBe(200);
    const fresh = issue();
    const gate = Promise.withResolvers<void>();
    server.gate = gate.promise;
    const shared = Array.from({ length: 5 }, () => call(fresh));
    await until('it is introspected', () => countRequests(fresh) === 1);
    const flood = Array.from({ length: 80 }, (_, index) => call(`junk-${index}`));
    // The others wait for the gate.
    expect(await Promise.race(flood), 'above the limit').toBe(503);
    expect(await call(known), 'a cached token').toBe(200);
    gate.resolve();
    expect(await Promise.all(shared)).toEqual([200, 200, 200, 200, 200]);
    expect(countRequests(fresh)).toBe(1);
    const statuses = await Promise.all(flood);
    expect(new Set(statuses)).toEqual(new Set([401, 503]));
    expect(server.peak).toBeLessThanOrEqual(64);
  });

  test.each<[string, Claims, Claims]>([
    ['jti', { jti: 'j-1' }, { of: 'jti' }],
    ['identity', { sub: 'revoked' }, { of: 'identity' }],
  ])('are revoked by %s', async (_, claims, { of }) => {
    const token = issue(claims);
    expect(await call(token)).toBe(200);
    await revoke(of === 'jti' ? { issuer: 'corp', jti: 'j-1' } : { issuer: 'corp', subject: 'revoked' });
    expect(await call(token)).toBe(401);
  });

  test('are not logged, and neither is the secret', async () => {
    const token = issue();
    server.respond = () => ({ status: 500, type: 'text/plain', body: token });
    await call(token);
    const text = gateway.logLines.join('\n');
    expect(text).not.toContain(token);
    expect(text).not.toContain('a secret');
    expect(text).not.toContain(btoa('gate%3Ahouse:a+secret'));
  });
});

test('inactive tokens of one address are limited, and active ones of any address are not', async () => {
  const [issuer, server] = await Promise.all([startForeignIssuer(), startIntrospectionServer()]);
  onTestFinished(() => {
    issuer.close();
    server.close();
  });
  const gateway = await startGateway((settings) => ({
    ...settings,
    trustedProxies: ['127.0.0.1'],
    limits: { rates: { ...settings.limits?.rates, tokenGuesses: '5/h' } },
    trustedIssuers: {
      corp: {
        issuer: issuer.url,
        audience: 'files-api',
        introspection: { url: server.url, clientId: 'gatehouse', clientSecret: 'a secret' },
      },
    },
    routes: [{ path: '/files/**', requires: 'any-token', issuers: ['corp'] }],
  }));
  onTestFinished(() => gateway.close());
  const now = Math.floor(gateway.clock.now());
  const issue = (name: string): string => {
    server.active.set(name, { aud: 'files-api', sub: name, iat: now - 1, exp: now + 300 });
    return name;
  };
  const send = (token: string, address: string) =>
    gateway.api('/files/1', token, { headers: { 'x-forwarded-for': address } });
  const call = async (token: string, address = '203.0.113.1'): Promise<number> => (await send(token, address)).status;

  const known = issue('known');
  for (let count = 0; count < 12; count += 1) expect(await call(issue(`active-${count}`))).toBe(200);
  expect(await call(known)).toBe(200);
  for (let count = 0; count < 5; count += 1) expect(await call(`junk-${count}`)).toBe(401);
  const { length } = server.requests;
  const refused = await send('junk', '203.0.113.1');
  expect([refused.status, Number(refused.headers['retry-after']) > 60]).toEqual([503, true]);
  expect(await call(issue('not-known-yet'))).toBe(503);
  expect(await call('junk-0'), 'a result that is cached').toBe(401);
  expect(await call(known)).toBe(200);
  expect(server.requests).toHaveLength(length);
  expect(await call('not-known-yet', '203.0.113.2')).toBe(200);
  expect(await call('junk', '203.0.113.2')).toBe(401);
});
