import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { runCommand } from '../support/command-in-process.ts';
import { testFolder } from '../support/configuration.ts';

const CONFIGURATION = `
publicUrl: https://gate.test
pages: { url: shared }
listen: { behindTls: true }
integrations: [{ clientId: app, scope: "admin:manage", grants: [client], clientSecretHashes: ["sha256:${'A'.repeat(43)}"] }]
directories: { staff: { label: local, derive: true } }
upstreams: { default: { url: "http://127.0.0.1:9" } }
routes:
  - { path: /admin/**, requires: admin:manage }
  - { path: /**, public: true }
`;

function writeConfiguration(text = CONFIGURATION): string {
  const file = join(testFolder(), 'gatehouse.yaml');
  writeFileSync(file, text);
  return file;
}
const run = (command: string, file: string, ...args: string[]) => runCommand([command, '-c', file, ...args]);
const setArgs = (...settings: string[]): string[] => settings.flatMap((text) => ['--set', text]);

test('check reports which requests are rejected because of their spelling', async () => {
  const file = writeConfiguration();
  const { code, stdout, stderr } = await run('check', file);
  expect([code, stderr]).toEqual([0, '']);
  expect(stdout).toContain(
    'note: upstreams.default.paths: requests are rejected if their path differs from routes[0] /admin/** only in letter case or by a trailing slash, because the less strict routes[1] /** would forward them.',
  );
  const one = writeConfiguration(
    CONFIGURATION.replace('  - { path: /**', '  - { path: /audit/**, requires: admin:manage }\n  - { path: /**'),
  );
  expect((await run('check', one)).stdout).toContain(' (and 1 more such pair).');
  const distinct = setArgs(
    'upstreams.default.paths.letterCase=distinct',
    'upstreams.default.paths.trailingSlash=distinct',
  );
  expect((await run('check', file, ...distinct)).stdout).not.toContain('upstreams.default.paths');
  const same = distinct.map((text) => text.replace('=distinct', '=same'));
  expect((await run('check', file, ...same)).stdout).not.toContain('upstreams.default.paths');
});

test('check warns about a route whose requests are all rejected because of their spelling', async () => {
  const file = writeConfiguration(CONFIGURATION.replace('path: /**', 'path: /Admin/x'));
  expect((await run('check', file)).stderr).toMatch(
    /^warning: routes\[1\] \/Admin\/x: differs from routes\[0\] \/admin\/\*\* only in letter case/m,
  );
});

test('check reports a route that is never reached because the upstream ignores letter case', async () => {
  const file = writeConfiguration(CONFIGURATION.replace('path: /**', 'path: /Admin/x'));
  const { code, stderr } = await run('check', file, ...setArgs('upstreams.default.paths.letterCase=same'));
  expect(code).toBe(78);
  expect(stderr).toMatch(/routes\[1\]\.path +is never reached/);
});

test('explain names the rule whose path differs only in spelling, and the relevant setting', async () => {
  const file = writeConfiguration();
  const { stdout } = await run('explain', file, 'GET', '/Admin/x');
  expect(stdout).toContain(
    '  routes[0] /admin/**: differs only in letter case or by a trailing slash, and is stricter',
  );
  expect(stdout).toContain('  routes[1] /**: would match, but an upstream may read the path as one of a stricter rule');
  expect(stdout).toMatch(
    /^rejected \(404; 401 without a valid token issued by gatehouse\): .*set upstreams\.default\.paths$/m,
  );
  const same = await run('explain', file, 'GET', '/Admin/x', ...setArgs('upstreams.default.paths.letterCase=same'));
  expect(same.stdout).toContain('routes[0] /admin/**: matches');
});

test('explain reports that a host is not listed and is rejected', async () => {
  const file = writeConfiguration();
  const warned = await run('explain', file, 'GET', '/x', '--host', 'evil.test');
  expect(warned.stdout).toContain('the host is not listed in hosts.allowed: a warning is logged');
  const rejected = await run('explain', file, 'GET', '/x', '--host', 'evil.test', ...setArgs('hosts.others=refuse'));
  expect(rejected.stdout).toContain('rejected (421): evil.test is not listed in hosts.allowed');
  const listed = await run(
    'explain',
    file,
    'GET',
    '/x',
    '--host',
    'a.apps.test',
    ...setArgs('hosts.allowed=[*.apps.test]'),
  );
  expect(listed.stdout).not.toContain('hosts.allowed');
});

test('check warns if the list of hosts rejects none', async () => {
  const args = setArgs('hosts.others=refuse', 'hosts.allowed=["*"]');
  expect((await run('check', writeConfiguration(), ...args)).stderr).toContain('hosts.others: refuse has no effect');
});

test('a host with a port or a misplaced wildcard is a problem', async () => {
  for (const host of ['api.test:443', 'a.*.test', 'https://api.test', '']) {
    const { code, stderr } = await run('check', writeConfiguration(), ...setArgs(`hosts.allowed=["${host}"]`));
    expect([host, code]).toEqual([host, 78]);
    expect(stderr).toContain('must be a host name without a port');
  }
});

test('explain accepts methods that only HTTP/2 allows, and only in upper case', async () => {
  const file = writeConfiguration();
  expect((await run('explain', file, 'FETCH', '/x')).stdout).toContain(
    'over HTTP/2; the HTTP/1.1 parser rejects this method (400)',
  );
  expect((await run('explain', file, 'get', '/x')).stderr).toContain('write METHOD in capitals');
});
