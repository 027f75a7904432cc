import { createLocalJWKSet, decodeJwt, decodeProtectedHeader, type JSONWebKeySet, jwtVerify } from 'jose';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { readKeyringFile, rotateKeyring, writeKeyringFile } from '../../../src/tokens/keyring-file.ts';
import { ALICE, startGateway, type TestGateway } from '../../support/test-gateway.ts';

/** A signed statement about the caller, for upstreams that do not trust the network. */
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

const lastSeen = (name: string): string => {
  const value = gateway.upstream.requests.at(-1)?.headers[name];
  return typeof value === 'string' ? value : '';
};
const jwks = async (): Promise<JSONWebKeySet> =>
  (await gateway.request({ path: '/authsvc/oauth2/jwks' })).json as unknown as JSONWebKeySet;

async function assertionFor(path = '/files/a', name = 'x-gatehouse-assertion'): Promise<string> {
  expect((await gateway.api(path, token)).status).toBe(200);
  return lastSeen(name);
}

const verify = async (text: string, audience = 'default') =>
  jwtVerify(text, createLocalJWKSet(await jwks()), {
    issuer: 'https://localhost:8443',
    audience,
    typ: 'gatehouse-assertion+jwt',
    algorithms: ['EdDSA'],
    currentDate: new Date(gateway.clock.now() * 1_000),
  });

describe('the assertion', () => {
  test('can be verified with the published keys and names the caller, for sixty seconds', async () => {
    const { payload, protectedHeader } = await verify(await assertionFor());
    const { gid } = decodeJwt(token);
    expect(protectedHeader.typ).toBe('gatehouse-assertion+jwt');
    const { iat = 0, exp = 0, ...claims } = payload;
    expect(claims).toEqual({
      iss: 'https://localhost:8443',
      aud: 'default',
      sub: ALICE,
      client_id: 'report-runner',
      scope: 'files:read',
      gid,
    });
    expect(exp - iat).toBe(60);
    expect(Math.abs(iat - gateway.clock.now())).toBeLessThan(3);
  });

  test('is made once for a token and handed out again for half of its life', async () => {
    const first = await assertionFor();
    expect(await assertionFor('/whoami')).toBe(first);
    gateway.clock.advance(29);
    expect(await assertionFor()).toBe(first);
    gateway.clock.advance(2);
    const second = await assertionFor();
    expect(second).not.toBe(first);
    await verify(second);
    await expect(
      jwtVerify(first, createLocalJWKSet(await jwks()), {
        currentDate: new Date((gateway.clock.now() + 40) * 1_000),
      }),
    ).rejects.toThrow('exp');
  });

  test('never outlives the access token', async () => {
    const { exp = 0 } = decodeJwt(token);
    gateway.clock.advance(exp - gateway.clock.now() - 20);
    const { payload } = await verify(await assertionFor());
    expect(payload.exp).toBe(exp);
  });

  test('has its own audience and header where configured, and is absent where not', async () => {
    const named = await assertionFor('/named/a', 'caller-proof');
    await verify(named, 'https://named.test');
    await expect(verify(named)).rejects.toThrow('aud');
    expect(lastSeen('x-gatehouse-assertion')).toBe('');
    await gateway.api('/plain/a', token);
    expect([lastSeen('x-gatehouse-assertion'), lastSeen('caller-proof')]).toEqual(['', '']);
  });

  test('sent by a client it is removed, under every spelling and on every route', async () => {
    const forged = {
      'x-gatehouse-assertion': 'forged',
      x_gatehouse_assertion: 'forged',
      'caller-proof': 'forged',
      caller_proof: 'forged',
      'Caller.Proof': 'forged',
    };
    for (const path of ['/health', '/plain/a', '/named/a', '/files/a']) {
      expect(
        (await gateway.api(path, path === '/health' ? undefined : token, { headers: forged })).status,
      ).toBe(200);
      expect(JSON.stringify(gateway.upstream.requests.at(-1)?.headers)).not.toContain('forged');
    }
    expect(gateway.upstream.requests.findLast(({ url }) => url === '/health')?.headers).not.toHaveProperty(
      'x-gatehouse-assertion',
    );
  });

  test('is not an access token, and an access token is not an assertion', async () => {
    const assertion = await assertionFor();
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
  test('are public, hold no private part, and may be kept for five minutes', async () => {
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

  test('any case, HEAD, and no other method', async () => {
    expect((await gateway.request({ path: '/AuthSvc/OAuth2/JWKS' })).status).toBe(200);
    const head = await gateway.request({ path: '/authsvc/oauth2/jwks', method: 'HEAD' });
    expect([head.status, head.text]).toEqual([200, '']);
    const post = await gateway.request({ path: '/authsvc/oauth2/jwks', method: 'POST' });
    expect([post.status, post.headers['allow']]).toEqual([405, 'GET, HEAD']);
  });

  test('a new key is there before it signs, and a retired one is gone', async () => {
    const { file } = gateway.server.settings().keys;
    const before = await assertionFor();
    const rotated = rotateKeyring(readKeyringFile(file), {
      alg: 'EdDSA',
      now: gateway.clock.now(),
      publishBefore: 300,
      keep: 1_000,
    });
    writeKeyringFile(file, rotated, { replace: true });
    await gateway.reload((settings) => settings);
    expect((await jwks()).keys).toHaveLength(2);
    const soon = await assertionFor();
    expect(decodeProtectedHeader(soon).kid).toBe(decodeProtectedHeader(before).kid);
    gateway.clock.advance(301);
    token = (await gateway.grant()).access_token;
    const later = await assertionFor();
    expect(decodeProtectedHeader(later).kid).not.toBe(decodeProtectedHeader(before).kid);
    await verify(later);
    gateway.clock.advance(1_100);
    expect((await jwks()).keys.map(({ kid }) => kid)).toEqual([decodeProtectedHeader(later).kid]);
  });
});
