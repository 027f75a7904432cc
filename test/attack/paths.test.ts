import { describe, expect, test } from 'vitest';
import { headerValues } from '../support/recording-upstream.ts';
import { testAnyTarget } from './any-target.ts';
import { useAttackGateway } from './attack-gateway.ts';
import { OWN } from './matrix-settings.ts';
import { PATH_ROWS } from './path-cases.ts';

/** Rows P01–P20 through a complete gateway, with a token that has only `files:read`. */
const attack = useAttackGateway();

/** Sends a request; returns the status and the target that the upstream received. */
async function getResult(target: string, method = 'GET', headers: readonly string[] = []): Promise<string> {
  attack.upstream.reset();
  const { status } = await attack.request({ line: `${method} ${target} HTTP/1.1`, headers });
  const seen = attack.upstream.requests.map((request) => request.target);
  const received = seen.length === 0 ? attack.upstream.bytes() : ` ${seen.join(' ')}`;
  return `${status}${received}`;
}

async function expectResults(cases: Readonly<Record<string, string>>, method?: string): Promise<void> {
  for (const [target, expected] of Object.entries(cases)) {
    expect([target, await getResult(target, method)]).toEqual([target, expected]);
    await attack.expectHealthy();
  }
}

describe('the path a rule decides about is the path the upstream gets', () => {
  for (const [name, cases] of Object.entries(PATH_ROWS)) test(name, () => expectResults(cases));

  test('P14 an absolute URL as target: 421 for other hosts, 400 with user information, and its path for our own host', () =>
    expectResults({
      'http://evil.test/admin': '421',
      'https://evil.test/files/1': '421',
      [`https://u:p@${OWN}/`]: '400',
      [`https://${OWN}/files/1`]: '200 /files/1',
      [`https://${OWN}/admin`]: '403',
      [`https://${OWN}/public/../admin`]: '400',
      [`https://${OWN}@evil.test/files/1`]: '400',
      'ftp://localhost/files/1': '400',
    }));

  test('P15 OPTIONS * gets a response from the gateway, other methods with * are rejected', async () => {
    await expectResults({ '*': '204' }, 'OPTIONS');
    await expectResults({ '*': '400' });
  });

  test('P16 other spellings of a protected path match no route', () =>
    expectResults({ '/ADMIN/x': '404', '/Admin': '404', '/PUBLIC/x': '404', '/Files/1': '404' }));

  test('P18 paths of the token service match in any letter case, but in no other spelling', async () => {
    attack.upstream.reset();
    for (const path of ['/AUTHSVC/authorize/TOKEN', '/authsvc/%41uthorize/Token']) {
      const { status, body } = await attack.request({
        line: `POST ${path} HTTP/1.1`,
        headers: ['Content-Type: application/json', 'Content-Length: 2'],
        body: '{}',
      });
      expect([path, status, JSON.parse(body)]).toMatchObject([path, 400, { Error: 'invalid_request' }]);
    }
    expect(await getResult('/authsvc/nowhere')).toBe('404');
    expect(await getResult('/authsvc%2fx')).toBe('400');
    await attack.expectHealthy();
  });

  test('P19 a header cannot override the path or the method', async () => {
    const names = [
      'X-Original-URL',
      'X-Original-URI',
      'X-Rewrite-URL',
      'X-Forwarded-Uri',
      'X-Forwarded-Prefix',
      'X-Forwarded-Path',
      'X_Original_URL',
    ];
    const methods = ['X-HTTP-Method-Override', 'X-HTTP-Method', 'X-Method-Override'];
    const headers = [...names.map((name) => `${name}: /admin`), ...methods.map((name) => `${name}: DELETE`)];
    expect(await getResult('/public/a', 'GET', headers)).toBe('200 /public/a');
    const [seen] = attack.upstream.requests;
    expect(seen?.method).toBe('GET');
    for (const name of [...names, ...methods])
      expect([name, headerValues(seen, name.toLowerCase())]).toEqual([name, []]);
    await attack.expectHealthy();
  });
});

testAnyTarget(attack, { numRuns: 200, seed: 20 });
