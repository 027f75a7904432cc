import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { runCommand } from '../support/command-in-process.ts';
import { loadText, loadValid, MINIMAL_CONFIG, testFolder } from '../support/configuration.ts';

const withRoutes = (...routes: readonly string[]): string =>
  `${MINIMAL_CONFIG}upstreams: { default: { url: "http://127.0.0.1:9000" } }
routes:
${routes.map((route) => `  - { ${route} }`).join('\n')}
`;
const withCors = (cors: string): string => withRoutes(`path: /a, public: true, cors: { ${cors} }`);

function listProblems(text: string): string[] {
  const loaded = loadText(text);
  return loaded.ok ? [] : loaded.problems.map(({ path, message }) => `${path}: ${message}`);
}

describe('contradictory route settings are reported', () => {
  test.each([
    ['origins: [null]', /origins\[0\]/],
    ['origins: ["null"]', /origins\[0\]: must be an origin/],
    ['origins: []', /origins/],
    ['origins: ["https://a.test/"]', /origins\[0\]: must be an origin/],
    ['origins: ["https://a.test:443"]', /origins\[0\]: must be an origin/],
    ['origins: ["https://A.test"]', /origins\[0\]: must be an origin/],
    ['origins: ["https://*.a.test"]', /origins\[0\]: must be an origin/],
    ['origins: ["a.test"]', /origins\[0\]: must be an origin/],
    ['origins: ["*", "https://a.test"]', /origins: contains \* and other origins/],
    ['origins: ["*"], credentials: true', /credentials: cannot be combined with the origin \*/],
    ['origins: ["https://a.test"], methods: [get]', /methods\[0\]: must be a method in capitals/],
    ['origins: ["https://a.test"], headers: ["X Y"]', /headers\[0\]: must be a header name/],
    ['origins: ["https://a.test"], maxAge: 2d', /maxAge: must be from 0s to 1d/],
    ['methods: [GET]', /origins/],
  ])('cors: { %s }', (cors, words) => {
    const problems = listProblems(withCors(cors));
    expect(problems.join('\n')).toMatch(words);
  });

  test.each([
    ['path: /a, public: true, reportOnly: true', /reportOnly: has no effect on a public route/],
    ['path: /a, public: true, websocket: true, methods: [POST]', /websocket: needs GET in methods/],
  ])('%s', (route, words) => {
    expect(listProblems(withRoutes(route)).join('\n')).toMatch(words);
  });

  test('valid settings', () => {
    for (const origin of ['https://a.test', 'http://localhost:3000', 'https://[::1]:8443', 'app://desktop'])
      expect(listProblems(withCors(`origins: ["${origin}"], credentials: true`))).toEqual([]);
    const { routes, tokens } = loadValid(
      withRoutes('path: /a, requires: any-token, websocket: true, reportOnly: true, cors: { origins: ["*"] }'),
    );
    expect(routes[0]?.cors).toEqual({
      origins: ['*'],
      headers: ['Authorization', 'Content-Type'],
      exposeHeaders: [],
      credentials: false,
      maxAge: 600,
    });
    expect(tokens.endStreams).toBe('upgrades-and-events');
  });
});

describe('on the command line', () => {
  const CONFIGURATION = withRoutes(
    'path: /ws/**, requires: any-token, methods: [GET], websocket: true',
    'path: /pages/**, requires: any-token, methods: [GET, POST], cors: { origins: ["https://a.test", "https://b.test"] }',
    'path: /try/**, requires: any-token, reportOnly: true',
  );
  const run = (...args: string[]) => {
    const file = join(testFolder(), 'gatehouse.yaml');
    writeFileSync(file, CONFIGURATION);
    const [name = '', ...rest] = args;
    return runCommand([name, '-c', file, ...rest]);
  };

  test('check warns about rules that only report', async () => {
    const { code, stderr } = await run('check');
    expect(code).toBe(0);
    expect(stderr).toBe(
      'warning: routes[2].reportOnly: requests to /try/** are never rejected, only logged (line 6)\n',
    );
  });

  test.each([
    [
      ['GET', '/ws/1'],
      ['  WebSocket upgrades are allowed', 'requires a token (401 without one): the rule requires any-token'],
    ],
    [
      ['GET', '/pages/1', '--scope', 'files:read'],
      [
        '  CORS: pages of https://a.test, https://b.test may read the response',
        'forwarded: the token meets the requirement any-token',
      ],
    ],
    [
      ['OPTIONS', '/pages/1'],
      [
        '  a CORS preflight for GET, POST is answered by gatehouse, without a token',
        'rejected (404; 401 without a valid token issued by gatehouse): no rule matches',
      ],
    ],
    [
      ['GET', '/try/1'],
      [
        'requires a token (401 without one): the rule requires any-token',
        'but it is forwarded: the rule is report-only',
      ],
    ],
  ])('explain %j', async (args, lines) => {
    const { stdout } = await run('explain', ...args);
    expect(stdout.split('\n').slice(-1 - lines.length, -1)).toEqual(lines);
  });

  test('explain --output json', async () => {
    const json = async (...args: string[]) =>
      JSON.parse((await run('explain', ...args, '--output', 'json')).stdout) as unknown;
    expect(await json('GET', '/ws/1')).toMatchObject({ websocket: true });
    expect(await json('GET', '/pages/1')).toMatchObject({
      corsOrigins: ['https://a.test', 'https://b.test'],
    });
    expect(await json('OPTIONS', '/pages/1')).toMatchObject({ preflightsFor: ['GET', 'POST'] });
    expect(await json('GET', '/try/1')).toMatchObject({ verdict: 'token_required', reportOnly: true });
  });
});
