import { createLocalJWKSet, decodeJwt, decodeProtectedHeader, type JSONWebKeySet, jwtVerify } from 'jose';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { readKeyringFile, rotateKeyring, writeKeyringFile } from '../../../src/tokens/keyring-file.ts';
import { ALICE, startGateway, type TestGateway } from '../../support/test-gateway.ts';

/** Signed assertions about the caller, for upstreams that do not trust the network. */
let gateway: TestGateway;
let token: string;

beforeAll(async () => {
  gateway = await startGateway((settings) => {
    const url = settings.upstreams?.['default']?.url ?? '';
    return {
      ...settings,
      upstreams: {
        default: { url, assertion: {} },
        named: { url, assertion: { header: 'Caller-Proof', audience: 'https://named.test' } },
        plain: { url },
      },
      routes: [
        { path: '/named/**', requires: 'any-token', upstream: 'named' },
        { path: '/plain/**', requires: 'any-token', upstream: 'plain' },
        ...(settings.routes ?? []),
      ],
    };
  });
});
afterAll(() => gateway.close());
beforeEach(async () => {
  token = (await gateway.grant()).access_token;
});

const getLastHeader = (name: string): string => {
  const value = gateway.upstream.requests.at(-1)?.headers[name];
  return typeof value === 'string' ? value : '';
};
const fetchJwks = async (): Promise<JSONWebKeySet> =>
  (await gateway.request({ path: '/authsvc/oauth2/jwks' })).json as unknown as JSONWebKeySet;

async function requestAssertion(path = '/files/a', name = 'x-gatehouse-assertion'): Promise<string> {
  expect((await gateway.api(path, token)).status).toBe(200);
  return getLastHeader(name);
}

const verify = async (text: string, audience = 'default') =>
  jwtVerify(text, createLocalJWKSet(await fetchJwks()), {
    issuer: 'https://localhost:8443',
    audience,
    typ: 'gatehouse-assertion+jwt',
    algorithms: ['EdDSA'],
    currentDate: new Date(gateway.clock.now() * 1_000),
  });

describe('the assertion', () => {
  test('can be verified with the published keys and names the caller, for sixty seconds', async () => {
    const { payload, protectedHeader } = await verify(await requestAssertion());
    const { gid } = decodeJwt(token);
    expect(protectedHeader.typ).toBe('gatehouse-assertion+jwt');
    const { iat = 0, exp = 0, ...claims } = payload;
    expect(claims).toEqual({
      iss: 'https://localhost:8443',
      aud: 'default',
      preferred_username: 'alice',
      sub: ALICE,
      client_id: 'report-runner',
      scope: 'files:read',
      gid,
    });
    expect(exp - iat).toBe(60);
    expect(Math.abs(iat - gateway.clock.now())).toBeLessThan(3);
  });

  test('has the scope with spaces and one permission per item', async () => {
    token = (await gateway.grant({ scope: 'reports:write,read;files:read' })).access_token;
    const { payload } = await verify(await requestAssertion());
    expect(payload['scope']).toBe('files:read reports:read reports:write');
    expect(getLastHeader('x-forwarded-scope')).toBe('files:read;reports:read,write');
  });

  test('is signed once per token and reused for half of its lifetime', async () => {
    const first = await requestAssertion();
    expect(await requestAssertion('/whoami')).toBe(first);
    gateway.clock.advance(29);
    expect(await requestAssertion()).toBe(first);
    gateway.clock.advance(2);
    const second = await requestAssertion();
    expect(second).not.toBe(first);
    await verify(second);
    await expect(
      jwtVerify(first, createLocalJWKSet(await fetchJwks()), {
        currentDate: new Date((gateway.clock.now() + 40) * 1_000),
      }),
    ).rejects.toThrow('exp');
  });

  test('never outlives the access token', async () => {
    const { exp = 0 } = decodeJwt(token);
    gateway.clock.advance(exp - gateway.clock.now() - 20);
    const { payload } = await verify(await requestAssertion());
    expect(payload.exp).toBe(exp);
  });

  test('has its own audience and header where configured, and is absent where not', async () => {
    const named = await requestAssertion('/named/a', 'caller-proof');
    await verify(named, 'https://named.test');
    await expect(verify(named)).rejects.toThrow('aud');
    expect(getLastHeader('x-gatehouse-assertion')).toBe('');
    await gateway.api('/plain/a', token);
    expect([getLastHeader('x-gatehouse-assertion'), getLastHeader('caller-proof')]).toEqual(['', '']);
  });

  test('sent by a client is removed, in every spelling and on every route', async () => {
    const forged = {
      'x-gatehouse-assertion': 'forged',
      x_gatehouse_assertion: 'forged',
      'caller-proof': 'forged',
      caller_proof: 'forged',
      'Caller.Proof': 'forged',
    };
    for (const path of ['/health', '/plain/a', '/named/a', '/files/a']) {
      expect((await gateway.api(path, path === '/health' ? undefined : token, { headers: forged })).status).toBe(200);
      expect(JSON.stringify(gateway.upstream.requests.at(-1)?.headers)).not.toContain('forged');
    }
    expect(gateway.upstream.requests.findLast(({ url }) => url === '/health')?.headers).not.toHaveProperty(
      'x-gatehouse-assertion',
    );
  });

  test('is not an access token, and an access token is not an assertion', async () => {
    const assertion = await requestAssertion();
    const refused = await gateway.api('/files/a', assertion);
    expect(refused.status).toBe(401);
    expect(refused.headers['www-authenticate']).toContain('invalid_token');
    expect((await gateway.api('/authsvc/Authorize/Verify', assertion)).status).toBe(401);
    expect((await gateway.api('/authsvc/Revoke/Token', assertion)).status).toBe(401);
    await expect(verify(token)).rejects.toThrow('typ');
    await expect(verify(token, 'https://localhost:8443')).rejects.toThrow('typ');
  });
});

describe('the published keys', () => {
  test('are public, contain no private part, and may be cached for five minutes', async () => {
    const { status, headers, json } = await gateway.request({ path: '/authsvc/oauth2/jwks' });
    expect([status, headers['content-type'], headers['cache-control']]).toEqual([
      200,
      'application/jwk-set+json',
      'public, max-age=300',
    ]);
    const { keys } = json as unknown as JSONWebKeySet;
    expect(keys).toHaveLength(1);
    expect(Object.keys(keys[0] ?? {}).toSorted()).toEqual(['alg', 'crv', 'kid', 'kty', 'use', 'x']);
  });

  test('accept any letter case and HEAD, and no other method', async () => {
    expect((await gateway.request({ path: '/AuthSvc/OAuth2/JWKS' })).status).toBe(200);
    const head = await gateway.request({ path: '/authsvc/oauth2/jwks', method: 'HEAD' });
    expect([head.status, head.text]).toEqual([200, '']);
    const post = await gateway.request({ path: '/authsvc/oauth2/jwks', method: 'POST' });
    expect([post.status, post.headers['allow']]).toEqual([405, 'GET, HEAD']);
  });

  test('include a new key before it signs, and no longer a retired one', async () => {
    const { file } = gateway.server.settings().keys;
    const before = await requestAssertion();
    const rotated = rotateKeyring(readKeyringFile(file), {
      alg: 'EdDSA',
      now: gateway.clock.now(),
      publishBefore: 300,
      keep: 1_000,
    });
    writeKeyringFile(file, rotated, { replace: true });
    await gateway.reload((settings) => settings);
    expect((await fetchJwks()).keys).toHaveLength(2);
    const beforeActivation = await requestAssertion();
    expect(decodeProtectedHeader(beforeActivation).kid).toBe(decodeProtectedHeader(before).kid);
    gateway.clock.advance(301);
    token = (await gateway.grant()).access_token;
    const afterActivation = await requestAssertion();
    expect(decodeProtectedHeader(afterActivation).kid).not.toBe(decodeProtectedHeader(before).kid);
    await verify(afterActivation);
    gateway.clock.advance(1_100);
    expect((await fetchJwks()).keys.map(({ kid }) => kid)).toEqual([decodeProtectedHeader(afterActivation).kid]);
  });
});
