import { X509Certificate } from 'node:crypto';
import {
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { needs } from '../set-up/programs.ts';
import { runChild } from '../support/child-process.ts';
import { runCommand } from '../support/command-in-process.ts';
import { testFolder } from '../support/configuration.ts';
import { startServe, until } from '../support/serve-process.ts';

needs('openssl', 'curl');

const readCertificate = (folder: string, name: string): X509Certificate =>
  new X509Certificate(readFileSync(join(folder, `${name}.pem`)));

/** Of the entries of a revocation list, as openssl prints them. */
const listSerials = (text: string): readonly string[] =>
  [...text.matchAll(/Serial Number: (\w+)/g)].map(([, serial = '']) => serial);

test('creates a CA, a server certificate and client certificates, marked as for development, for 90 days', async () => {
  const cwd = testFolder();
  const hosts = ['api.example.test', '*.Apps.example.test', '192.0.2.7', '2001:db8::ffff:7'];
  const args = [...hosts.flatMap((host) => ['--host', host]), '--client', 'alice', '--client', 'bob@example.test'];
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
    expect(await runChild(['openssl', 'verify', '-x509_strict', '-purpose', purpose, ...files])).toMatchObject({
      code: 0,
    });
  }
  expect(readCertificate(folder, 'ca').subject).toMatch(/CN=gatehouse CA [0-9a-f]{8}\\?, development only/);
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

/** A configuration beside `pki`, for which any certificate of its CA can obtain tokens. */
const writeConfiguration = (cwd: string, settings = ''): void =>
  writeFileSync(
    join(cwd, 'gatehouse.yaml'),
    `publicUrl: https://localhost:8443
listen: { tls: { certificate: pki/server.pem, key: pki/server-key.pem } }
certificates: { issuers: [pki/ca.pem], directory: machines${settings} }
directories: { machines: { label: machine, derive: true } }
integrations:
  - { clientId: by-device, scope: f, grants: [device], access: [{ directory: machines }] }
  - { clientId: nightly-export, scope: f, grants: [certificate], access: [{ directory: machines }] }
upstreams: { default: { url: "http://127.0.0.1:9" } }
routes: [{ path: /, requires: f }]
`,
  );

async function serve(cwd: string) {
  const server = await startServe({ path: cwd }, { set: ['listen.port=0', 'admin.port=0'] });
  onTestFinished(() => server.kill());
  return server;
}

/** The printed request, with a client and the URL of `writeConfiguration`. */
const readRequest = (stdout: string): string =>
  (/^ {2}curl [\s\S]*/m.exec(stdout)?.[0] ?? '')
    .replace('CLIENT_ID', 'nightly-export')
    .replace('PUBLIC_URL', 'https://localhost:8443');

async function request(cwd: string, command: string, port: number) {
  const { stdout } = await runChild(
    ['sh', '-c', command.replaceAll(':8443', `:${port}`).replace('curl ', 'curl -sS ')],
    { cwd },
  );
  return JSON.parse(stdout) as unknown;
}

test('a gateway with the printed settings grants the printed token request', async () => {
  const cwd = testFolder();
  const { stdout } = await runCommand(['dev-ca', '--client', 'alice', 'pki'], { cwd });
  const [, printed = ''] = /relative to that file:\n\n([\s\S]*?)\n\nA token request/.exec(stdout) ?? [];
  writeConfiguration(cwd);
  const text = readFileSync(join(cwd, 'gatehouse.yaml'), 'utf8');
  const others = text.split('\n').filter((line) => !/^(?:listen|certificates):/.test(line));
  writeFileSync(
    join(cwd, 'gatehouse.yaml'),
    `${printed.replace(/^ {2}/gm, '')}\n  directory: machines\n${others.join('\n')}`,
  );
  const server = await serve(cwd);
  expect(await request(cwd, readRequest(stdout), server.port)).toMatchObject({ token_type: 'Bearer', scope: 'f' });
});

test('--client adds a certificate to the CA of the folder, and changes no other file', async () => {
  const cwd = testFolder();
  const folder = join(cwd, 'pki');
  await runCommand(['dev-ca', '--client', 'alice', 'pki'], { cwd });
  const read = () => readdirSync(folder).map((name) => [name, readFileSync(join(folder, name), 'utf8')]);
  const before = read();
  const { code, stdout } = await runCommand(['dev-ca', '--client', 'billing', '--days', '7', 'pki'], { cwd });
  expect(code).toBe(0);
  expect(stdout).toContain('the client billing');
  expect(stdout).not.toMatch(/the CA;|the server/);
  expect(read()).toEqual(expect.arrayContaining(before));
  expect(readdirSync(folder)).toHaveLength(before.length + 2);
  const files = ['-CAfile', join(folder, 'ca.pem'), join(folder, 'billing.pem')];
  expect(await runChild(['openssl', 'verify', '-x509_strict', '-purpose', 'sslclient', ...files])).toMatchObject({
    code: 0,
  });
  const days = (readCertificate(folder, 'billing').validToDate.getTime() - Date.now()) / 86_400_000;
  expect(Math.round(days)).toBe(7);

  expect((await runCommand(['dev-ca', '--client', 'billing', 'pki'], { cwd })).stderr).toContain(
    'billing.pem exists already',
  );
});

test('a certificate does not outlive its CA', async () => {
  const cwd = testFolder();
  await runCommand(['dev-ca', 'pki'], { cwd });
  await runCommand(['dev-ca', '--client', 'alice', '--days', '3650', 'pki'], { cwd });
  const folder = join(cwd, 'pki');
  expect(readCertificate(folder, 'alice').validTo).toBe(readCertificate(folder, 'ca').validTo);
  // But a CA lives long enough for others.
  await runCommand(['dev-ca', '--client', 'alice', '--days', '1', 'short'], { cwd });
  const short = join(cwd, 'short');
  expect(readCertificate(short, 'ca').validToDate.getTime()).toBeGreaterThan(
    readCertificate(short, 'alice').validToDate.getTime() + 80 * 86_400_000,
  );
});

test('the CAs of two folders have different names', async () => {
  const cwd = testFolder();
  await runCommand(['dev-ca', 'one'], { cwd });
  await runCommand(['dev-ca', 'two'], { cwd });
  expect(readCertificate(join(cwd, 'one'), 'ca').subject).not.toBe(readCertificate(join(cwd, 'two'), 'ca').subject);
});

test('a running gateway refuses a certificate once --revoke has listed it, and no other', async () => {
  const cwd = testFolder();
  const folder = join(cwd, 'pki');
  writeConfiguration(cwd, ', crls: [pki/crl.pem]');
  const created = await runCommand(['dev-ca', '--client', 'alice', '--client', 'billing', '--client', 'carol', 'pki'], {
    cwd,
  });
  const first = await runCommand(['dev-ca', '--revoke', 'carol', 'pki'], { cwd });
  expect(first).toMatchObject({ code: 0, stderr: '' });
  expect(first.stdout).toContain('\n  certificates:\n    crls: [pki/crl.pem]\n');
  const server = await serve(cwd);
  const ask = async (name: string) => request(cwd, readRequest(created.stdout).replaceAll('alice', name), server.port);
  const refusal = { error: 'invalid_client' };
  expect(await ask('carol')).toMatchObject(refusal);
  expect(await ask('billing')).toMatchObject({ scope: 'f' });

  await runCommand(['dev-ca', '--revoke', 'billing', 'pki'], { cwd });
  // And again, which changes nothing.
  await runCommand(['dev-ca', '--revoke', 'billing', '--revoke', 'carol', 'pki'], { cwd });
  await until('billing is refused', async () => {
    const response = (await ask('billing')) as Record<string, unknown>;
    return response['error'] !== undefined && response;
  });
  expect(await ask('billing')).toMatchObject(refusal);
  expect(await ask('carol')).toMatchObject(refusal);
  expect(await ask('alice')).toMatchObject({ scope: 'f' });

  const crl = join(folder, 'crl.pem');
  const { stdout, stderr } = await runChild([
    'openssl',
    'crl',
    '-in',
    crl,
    '-CAfile',
    join(folder, 'ca.pem'),
    '-noout',
    '-text',
  ]);
  expect(stderr).toContain('verify OK');
  expect(listSerials(stdout)).toEqual([
    readCertificate(folder, 'carol').serialNumber,
    readCertificate(folder, 'billing').serialNumber,
  ]);
  const verify = async (name: string) =>
    runChild(
      ['openssl', 'verify', '-crl_check', '-CRLfile', crl, '-CAfile', join(folder, 'ca.pem')].concat(
        join(folder, `${name}.pem`),
      ),
    );
  expect((await verify('billing')).stderr).toContain('certificate revoked');
  expect(await verify('alice')).toMatchObject({ code: 0 });
});

test('--revoke refuses a certificate of another CA, and a list that another CA has signed', async () => {
  const cwd = testFolder();
  for (const name of ['one', 'two']) {
    await runCommand(['dev-ca', '--client', 'alice', name], { cwd });
    await runCommand(['dev-ca', '--client', `${name}-only`, name], { cwd });
  }
  writeFileSync(join(cwd, 'one/other.pem'), readFileSync(join(cwd, 'two/alice.pem')));
  const revoke = async (name: string) => runCommand(['dev-ca', '--revoke', name, 'one'], { cwd });
  expect(await revoke('other')).toMatchObject({
    code: 65,
    stderr: expect.stringMatching(/was not issued by the CA/),
  });
  expect(await revoke('missing')).toMatchObject({
    code: 66,
    stderr: expect.stringMatching(/missing\.pem does not exist/),
  });
  expect(existsSync(join(cwd, 'one/crl.pem'))).toBe(false);

  await runCommand(['dev-ca', '--revoke', 'alice', 'two'], { cwd });
  const foreign = readFileSync(join(cwd, 'two/crl.pem'), 'utf8');
  for (const [list, problem] of [
    [foreign, /crl\.pem is not signed by any/],
    ['', /crl\.pem contains no revocation list/],
  ] as const) {
    writeFileSync(join(cwd, 'one/crl.pem'), list);
    expect(await revoke('alice')).toMatchObject({ code: 65, stderr: expect.stringMatching(problem) });
    expect(readFileSync(join(cwd, 'one/crl.pem'), 'utf8')).toBe(list);
    expect(existsSync(join(cwd, 'one/crl.pem.new'))).toBe(false);
  }
  expect(await runCommand(['dev-ca', '--revoke', 'alice', 'none'], { cwd })).toMatchObject({
    code: 66,
    stderr: expect.stringMatching(/none has no CA/),
  });
});

test('--revoke does not write through a symbolic link', async () => {
  const cwd = testFolder();
  await runCommand(['dev-ca', '--client', 'alice', 'pki'], { cwd });
  writeFileSync(join(cwd, 'precious'), 'precious');
  symlinkSync(join(cwd, 'precious'), join(cwd, 'pki/crl.pem.new'));
  const { code, stderr } = await runCommand(['dev-ca', '--revoke', 'alice', 'pki'], { cwd });
  expect(code).not.toBe(0);
  expect(stderr).toContain('crl.pem.new exists: another --revoke is running');
  expect(readFileSync(join(cwd, 'precious'), 'utf8')).toBe('precious');
  rmSync(join(cwd, 'pki/crl.pem.new'));
  expect(await runCommand(['dev-ca', '--revoke', 'alice', 'pki'], { cwd })).toMatchObject({ code: 0 });
  expect(statSync(join(cwd, 'pki/crl.pem')).mode & 0o777).toBe(0o644);
});

test('a CA without its key, or with another one, issues nothing', async () => {
  const cwd = testFolder();
  await runCommand(['dev-ca', 'pki'], { cwd });
  await runCommand(['dev-ca', 'other'], { cwd });
  const add = async () => runCommand(['dev-ca', '--client', 'alice', 'pki'], { cwd });
  writeFileSync(join(cwd, 'pki/ca-key.pem'), readFileSync(join(cwd, 'other/ca-key.pem')));
  expect(await add()).toMatchObject({
    code: 65,
    stderr: expect.stringMatching(/ca-key\.pem are not a certificate and its key/),
  });
  rmSync(join(cwd, 'pki/ca-key.pem'));
  expect(await add()).toMatchObject({ code: 66, stderr: expect.stringMatching(/ca-key\.pem is missing/) });
  // Signed with another algorithm, and not a CA.
  const openssl = ['openssl', 'req', '-x509', '-nodes', '-subj', '/CN=a', '-days', '9'];
  const files = ['-keyout', join(cwd, 'pki/ca-key.pem'), '-out', join(cwd, 'pki/ca.pem')];
  await runChild([...openssl, '-newkey', 'rsa:2048', ...files]);
  expect(await add()).toMatchObject({ code: 65, stderr: expect.stringMatching(/only P-256 is supported/) });
  writeFileSync(join(cwd, 'pki/ca.pem'), readFileSync(join(cwd, 'other/server.pem')));
  writeFileSync(join(cwd, 'pki/ca-key.pem'), readFileSync(join(cwd, 'other/server-key.pem')));
  expect(await add()).toMatchObject({ code: 65, stderr: expect.stringMatching(/is not a CA certificate/) });
  expect(existsSync(join(cwd, 'pki/alice.pem'))).toBe(false);
});

test('nothing is overwritten, and nothing is written beside an existing file', async () => {
  const cwd = testFolder();
  mkdirSync(join(cwd, 'pki'));
  writeFileSync(join(cwd, 'pki/alice-key.pem'), 'precious');
  const { code, stdout, stderr } = await runCommand(['dev-ca', '--client', 'alice', 'pki'], { cwd });
  expect({ code, stdout }).toEqual({ code: 73, stdout: '' });
  expect(stderr).toMatch(/^gatehouse: .*alice-key\.pem exists already, and nothing is overwritten; [^\n]+\n$/);
  expect(readdirSync(join(cwd, 'pki'))).toEqual(['alice-key.pem']);
  expect(readFileSync(join(cwd, 'pki/alice-key.pem'), 'utf8')).toBe('precious');
  // Other files in the folder do not matter.
  expect((await runCommand(['dev-ca', 'pki'], { cwd })).code).toBe(0);
  expect((await runCommand(['dev-ca', 'pki'], { cwd })).code).toBe(73);
});

test.each([
  [['--client', '../alice'], /--client must be/],
  [['--client', 'ca'], /--client ca: this name is used for another file/],
  [['--client', 'Server'], /--client Server: this name is used/],
  [['--client', 'ca-key'], /--client ca-key: this name is used/],
  [['--client', 'alice', '--client', 'Alice'], /--client Alice is given twice/],
  [['--client', 'a\nb'], /--client must be/],
  [['--client', ''], /--client must be/],
  [['--client', 'crl'], /--client crl: this name is used/],
  [['--revoke', '../alice'], /--revoke must be/],
  [['--revoke', 'alice', '--client', 'bob'], /--revoke cannot be combined/],
  [['--days', '0'], /--days must be an integer from 1 to 3650/],
  [['--days', '3651'], /--days must be/],
  [['--days', '1.5'], /--days must be/],
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

test.each([
  ['the folder', 'pki', []],
  ['the certificate of the CA', 'pki/ca.pem', []],
  ['the key of the CA', 'pki/ca-key.pem', ['--client', 'alice']],
  ['a file that it creates', 'pki/alice-key.pem', ['--client', 'alice']],
  ['the revocation list', 'pki/crl.pem', ['--revoke', 'bob']],
])('a symbolic link in place of %s is not followed', async (_, link, args) => {
  const cwd = testFolder();
  const other = testFolder();
  const isFolder = link === 'pki';
  if (!isFolder) expect((await runCommand(['dev-ca', '--client', 'bob', 'pki'], { cwd })).code).toBe(0);
  const target = isFolder ? other : join(other, 'target.pem');
  if (existsSync(join(cwd, link))) renameSync(join(cwd, link), target);
  symlinkSync(target, join(cwd, link));
  const before = readdirSync(other);
  const { code, stderr } = await runCommand(['dev-ca', ...args, 'pki'], { cwd });
  expect({ code, stderr }).toEqual({
    code: 73,
    stderr: `gatehouse: ${join(cwd, link)} is a symbolic link, which is not followed; delete it, or name the folder that it leads to\n`,
  });
  expect(readdirSync(other)).toEqual(before);
});
