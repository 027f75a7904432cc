import * as fc from 'fast-check';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { parseTarget } from '../../src/domain/request-target.ts';
import { PATH_ROWS } from '../attack/path-cases.ts';
import { type ProxyHarness, RULES, rule, startProxyHarness } from '../support/proxy-harness.ts';
import { type RawResponse, rawRequest } from '../support/raw-client.ts';
import { headerValues, type RecordingUpstream, startRecordingUpstream } from '../support/recording-upstream.ts';

let upstream: RecordingUpstream;
let proxy: ProxyHarness;

beforeAll(async () => {
  upstream = await startRecordingUpstream();
  proxy = await startProxyHarness({
    upstream: upstream.url,
    rules: [
      ...RULES,
      rule('/packages/*', 'any-token', { encodedSlash: true }),
      rule('/api/v1/**', 'any-token', { stripPrefix: '/api' }),
    ],
  });
});
afterAll(async () => {
  await proxy.close();
  await upstream.close();
});
beforeEach(() => upstream.reset());

const send = (target: string, extra = '', method = 'GET'): Promise<RawResponse> =>
  rawRequest(
    proxy.port,
    `${method} ${target} HTTP/1.1\r\nHost: 127.0.0.1:${proxy.port}\r\nAuthorization: Bearer A\r\n${extra}\r\n`,
  );

/** Sends a request; returns the status and the target that the upstream received. */
async function getResult(target: string, method?: string): Promise<string> {
  upstream.reset();
  const { status } = await send(target, '', method);
  const [seen] = upstream.requests;
  return seen === undefined ? `${status}${upstream.bytes()}` : `${status} ${seen.target}`;
}

describe('the path a rule decides about is the path the upstream gets', () => {
  for (const [name, cases] of Object.entries(PATH_ROWS))
    test(name, async () => {
      for (const [target, expected] of Object.entries(cases))
        expect([target, await getResult(target)]).toEqual([target, expected]);
    });

  test('P14 an absolute URL as target: 421 for other hosts, 400 with user information, and its path for our own host', async () => {
    expect(await getResult('http://evil.test/admin')).toBe('421');
    expect(await getResult(`http://u:p@127.0.0.1:${proxy.port}/`)).toBe('400');
    expect(await getResult(`http://127.0.0.1:${proxy.port}/files/1`)).toBe('200 /files/1');
    expect(await getResult(`http://127.0.0.1:${proxy.port}/admin`)).toBe('403');
    expect(await getResult('http://evil.test:99999/files/1')).toBe('400');
  });

  test('P15 OPTIONS * gets a response from the gateway, another method with * is rejected', async () => {
    expect(await getResult('*', 'OPTIONS')).toBe('204');
    expect(await getResult('*')).toBe('400');
  });

  test('P19 headers cannot override the path or the method', async () => {
    const names = ['X-Original-URL', 'X-Rewrite-URL', 'X-Forwarded-Uri', 'X-Forwarded-Prefix'];
    const extra = names.map((name) => `${name}: /admin\r\n`).join('');
    const { status } = await send('/public/a', `${extra}X-HTTP-Method-Override: DELETE\r\n`);
    expect(status).toBe(200);
    const [seen] = upstream.requests;
    expect([seen?.method, seen?.target]).toEqual(['GET', '/public/a']);
    for (const name of [...names, 'X-HTTP-Method-Override'])
      expect([name, headerValues(seen, name.toLowerCase())]).toEqual([name, []]);
  });

  test('a prefix that a rule strips is stripped by whole segments', async () => {
    expect(await getResult('/api/v1/x?y')).toBe('200 /v1/x?y');
    expect(await getResult('/api/v1')).toBe('200 /v1');
    expect(await getResult('/%61pi/v1/')).toBe('200 /v1/');
  });

  test('P20 for any target, the upstream gets the path that the rule matched', async () => {
    const openProxy = await startProxyHarness({
      upstream: upstream.url,
      rules: [rule('/**', 'public', { encodedSlash: true })],
    });
    const pieces = ['/', '.', '..', '%2e', '%2F', '%5c', '%25', '%61', '%c3%a9', '%20', ';', '?', '#', 'a', '~', ':'];
    const targets = fc.array(fc.constantFrom(...pieces), { maxLength: 8 }).map((parts) => `/${parts.join('')}`);
    try {
      await fc.assert(
        fc.asyncProperty(targets, async (raw) => {
          upstream.reset();
          const parsed = parseTarget(raw, {
            method: 'GET',
            encodedSlash: true,
            isServedAuthority: () => false,
          });
          const { status } = await rawRequest(openProxy.port, `GET ${raw} HTTP/1.1\r\nHost: a.test\r\n\r\n`);
          const seen = upstream.requests.map(({ target }) => target);
          if (parsed.kind !== 'target') expect([status, seen]).toEqual([400, []]);
          else expect([status, seen]).toEqual([200, [parsed.target.path + parsed.target.query]]);
        }),
        { numRuns: 400 },
      );
    } finally {
      await openProxy.close();
    }
  });

  test('the log of a 404 lists the rules that almost match', async () => {
    await expectNotFound('/nowhere');
    expect(proxy.notes.at(-1)?.reason).toBe('no_rule (none of 5 rules has this path)');
  });
});

const expectNotFound = async (target: string): Promise<void> => {
  expect((await send(target)).status).toBe(404);
};
