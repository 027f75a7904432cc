import { type ClientHttp2Session, connect } from 'node:http2';
import { afterAll, describe, expect, test } from 'vitest';
import { withSettings } from '../support/reconfigure.ts';
import { until } from '../support/serve-process.ts';
import type { SettingsChange } from '../support/test-gateway.ts';
import { useAttackGateway } from './attack-gateway.ts';

/** An upstream such as Express that ignores letter case and a trailing slash; everything is public except two paths. */
const attack = useAttackGateway((settings) => ({
  ...settings,
  trustedProxies: ['127.0.0.1'],
  routes: [
    { path: '/admin', requires: 'reports:write' },
    { path: '/reports/**', requires: 'reports:write' },
    { path: '/**', public: true },
  ],
}));

const OTHER_SPELLINGS = [
  '/Admin',
  '/%41dmin',
  '/admin/',
  '/ADMIN/',
  '/Reports/x',
  `/adm${encodeURIComponent('ı')}n`,
  `/report${encodeURIComponent('ſ')}/x`,
];
const withPaths =
  (letterCase: 'distinct' | 'same', trailingSlash = letterCase): SettingsChange =>
  (settings) => ({
    ...settings,
    upstreams: { default: { url: attack.upstream.url, paths: { letterCase, trailingSlash } } },
  });

const withLimitedSearch: SettingsChange = (settings) => ({
  ...settings,
  routes: [
    { path: '/search', public: true, rate: '1/h' },
    { path: '/**', public: true },
  ],
});

async function sendOverHttp1(path: string, token: string | null): Promise<number> {
  attack.upstream.reset();
  return (await attack.request({ line: `GET ${path} HTTP/1.1`, token })).status;
}

let session: ClientHttp2Session | undefined;
afterAll(() => session?.destroy());

async function sendOverHttp2(path: string, token: string | null): Promise<number> {
  attack.upstream.reset();
  const { port, ca } = attack.gateway;
  session ??= connect(`https://127.0.0.1:${port}`, { ca: ca.pem, servername: 'localhost' });
  const stream = session.request({
    ':path': path,
    ':authority': 'localhost:8443',
    ...(token !== null && { authorization: `Bearer ${token}` }),
  });
  return new Promise<number>((resolve, reject) => {
    stream.once('error', reject).once('response', (head) => resolve(Number(head[':status'])));
    stream.resume();
  });
}

describe.each([
  ['HTTP/1.1', sendOverHttp1],
  ['HTTP/2', sendOverHttp2],
] as const)('over %s', (_, send) => {
  test('P16, P17: another spelling of a protected path does not reach the upstream through a weaker rule', async () => {
    for (const path of [...OTHER_SPELLINGS, '/Admin;x', '/;x/Admin']) {
      expect([path, await send(path, null), await send(path, attack.token)]).toEqual([path, 401, 404]);
      expect(attack.upstream.bytes()).toBe('');
    }
    for (const path of ['/', '/Public', '/public/', '/admin/x', '/Administration'])
      expect([path, await send(path, null)]).toEqual([path, 200]);
    await attack.expectHealthy();
  });

  test('P16, P17: another spelling does not avoid a limit on the requests of a rule', () =>
    withSettings(attack.gateway, withLimitedSearch, async () => {
      expect([await send('/search', null), await send('/search', null)]).toEqual([200, 429]);
      for (const path of ['/Search', '/search/', '/SEARCH/', '/search;x', '/%53earch']) {
        expect([path, await send(path, attack.token)]).toEqual([path, 404]);
        expect(attack.upstream.bytes()).toBe('');
      }
      expect(await send('/searches/', null)).toBe(200);
    }));

  test('P16, P17: another spelling matches the rule if the upstream is configured to ignore the difference', () =>
    withSettings(attack.gateway, withPaths('same'), async () => {
      for (const path of OTHER_SPELLINGS) {
        expect([path, await send(path, null), await send(path, attack.token)]).toEqual([path, 401, 403]);
        expect(attack.upstream.bytes()).toBe('');
      }
    }));

  test('P16, P17: another spelling is forwarded if the upstream is configured to distinguish such paths', () =>
    withSettings(attack.gateway, withPaths('distinct'), async () => {
      expect(await send('/Admin', null)).toBe(200);
      expect(attack.upstream.requests.map(({ target }) => target)).toEqual(['/Admin']);
      expect(await send('/admin/', null)).toBe(200);
      expect(await send('/admin', null)).toBe(401);
    }));
});

test('P16 forward-auth refuses another spelling like the proxy', async () => {
  const check = (uri: string) =>
    attack.gateway.request({
      path: '/authsvc/check',
      headers: { 'x-original-method': 'GET', 'x-original-uri': uri, 'x-forwarded-host': 'api.test' },
    });
  for (const path of OTHER_SPELLINGS) expect([path, (await check(path)).status]).toEqual([path, 401]);
  expect((await check('/Public')).status).toBe(200);
});

test('P16 the log of a refused request names both rules', async () => {
  await sendOverHttp1('/Reports/logged', attack.token);
  const line = await until('the request is logged', () =>
    attack.gateway.log.find((entry) => entry.event === 'request' && entry['path'] === '/Reports/logged'),
  );
  expect(line['reason']).toBe('no_rule (routes[1] /reports/**: equivalent_path; routes[2] /**: ambiguous_path)');
});
