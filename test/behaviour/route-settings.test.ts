import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { gatehouse } from '../support/command-line.ts';
import { folder, LEAST, load, sound } from '../support/configuration.ts';

const withRoutes = (...routes: readonly string[]): string =>
  `${LEAST}upstreams: { default: { url: "http://127.0.0.1:9000" } }
routes:
${routes.map((route) => `  - { ${route} }`).join('\n')}
`;
const withCors = (cors: string): string => withRoutes(`path: /a, public: true, cors: { ${cors} }`);

function problemsOf(text: string): string[] {
  const loaded = load(text);
  return loaded.ok ? [] : loaded.problems.map(({ path, message }) => `${path}: ${message}`);
}

describe('settings of a route that contradict themselves are told', () => {
  test.each([
    ['origins: [null]', /origins\[0\]/],
    ['origins: ["null"]', /origins\[0\]: must be an origin/],
    ['origins: []', /origins/],
    ['origins: ["https://a.test/"]', /origins\[0\]: must be an origin/],
    ['origins: ["https://a.test:443"]', /origins\[0\]: must be an origin/],
    ['origins: ["https://A.test"]', /origins\[0\]: must be an origin/],
    ['origins: ["https://*.a.test"]', /origins\[0\]: must be an origin/],
    ['origins: ["a.test"]', /origins\[0\]: must be an origin/],
    ['origins: ["*", "https://a.test"]', /origins: \* stands alone/],
    ['origins: ["*"], credentials: true', /credentials: cannot stand beside the origin \*/],
    ['origins: ["https://a.test"], methods: [get]', /methods\[0\]: must be a method in capitals/],
    ['origins: ["https://a.test"], headers: ["X Y"]', /headers\[0\]: must be the name of a header/],
    ['origins: ["https://a.test"], maxAge: 2d', /maxAge: must be at most 1d/],
    ['methods: [GET]', /origins/],
  ])('cors: { %s }', (cors, words) => {
    const problems = problemsOf(withCors(cors));
    expect(problems.join('\n')).toMatch(words);
  });

  test.each([
    ['path: /a, public: true, reportOnly: true', /reportOnly: has no meaning on a public route/],
    ['path: /a, public: true, websocket: true, methods: [POST]', /websocket: needs GET among the methods/],
  ])('%s', (route, words) => {
    expect(problemsOf(withRoutes(route)).join('\n')).toMatch(words);
  });

  test('what is sound', () => {
    for (const origin of ['https://a.test', 'http://localhost:3000', 'https://[::1]:8443', 'app://desktop'])
      expect(problemsOf(withCors(`origins: ["${origin}"], credentials: true`))).toEqual([]);
    const { routes, tokens } = sound(
      withRoutes(
        'path: /a, requires: any-token, websocket: true, reportOnly: true, cors: { origins: ["*"] }',
      ),
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
    const file = join(folder(), 'gatehouse.yaml');
    writeFileSync(file, CONFIGURATION);
    const [name = '', ...rest] = args;
    return gatehouse([name, '-c', file, ...rest]);
  };

  test('check warns about rules that only report', async () => {
    const { code, stderr } = await run('check');
    expect(code).toBe(0);
    expect(stderr).toBe(
      'warning: routes[2].reportOnly: /try/** refuses nobody; those it would refuse pass and are logged\n',
    );
  });

  test.each([
    [
      ['GET', '/ws/1'],
      ['  a WebSocket may be opened here', 'needs a token (401 without): the rule asks for any-token'],
    ],
    [
      ['GET', '/pages/1', '--scope', 'files:read'],
      [
        '  pages of https://a.test, https://b.test may read the answer',
        'forwarded: the token gives any-token',
      ],
    ],
    [
      ['OPTIONS', '/pages/1'],
      [
        "  as a browser's preflight for GET, POST it is answered here, without a token",
        'denied (404): no rule matches, so it is denied',
      ],
    ],
    [
      ['GET', '/try/1'],
      ['needs a token (401 without): the rule asks for any-token', 'but it passes: the rule only reports'],
    ],
  ])('explain %j', async (args, lines) => {
    const { stdout } = await run('explain', ...args);
    expect(stdout.split('\n').slice(-1 - lines.length, -1)).toEqual(lines);
  });

  test('explain for programs', async () => {
    const json = async (...args: string[]) =>
      JSON.parse((await run('explain', ...args, '--output', 'json')).stdout) as unknown;
    expect(await json('GET', '/ws/1')).toMatchObject({ websocket: true });
    expect(await json('GET', '/pages/1')).toMatchObject({
      corsOrigins: ['https://a.test', 'https://b.test'],
    });
    expect(await json('OPTIONS', '/pages/1')).toMatchObject({ preflightsFor: ['GET', 'POST'] });
    expect(await json('GET', '/try/1')).toMatchObject({ verdict: 'needs_token', reportOnly: true });
  });
});
