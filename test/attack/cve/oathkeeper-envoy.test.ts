import { expect, test } from 'vitest';
import { withSettings } from '../../support/reconfigure.ts';
import { headerValues } from '../../support/recording-upstream.ts';
import { useAttackGateway } from '../attack-gateway.ts';

/** Attacks on Ory Oathkeeper and Envoy. */
const attack = useAttackGateway();

const getStatus = async (target: string, headers: readonly string[] = []): Promise<number> =>
  (await attack.request({ line: `GET ${target} HTTP/1.1`, headers })).status;

async function expectAllRefused(targets: readonly string[]): Promise<void> {
  attack.upstream.reset();
  for (const target of targets) expect([target, await getStatus(target)]).toEqual([target, 400]);
  expect(attack.upstream.bytes()).toBe('');
  await attack.expectHealthy();
}

test('GHSA-p224-6x5r-fjpm Oathkeeper: dot segments do not leave a public path', () =>
  expectAllRefused([
    '/public/../admin/secrets',
    '/public/a/../../admin',
    '/public/./../admin',
    '/public/..',
    '/public/a/..%2f..%2fadmin',
  ]));

test('GHSA-vhr5 Oathkeeper: X-Forwarded-Proto and -Host of an untrusted client change neither the matched rule nor the forwarded headers', async () => {
  attack.upstream.reset();
  expect(await getStatus('/admin/x', ['X-Forwarded-Proto: http', 'X-Forwarded-Host: public.test'])).toBe(403);
  expect(await getStatus('/files/1', ['X-Forwarded-Proto: http', 'X-Forwarded-Host: evil.test'])).toBe(200);
  const [seen] = attack.upstream.requests;
  expect([headerValues(seen, 'x-forwarded-proto'), headerValues(seen, 'x-forwarded-host')]).toEqual([
    ['https'],
    ['gate.test'],
  ]);
  await attack.expectHealthy();
});

test('GHSA-4mq7 Oathkeeper: a cached token is valid only for the issuer and audience it was verified for', async () => {
  const callFiles = async (): Promise<number> => (await attack.gateway.api('/files/1', attack.token)).status;
  expect(await callFiles()).toBe(200);
  await withSettings(
    attack.gateway,
    (settings) => ({ ...settings, publicUrl: 'https://another.example.test' }),
    async () => expect(await callFiles()).toBe(401),
  );
  expect(await callFiles()).toBe(200);
  await attack.expectHealthy();
});

test('CVE-2019-9900 Envoy: NUL in a header value is refused', async () => {
  for (const headers of [['X-A: a\x00b'], ['Authorization: Bearer a\x00b'], ['Host: gate.test\x00.evil']])
    await attack.expectRejected([400], attack.write({ line: 'GET /files/1 HTTP/1.1', headers, token: null }));
});

test('CVE-2019-9901 Envoy: a path that is not normalised is refused', () =>
  expectAllRefused(['/public/../admin', '/public/.//../admin', '//admin/x', '/./admin/x', '/public/%2e%2e/admin']));

test('CVE-2021-29492 Envoy: an escaped slash or backslash, or a double slash, does not bypass a rule', () =>
  expectAllRefused([
    '/public%2Fadmin',
    '/public%2f..%2fadmin',
    '/public%5cadmin',
    '/public\\..\\admin',
    '/public//admin',
    '/admin%2Fx',
    '//public/a',
  ]));

test('CVE-2025-64527 Envoy: two tokens in one request are refused without a crash', async () => {
  const { token } = attack;
  for (const second of ['unknown.key.token', token, 'eyJhbGciOiJSUzI1NiIsImtpZCI6InVua25vd24ifQ.e30.AA'])
    for (const first of [token, second])
      await attack.expectRejected(
        [400],
        attack.write({
          line: 'GET /files/1 HTTP/1.1',
          headers: [`Authorization: Bearer ${first}`, `Authorization: Bearer ${second}`],
          token: null,
        }),
      );
});
