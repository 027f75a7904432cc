import * as fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { readTarget } from '../../src/domain/request-target.ts';
import { attackHouse } from '../support/attack-house.ts';
import { type RawClient, readAnswer, wholeAnswer } from '../support/raw-client.ts';
import { valuesOf } from '../support/recording-upstream.ts';
import { OWN } from './matrix-settings.ts';
import { PATH_ROWS } from './path-cases.ts';

/** Rows P01–P20, through the whole gateway, with a token that has only `files:read`. */
const attack = attackHouse();

/** The status, and what the upstream saw of it. */
async function fate(target: string, method = 'GET', headers: readonly string[] = []): Promise<string> {
  attack.upstream.reset();
  const { status } = await attack.ask({ line: `${method} ${target} HTTP/1.1`, headers });
  const seen = attack.upstream.requests.map((request) => request.target);
  const told = seen.length === 0 ? attack.upstream.bytes() : ` ${seen.join(' ')}`;
  return `${status}${told}`;
}

async function fates(cases: Readonly<Record<string, string>>, method?: string): Promise<void> {
  for (const [target, expected] of Object.entries(cases)) {
    expect([target, await fate(target, method)]).toEqual([target, expected]);
    await attack.stands();
  }
}

describe('the path a rule decides about is the path the upstream gets', () => {
  for (const [name, cases] of Object.entries(PATH_ROWS)) test(name, () => fates(cases));

  test('P14 a URL as target: other hosts are misdirected, user information is refused, our own is its path', () =>
    fates({
      'http://evil.test/admin': '421',
      'https://evil.test/files/1': '421',
      [`https://u:p@${OWN}/`]: '400',
      [`https://${OWN}/files/1`]: '200 /files/1',
      [`https://${OWN}/admin`]: '403',
      [`https://${OWN}/public/../admin`]: '400',
      [`https://${OWN}@evil.test/files/1`]: '400',
      'ftp://localhost/files/1': '400',
    }));

  test('P15 OPTIONS * is answered by the gateway, another method with * is refused', async () => {
    await fates({ '*': '204' }, 'OPTIONS');
    await fates({ '*': '400' });
  });

  // The matrix also knows a rule that compares without case; wire.md knows no such rule.
  test('P16 other spellings of a protected path are no path at all', () =>
    fates({ '/ADMIN/x': '404', '/Admin': '404', '/PUBLIC/x': '404', '/Files/1': '404' }));

  test('P18 the token service is reached in any case, and by no way round', async () => {
    attack.upstream.reset();
    for (const path of ['/AUTHSVC/authorize/TOKEN', '/authsvc/%41uthorize/Token']) {
      const { status, body } = await attack.ask({
        line: `POST ${path} HTTP/1.1`,
        headers: ['Content-Type: application/json', 'Content-Length: 2'],
        body: '{}',
      });
      expect([path, status, JSON.parse(body)]).toMatchObject([path, 400, { Error: 'invalid_request' }]);
    }
    expect(await fate('/authsvc/nowhere')).toBe('404');
    expect(await fate('/authsvc%2fx')).toBe('400');
    await attack.stands();
  });

  test('P19 a header cannot speak of another path or method', async () => {
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
    expect(await fate('/public/a', 'GET', headers)).toBe('200 /public/a');
    const [seen] = attack.upstream.requests;
    expect(seen?.method).toBe('GET');
    for (const name of [...names, ...methods])
      expect([name, valuesOf(seen, name.toLowerCase())]).toEqual([name, []]);
    await attack.stands();
  });
});

/** One connection after another, each for as long as the gateway keeps it. */
function connectionKeeper(): { ask(bytes: string): Promise<number>; close(): void } {
  let client: RawClient | undefined;
  return {
    async ask(bytes) {
      const open = client !== undefined && client.ending() === undefined ? client : await attack.client();
      client = open;
      const before = open.text().length;
      open.send(bytes);
      const { status, head } = readAnswer(
        (await open.until((text) => wholeAnswer(text.slice(before)))).slice(before),
      );
      if (/\r\nconnection: close/i.test(head)) {
        open.destroy();
        client = undefined;
      }
      return status;
    },
    close: () => client?.destroy(),
  };
}

describe('any target at all', () => {
  const PIECES =
    '/ . .. %2e %2F %5c %25 %61 %c3%a9 %20 ; ? # a ~ : admin public packages // \\ %00 %zz %c0%ae %252e @ * %3b';
  const pieces = fc.constantFrom(...PIECES.split(' '));
  const starts = fc.constantFrom('/', '/public/', '/packages/', '/admin/', '/public', '/%70ublic/');
  const targets = fc
    .tuple(starts, fc.array(pieces, { maxLength: 8 }))
    .map(([start, parts]) => start + parts.join(''));

  // 20,000 targets are read in test/domain/request-target.test.ts; these go over the wire.
  test('P20 what the upstream gets is the canonical target, or nothing', async () => {
    const connections = connectionKeeper();
    attack.upstream.reset();
    try {
      await fc.assert(
        fc.asyncProperty(targets, async (raw) => {
          attack.upstream.requests.length = 0;
          const reading = readTarget(raw, { method: 'GET', encodedSlash: true, isOwn: () => false });
          const status = await connections.ask(attack.write({ line: `GET ${raw} HTTP/1.1` }));
          const seen = attack.upstream.requests.map(({ target }) => target);
          if (reading.kind !== 'target') {
            expect([raw, status, seen]).toEqual([raw, 400, []]);
            return;
          }
          const { path, query, segments } = reading.target;
          const mayPass = segments[0] === 'public' || segments[0] === 'packages';
          // A path with ';' or '%2F' may fit no rule although its first segment does.
          expect(mayPass ? [200, 400, 404] : [400, 403, 404]).toContain(status);
          expect([raw, seen]).toEqual([raw, status === 200 ? [path + query] : []]);
        }),
        { numRuns: 1_000 },
      );
    } finally {
      connections.close();
    }
    await attack.stands();
  });
});
