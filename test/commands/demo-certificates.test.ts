import { X509Certificate } from 'node:crypto';
import { mkdirSync, readdirSync, readFileSync, rmSync, statSync, symlinkSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { ensurePki } from '../../src/commands/demo/folder.ts';
import { needs } from '../set-up/programs.ts';
import { runChild } from '../support/child-process.ts';
import { runCommand } from '../support/command-in-process.ts';
import { temporaryFolder } from '../support/demo.ts';
import { createCa } from '../support/pki.ts';

const PEOPLE = [
  { name: 'alice', email: 'alice@example.test' },
  { name: 'bob', email: 'bob@example.test' },
];
const DAY = 86_400;
const START = 1_800_000_000;

let folder: string;
beforeEach(() => {
  folder = temporaryFolder();
});
afterEach(() => rmSync(folder, { recursive: true, force: true }));

needs('openssl');

const certificate = (name: string) => new X509Certificate(readFileSync(join(folder, `${name}.pem`)));
const ensurePkiAfter = (days: number) => ensurePki(folder, PEOPLE, START + days * DAY);

test('the first start creates a CA, a server certificate for this machine, and one for each user', async () => {
  expect(await ensurePkiAfter(0)).toEqual(['ca', 'server', 'alice', 'bob']);
  const server = certificate('server');
  expect(server.checkHost('localhost')).toBe('localhost');
  expect(server.checkIP('127.0.0.1')).toBe('127.0.0.1');
  expect(server.checkIP('::1')).toBe('::1');
  expect(certificate('alice').subject).toBe('CN=alice');
  expect(certificate('alice').checkEmail('alice@example.test')).toBe('alice@example.test');
  for (const name of ['server', 'alice', 'bob'])
    expect(certificate(name).verify(certificate('ca').publicKey)).toBe(true);
});

test('a later start keeps valid certificates, and renews those that expire soon or have expired', async () => {
  await ensurePkiAfter(0);
  const authority = certificate('ca').fingerprint256;
  expect(await ensurePkiAfter(1)).toEqual([]);
  expect(await ensurePkiAfter(304)).toEqual([]);
  expect(await ensurePkiAfter(306)).toEqual(['server', 'alice', 'bob']);
  expect(await ensurePkiAfter(306)).toEqual([]);
  expect(await ensurePkiAfter(306 + 900)).toEqual(['server', 'alice', 'bob']);
  expect(certificate('ca').fingerprint256).toBe(authority);
  expect(certificate('alice').validToDate.getTime() / 1_000).toBe(START + (306 + 900 + 365) * DAY);
});

test('a CA that would expire before its certificates is replaced, with everything it issued', async () => {
  await ensurePkiAfter(0);
  expect(await ensurePkiAfter(3_650 - 401)).toEqual(['server', 'alice', 'bob']);
  expect(await ensurePkiAfter(3_650 - 399)).toEqual(['ca', 'server', 'alice', 'bob']);
  expect(certificate('bob').verify(certificate('ca').publicKey)).toBe(true);
});

test('missing, damaged or mismatched files are created again, and nothing else', async () => {
  await ensurePkiAfter(0);
  rmSync(join(folder, 'alice-key.pem'));
  expect(await ensurePkiAfter(0)).toEqual(['alice']);
  writeFileSync(join(folder, 'server.pem'), 'not a certificate');
  expect(await ensurePkiAfter(0)).toEqual(['server']);
  writeFileSync(join(folder, 'bob.pem'), readFileSync(join(folder, 'alice.pem')));
  expect(await ensurePkiAfter(0)).toEqual(['bob']);
  expect(await ensurePkiAfter(-30)).toEqual(['ca', 'server', 'alice', 'bob']);
});

/** Verifies the certificate with OpenSSL, strictly, for the given purpose. */
const verifyWithOpenssl = async (name: string, purpose: 'sslserver' | 'sslclient') =>
  runChild([
    'openssl',
    'verify',
    '-x509_strict',
    '-attime',
    String(START),
    '-purpose',
    purpose,
    '-CAfile',
    join(folder, 'ca.pem'),
    join(folder, `${name}.pem`),
  ]);

test('the certificates conform to RFC 5280, each for one purpose', async () => {
  await ensurePkiAfter(0);
  for (const [name, purpose, other] of [
    ['server', 'sslserver', 'sslclient'],
    ['alice', 'sslclient', 'sslserver'],
  ] as const) {
    expect(await verifyWithOpenssl(name, purpose)).toMatchObject({ code: 0 });
    expect((await verifyWithOpenssl(name, other)).code).not.toBe(0);
  }
  expect(certificate('server').keyUsage).toEqual(['1.3.6.1.5.5.7.3.1']);
  expect([certificate('ca').ca, certificate('server').ca]).toEqual([true, false]);
  expect(new Set(['ca', 'server', 'alice', 'bob'].map((name) => certificate(name).serialNumber)).size).toBe(4);
});

test('a CA created by another program keeps its name as issuer', async () => {
  const ca = await createCa({
    name: 'O=Example Ltd, CN=Made elsewhere',
    notBefore: new Date((START - DAY) * 1_000),
    notAfter: new Date((START + 3_000 * DAY) * 1_000),
  });
  writeFileSync(join(folder, 'ca.pem'), ca.pem);
  writeFileSync(join(folder, 'ca-key.pem'), ca.keyPem);
  expect(await ensurePkiAfter(0)).toEqual(['server', 'alice', 'bob']);
  expect(await verifyWithOpenssl('server', 'sslserver')).toMatchObject({ code: 0 });
  expect(certificate('server').issuer).toBe(certificate('ca').subject);
});

test.each(['', 'pki', 'data', 'gatehouse.yaml', 'passwords.txt', 'pki/ca-key.pem'])(
  'a symbolic link in place of <folder>/%s is not followed',
  async (name) => {
    const demo = join(folder, 'demo');
    const other = join(folder, 'other');
    mkdirSync(other, { mode: 0o755 });
    const link = join(demo, name);
    mkdirSync(dirname(link), { recursive: true, mode: 0o700 });
    symlinkSync(other, link);
    const { code, stderr } = await runCommand(['demo', '--folder', demo]);
    expect(code).toBe(73);
    expect(stderr).toContain(`gatehouse: ${link} is a symbolic link, which is not followed; delete it`);
    expect(readdirSync(other)).toEqual([]);
    expect(statSync(other).mode & 0o777).toBe(0o755);
  },
);
