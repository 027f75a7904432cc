import { expect, test } from 'vitest';
import { withSettings } from '../../support/reconfigure.ts';
import { ALICE } from '../../support/test-gateway.ts';
import { useAttackGateway } from '../attack-gateway.ts';

/** Attacks on oauth2-proxy. */
const attack = useAttackGateway();

const PUBLIC = 'GET /public/a HTTP/1.1';
const withTrustedProxy = (settings: Parameters<Parameters<typeof withSettings>[1]>[0]) => ({
  ...settings,
  trustedProxies: ['127.0.0.1'],
});

/** Values of all fields that an application server could mistake for this one. */
const getForwardedValues = (name: string): string[] =>
  (attack.upstream.requests[0]?.headers ?? [])
    .filter(([given]) => given.replace(/[_.]/g, '-') === name)
    .map(([, value]) => value);

test('CVE-2025-64484 oauth2-proxy: X_Forwarded_User, which WSGI reads as X-Forwarded-User, is not forwarded', async () => {
  const headers = [
    'X_Forwarded_User: root',
    'X-Forwarded_User: root',
    'x_forwarded_scope: root',
    'X_Forwarded_Client_Id: root',
  ];
  for (const line of ['GET /files/1 HTTP/1.1', PUBLIC]) {
    attack.upstream.reset();
    expect((await attack.request({ line, headers })).status).toBe(200);
    expect(getForwardedValues('x-forwarded-user')).toEqual(line === PUBLIC ? [] : [ALICE]);
    expect(attack.upstream.bytes()).not.toContain('root');
  }
  await attack.expectHealthy();
});

test('CVE-2026-40575 (GHSA-7x63-xv5r-3p2x) oauth2-proxy: X-Forwarded-Uri of a public path does not give access to another path', async () => {
  const headers = ['X-Forwarded-Uri: /public/a', 'X-Original-URI: /public/a', 'X-Forwarded-Method: GET'];
  const expectRefused = async (): Promise<void> => {
    for (const path of ['/files/1', '/admin/x'])
      expect((await attack.request({ line: `GET ${path} HTTP/1.1`, headers, token: null })).status).toBe(401);
    expect((await attack.request({ line: 'GET /admin/x HTTP/1.1', headers })).status).toBe(403);
    expect(attack.upstream.bytes()).toBe('');
    await attack.expectHealthy();
  };
  await expectRefused();
  // Not even from a trusted proxy: a forwarded request is authorized by its own path.
  await withSettings(attack.gateway, withTrustedProxy, expectRefused);
});

test('oauth2-proxy #3506: an empty list of trusted proxies trusts no proxy', async () => {
  const check = (): Promise<{ status: number }> =>
    attack.request({
      line: 'GET /authsvc/check HTTP/1.1',
      headers: ['X-Forwarded-Uri: /public/a', 'X-Forwarded-Method: GET'],
      token: null,
    });
  expect((await check()).status).toBe(403);
  await withSettings(attack.gateway, withTrustedProxy, async () => expect((await check()).status).toBe(200));
  expect((await check()).status).toBe(403);
  await attack.expectHealthy();
});

test('CVE-2025-54576 oauth2-proxy: a query that looks like a public path makes no path public', async () => {
  for (const target of [
    '/files/1?/public/',
    '/files/1?x=/public/a',
    '/admin/x?a=b/public/**',
    '/files/1?%2fpublic%2fa',
  ])
    expect([target, (await attack.request({ line: `GET ${target} HTTP/1.1`, token: null })).status]).toEqual([
      target,
      401,
    ]);
  expect((await attack.request({ line: 'GET /admin/x?/public/ HTTP/1.1' })).status).toBe(403);
  expect(attack.upstream.bytes()).toBe('');
  await attack.expectHealthy();
});
