import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { runCommand } from '../support/command-in-process.ts';
import { testFolder } from '../support/configuration.ts';

const check = async (route: string): Promise<readonly string[]> => {
  const file = join(testFolder(), 'gatehouse.yaml');
  writeFileSync(
    file,
    `
publicUrl: https://gate.test
listen: { behindTls: true }
upstreams: { default: { url: "http://127.0.0.1:9" } }
routes: [{ path: /open, public: true, ${route} }]
`,
  );
  const { code, stderr } = await runCommand(['check', '-c', file, '--set', 'pages.url=shared']);
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
  expect(
    await check('methods: [GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS, PROPFIND, MKCOL, REPORT]'),
  ).toEqual([]);
});
