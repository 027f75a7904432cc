import { X509Certificate } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { needs } from '../set-up/programs.ts';
import { runChild } from '../support/child-process.ts';
import { runCommand } from '../support/command-in-process.ts';
import { testFolder } from '../support/configuration.ts';
import { startServe } from '../support/serve-process.ts';
import { startUpstream } from '../support/test-gateway.ts';

needs('openssl', 'curl');

const readCertificate = (folder: string, name: string): X509Certificate =>
  new X509Certificate(readFileSync(join(folder, `${name}.pem`)));

test('creates a CA, a server certificate and client certificates, marked as for development, for 90 days', async () => {
  const cwd = testFolder();
  const hosts = ['api.example.test', '*.Apps.example.test', '192.0.2.7', '2001:db8::ffff:7'];
  const args = [
    ...hosts.flatMap((host) => ['--host', host]),
    '--client',
    'alice',
    '--client',
    'bob@example.test',
  ];
  const { code, stderr } = await runCommand(['dev-ca', ...args, 'pki'], { cwd });
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });

  const folder = join(cwd, 'pki');
  const names = ['ca', 'server', 'alice', 'bob@example.test'];
  expect(readdirSync(folder).toSorted()).toEqual(
    names.flatMap((name) => [`${name}.pem`, `${name}-key.pem`]).toSorted(),
  );
  expect(statSync(folder).mode & 0o777).toBe(0o700);
  for (const name of names) {
    expect(statSync(join(folder, `${name}-key.pem`)).mode & 0o777).toBe(0o600);
    const certificate = readCertificate(folder, name);
    expect(certificate.subject).toContain('development only');
    const days = (certificate.validToDate.getTime() - Date.now()) / 86_400_000;
    expect(Math.abs(days - 90)).toBeLessThan(1);
    if (name === 'ca') continue;
    const purpose = name === 'server' ? 'sslserver' : 'sslclient';
    const files = ['-CAfile', join(folder, 'ca.pem'), join(folder, `${name}.pem`)];
    expect(
      await runChild(['openssl', 'verify', '-x509_strict', '-purpose', purpose, ...files]),
    ).toMatchObject({ code: 0 });
  }
  expect(readCertificate(folder, 'ca').subject).toMatch(/CN=gatehouse CA\\?, development only/);
  expect(readCertificate(folder, 'alice').subject).toMatch(/^CN=alice$/m);
  expect(readCertificate(folder, 'bob@example.test').checkEmail('bob@example.test')).toBeDefined();

  const server = readCertificate(folder, 'server');
  for (const host of ['localhost', 'api.example.test', 'a.apps.example.test'])
    expect([host, server.checkHost(host)]).not.toContain(undefined);
  for (const address of ['127.0.0.1', '::1', '192.0.2.7', '2001:db8::ffff:7'])
    expect([address, server.checkIP(address)]).not.toContain(undefined);
  expect(server.checkHost('other.example.test')).toBeUndefined();
});

test('every form of an IPv6 address is encoded as openssl reads it', async () => {
  const cwd = testFolder();
  const addresses = ['::', '1::', '::ffff:192.0.2.1', '1:2:3:4:5:6:7:8', 'fe80::a:0:0:1'];
  await runCommand(['dev-ca', ...addresses.flatMap((host) => ['--host', host]), 'pki'], { cwd });
  const { stdout } = await runChild([
    'openssl',
    'x509',
    '-noout',
    '-ext',
    'subjectAltName',
    '-in',
    join(cwd, 'pki/server.pem'),
  ]);
  expect([...stdout.matchAll(/IP Address:([0-9A-F:]+:[0-9A-F:]+)/g)].map(([, address]) => address)).toEqual([
    '0:0:0:0:0:0:0:1',
    '0:0:0:0:0:0:0:0',
    '1:0:0:0:0:0:0:0',
    '0:0:0:0:0:FFFF:C000:201',
    '1:2:3:4:5:6:7:8',
    'FE80:0:0:0:A:0:0:1',
  ]);
});

test('a gateway with the printed settings answers the printed request', async () => {
  const cwd = testFolder();
  const upstream = await startUpstream((_request, response) => response.end('from the API'));
  onTestFinished(() => upstream.close());
  const { stdout } = await runCommand(['dev-ca', '--client', 'alice', 'pki'], { cwd });
  const [, settings = '', request = ''] =
    /relative to that file:\n\n([\s\S]*?)\n\nA request[^\n]*\n\n([\s\S]*)/.exec(stdout) ?? [];
  writeFileSync(
    join(cwd, 'gatehouse.yaml'),
    `${settings.replace(/^ {2}/gm, '')}
  directory: machines
directories: { machines: { label: machine, derive: true } }
store: { unauthenticatedRecords: refuse }
integrations: [{ clientId: a, scope: f, grants: [certificate], access: [{ directory: machines }] }]
upstreams: { default: { url: "http://127.0.0.1:${upstream.port}" } }
routes: [{ path: /, public: true }]
`,
  );
  expect(await runCommand(['check', '-c', 'gatehouse.yaml'], { cwd })).toMatchObject({ code: 0, stderr: '' });
  const server = await startServe({ path: cwd }, { set: ['listen.port=0', 'admin.port=0'] });
  onTestFinished(() => server.kill());
  const ask = async (command: string) => runChild(['sh', '-c', command], { cwd });
  const here = request.replaceAll(':8443', `:${server.port}`);
  expect(await ask(here.replace('curl ', 'curl -sS '))).toMatchObject({
    code: 0,
    stdout: 'from the API',
    stderr: '',
  });

  const grant = `${here.trimEnd()}authsvc/Authorize/Certificate -sS -H 'Content-Type: application/json' -d '{"client_id":"a","scope":"f"}'`;
  expect(JSON.parse((await ask(grant)).stdout)).toMatchObject({ token_type: 'Bearer', scope: 'f' });
});

test('nothing is overwritten, and nothing is written beside an existing file', async () => {
  const cwd = testFolder();
  mkdirSync(join(cwd, 'pki'));
  writeFileSync(join(cwd, 'pki/alice-key.pem'), 'precious');
  const { code, stdout, stderr } = await runCommand(['dev-ca', '--client', 'alice', 'pki'], { cwd });
  expect({ code, stdout }).toEqual({ code: 78, stdout: '' });
  expect(stderr).toMatch(
    /^gatehouse: .*alice-key\.pem exists already, and nothing is overwritten; [^\n]+\n$/,
  );
  expect(readdirSync(join(cwd, 'pki'))).toEqual(['alice-key.pem']);
  expect(readFileSync(join(cwd, 'pki/alice-key.pem'), 'utf8')).toBe('precious');
  // Other files in the folder do not matter.
  expect((await runCommand(['dev-ca', 'pki'], { cwd })).code).toBe(0);
  expect((await runCommand(['dev-ca', 'pki'], { cwd })).code).toBe(78);
});

test.each([
  [['--client', '../alice'], /--client must be/],
  [['--client', 'ca'], /--client ca: this name is used for another file/],
  [['--client', 'Server'], /--client Server: this name is used/],
  [['--client', 'ca-key'], /--client ca-key: this name is used/],
  [['--client', 'alice', '--client', 'Alice'], /--client Alice is given twice/],
  [['--client', 'a\nb'], /--client must be/],
  [['--client', ''], /--client must be/],
  [['--host', 'https://a.example.test'], /--host must be a DNS name or an IP address/],
  [['--host', 'a.example.test:8443'], /--host must be/],
  [['--host', '1.2.3'], /--host must be/],
  [['--host', 'a b'], /--host must be/],
  [['--host', 'fe80::1%eth0'], /--host must be/],
])('%j is a usage error', async (args, words) => {
  const cwd = testFolder();
  const { code, stderr } = await runCommand(['dev-ca', ...args, 'pki'], { cwd });
  expect(code).toBe(64);
  expect(stderr).toMatch(words);
  expect(stderr).toMatch(/^[^\n]+\n$/);
  expect(existsSync(join(cwd, 'pki'))).toBe(false);
});

test('--output json lists the files, and no key is printed', async () => {
  const cwd = testFolder();
  const { stdout } = await runCommand(['dev-ca', '--client', 'alice', 'pki', '--output', 'json'], { cwd });
  expect(JSON.parse(stdout)).toMatchObject({
    folder: 'pki',
    ca: { certificate: 'pki/ca.pem', key: 'pki/ca-key.pem' },
    server: { certificate: 'pki/server.pem', hosts: ['localhost', '127.0.0.1', '::1'] },
    clients: [{ name: 'alice', certificate: 'pki/alice.pem', key: 'pki/alice-key.pem' }],
  });
  expect(stdout).not.toContain('PRIVATE');
});
