import { expect, test } from 'vitest';
import { useExtAuthzClient } from '../support/ext-authz-client.ts';
import { withSettings } from '../support/reconfigure.ts';
import { useAttackGateway } from './attack-gateway.ts';

/** The same paths, proxied and checked for another gateway: what is forwarded may not depend on who forwards it. */
const attack = useAttackGateway((settings) => ({
  ...settings,
  trustedProxies: ['127.0.0.1'],
  routes: [
    { path: '/admin', requires: 'reports:write' },
    { path: '/reports/**', requires: 'reports:write' },
    { path: '/slashes/**', requires: 'files:read', encodedSlash: true },
    { path: '/files/**', requires: 'files:read' },
    { path: '/open/**', public: true },
  ],
}));
const extAuthz = useExtAuthzClient(() => attack.gateway);

const PATHS = [
  '/files/a',
  '/files/a?b=c',
  '/files/a?b=../c',
  '/files/a?access_token=x',
  '/files/a?%61ccess_token=x',
  '/files/',
  '/files',
  '/Files/a',
  '/FILES/a',
  '/files/../admin',
  '/files/./a',
  '/files/..',
  '/files/%2e%2e/admin',
  '/files/.%2e/admin',
  '/files/%2E%2E%2Fadmin',
  '/files/..%2fadmin',
  '/files/a%2fb',
  '/slashes/a%2Fb',
  '/slashes/a%2fb',
  '/slashes/..%2fb',
  '/files//a',
  '//files/a',
  '///files/a',
  '/files/a//',
  '/files/a%5cb',
  '/files/a\\b',
  '/files/%00',
  '/files/a%0d%0ab',
  '/files/%7f',
  '/files/%zz',
  '/files/%',
  '/files/%2',
  '/files/%252e%252e/admin',
  '/files/%c3%a9',
  '/files/%C3%A9',
  '/files/%c0%ae%c0%ae/admin',
  '/files/%ff',
  '/%66iles/a',
  '/files/%61',
  '/files/a;b=c',
  '/files/..;/admin',
  '/files/.;/a',
  '/files/a%3bb',
  '/files/a#b',
  '/files/a%23b',
  '/files/a%3fb',
  '/files/a|b',
  '/files/[a]',
  '/files/{a}',
  '/files/"a"',
  '/files/a:b@c',
  '/files/~a',
  '/files/%7ea',
  '/open/a',
  '/open/../admin',
  '/open/%2e%2e/admin',
  '/open//admin',
  '/open/..;/admin',
  '/open',
  '/open/',
  '/OPEN/a',
  '/admin',
  '/Admin',
  '/admin/',
  '/reports/a',
  '/REPORTS/a',
  '/nowhere',
  '/',
  '*',
  'files/a',
  `/files/${'a'.repeat(9_000)}`,
] as const;

/** The proxy serves them itself. */
const OWN_PATHS = [
  '/authsvc/Authorize/Verify',
  '/AuthSvc/check/files/a',
  '/authsvc',
  '/.well-known/oauth-authorization-server',
  '/envoy.service.auth.v3.Authorization/Check',
] as const;

/** As checks report it: gateways understand few statuses. */
const toCheckStatus = (status: number): number => (status === 401 || status < 300 ? status : 403);
const withUpperCaseEscapes = (path: string): string => path.replace(/%[0-9a-f]{2}/gi, (escape) => escape.toUpperCase());

/** What the proxy decides. A path that it forwards in another form cannot be allowed by a check. */
async function proxy(path: string, token: string | null): Promise<number> {
  attack.upstream.reset();
  const { status } = await attack.request({ line: `GET ${path} HTTP/1.1`, token });
  const [forwarded] = attack.upstream.requests;
  const [sentPath = ''] = path.split('?', 1);
  const isUnchanged = forwarded?.target.split('?', 1)[0] === withUpperCaseEscapes(sentPath);
  return forwarded === undefined || isUnchanged ? toCheckStatus(status) : 403;
}

const authorization = (token: string | null) => ({ ...(token !== null && { authorization: `Bearer ${token}` }) });

async function checkOverHttp(path: string, token: string | null): Promise<number> {
  const headers = { 'x-original-method': 'GET', 'x-original-uri': path, 'x-forwarded-host': 'localhost:8443' };
  return (await attack.gateway.request({ path: '/authsvc/check', headers: { ...headers, ...authorization(token) } }))
    .status;
}

const checkOverGrpc = async (path: string, token: string | null, raw: boolean): Promise<number> =>
  (await extAuthz.check({ path, host: 'localhost:8443', headers: authorization(token), raw })).status;

test.each([
  ['with a token', true],
  ['without a token', false],
])(
  '%s, every path is decided alike when it is proxied, checked over HTTP and checked over gRPC',
  async (_, hasToken) => {
    const token = hasToken ? attack.token : null;
    const statuses = new Set<number>();
    for (const path of PATHS) {
      const proxied = await proxy(path, token);
      statuses.add(proxied);
      const checked = [
        await checkOverHttp(path, token),
        await checkOverGrpc(path, token, false),
        await checkOverGrpc(path, token, true),
      ];
      expect([path.slice(0, 100), ...checked]).toEqual([path.slice(0, 100), proxied, proxied, proxied]);
    }
    expect(statuses).toEqual(new Set(hasToken ? [200, 403] : [200, 401, 403]));
  },
);

test('a check never allows the paths of gatehouse itself, whatever the routes say', () =>
  withSettings(
    attack.gateway,
    (settings) => ({ ...settings, routes: [{ path: '/**', public: true }] }),
    async () => {
      for (const path of OWN_PATHS)
        expect([path, await checkOverHttp(path, null), await checkOverGrpc(path, null, true)]).toEqual([
          path,
          403,
          403,
        ]);
    },
  ));
