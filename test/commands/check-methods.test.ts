import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { runCommand } from '../support/command-in-process.ts';
import { testFolder } from '../support/configuration.ts';

const runCheck = (routes: string, ...more: readonly string[]): ReturnType<typeof runCommand> => {
  const file = join(testFolder(), 'gatehouse.yaml');
  writeFileSync(
    file,
    `
publicUrl: https://gate.test
listen: { behindTls: true }
upstreams: { default: { url: "http://127.0.0.1:9" } }
routes: [${routes}]
`,
  );
  return runCommand(['check', '-c', file, '--set', 'pages.url=shared', ...more]);
};

const check = async (route: string): Promise<readonly string[]> => {
  const { code, stderr } = await runCheck(`{ path: /open, public: true, ${route} }`);
  expect(code).toBe(0);
  return stderr
    .split('\n')
    .filter((line) => line.includes('methods'))
    .map((line) => line.replace(/ \(line 5\)$/, ''));
};
const describeUnknown = (at: string, name: string): string =>
  `warning: ${at}: ${name} is not a known HTTP method, and HTTP/1.1 requests with it are rejected`;

test.each([
  ['GTE', 'GET'],
  ['PSOT', 'POST'],
  ['DELTE', 'DELETE'],
  ['OPTION', 'OPTIONS'],
  ['PROPFND', 'PROPFIND'],
])('check warns about the method %s, and names %s', async (name, closest) => {
  expect(await check(`methods: [POST, ${name}]`)).toEqual([
    `${describeUnknown('routes[0].methods', name)}; did you mean ${closest}?`,
  ]);
});

test('check warns about a method that resembles none, and about one for CORS', async () => {
  expect(
    await check('methods: [GET, FROBNICATE], cors: { origins: [https://app.test], methods: [GET, PUTT] }'),
  ).toEqual([
    describeUnknown('routes[0].methods', 'FROBNICATE'),
    `${describeUnknown('routes[0].cors.methods', 'PUTT')}; did you mean PUT?`,
  ]);
});

test.each(['TRACE', 'CONNECT', 'QUERY'])('check warns that %s is never forwarded', async (name) => {
  expect(await check(`methods: [${name}]`)).toEqual([
    `warning: routes[0].methods: requests with the method ${name} are always rejected (405)`,
  ]);
});

test('check accepts the methods that HTTP/1.1 clients can send', async () => {
  expect(await check('methods: [GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS, PROPFIND, MKCOL, REPORT]')).toEqual([]);
});

/** The notes about methods, as one line each. */
const listMethodNotes = async (...routes: readonly string[]): Promise<readonly string[]> => {
  const { code, stdout } = await runCheck(routes.join(', '), '--output', 'json');
  expect(code).toBe(0);
  const { notes = [] } = JSON.parse(stdout) as { notes?: readonly string[] };
  return notes.filter((note) => note.includes('less strict. If that is not intended'));
};

const ADMIN_GET = '{ path: /admin/**, methods: [GET], requires: admin:read }';

test('check names the methods that a route leaves to a less strict one', async () => {
  expect(await listMethodNotes(ADMIN_GET, '{ path: /**, public: true }')).toEqual([
    'routes[0] /admin/**: is for GET only; requests to its paths with POST, PUT, PATCH, DELETE match routes[1] /**, which is less strict. If that is not intended, add a route for these methods before it',
  ]);
  expect(
    await listMethodNotes(
      '{ path: /orders/**, methods: [POST], requires: orders:write }',
      '{ path: /orders/**, requires: any-token }',
    ),
  ).toEqual([expect.stringContaining('with PUT, PATCH, DELETE match routes[1] /orders/**')]);
});

test.each([
  ['the other route requires another scope', [ADMIN_GET, '{ path: /admin/**, requires: admin:write }']],
  ['no other route matches', [ADMIN_GET, '{ path: /files/**, public: true }']],
  ['they match a route of the same strictness', [ADMIN_GET, '{ path: /**, requires: admin:read }']],
  [
    'an earlier route handles them',
    [
      '{ path: /**, methods: [POST, PUT, PATCH, DELETE], requires: admin:write }',
      ADMIN_GET.replace('admin:read', 'admin:write'),
      '{ path: /**, public: true }',
    ],
  ],
  ['the other route is for another host', [ADMIN_GET, '{ path: /**, public: true, host: other.test }']],
  [
    'all of them are listed',
    ['{ path: /admin/**, methods: [POST, PUT, PATCH, DELETE], requires: admin:write }', '{ path: /**, public: true }'],
  ],
])('check says nothing about methods if %s', async (_, routes) => {
  expect(await listMethodNotes(...routes)).toEqual([]);
});

test('check --strict fails if there are only warnings', async () => {
  const warned = '{ path: /open, public: true, methods: [GTE] }';
  expect(await runCheck(warned)).toMatchObject({ code: 0 });
  const strict = await runCheck(warned, '--strict');
  expect(strict.code).toBe(78);
  expect(strict.stderr).toContain('did you mean GET?');
  const json = await runCheck(warned, '--strict', '--output', 'json');
  expect(json.code).toBe(78);
  expect(JSON.parse(json.stdout)).toMatchObject({ ok: false, problems: [] });
  expect(await runCheck('{ path: /open, public: true, methods: [GET] }', '--strict')).toMatchObject({
    code: 0,
  });
});
