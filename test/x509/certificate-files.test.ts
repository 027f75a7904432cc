import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { CertificateFilesError, loadCertificateFiles } from '../../src/x509/certificate-files.ts';
import {
  createCa,
  createCrl,
  generateKeys,
  type IssuedCertificate,
  issue,
  issueServer,
  writePki,
} from '../support/pki.ts';
import { nowSeconds } from './validator.ts';

const folder = mkdtempSync(join(tmpdir(), 'gatehouse-pki-'));
afterAll(() => rmSync(folder, { recursive: true }));

const daysFromNow = (count: number): Date => new Date(Date.now() + count * 86_400_000);

let ca: IssuedCertificate;
let paths: Record<string, string>;
beforeAll(async () => {
  ca = await createCa();
  const server = await issueServer(ca, { notAfter: daysFromNow(90) });
  const expiring = await issueServer(ca, { notAfter: daysFromNow(10) });
  const expired = await issueServer(ca, { notBefore: daysFromNow(-9), notAfter: daysFromNow(-1) });
  const early = await issueServer(ca, { notBefore: daysFromNow(1) });
  const alice = await issue(ca);
  paths = writePki(folder, {
    'ca.pem': ca.pem,
    'ca.der': ca.der,
    'both.pem':
      (await createCa({ notBefore: daysFromNow(-9), notAfter: daysFromNow(-1) })).pem + (await createCa()).pem,
    'ended.pem': (await createCa({ notBefore: daysFromNow(-9), notAfter: daysFromNow(-1) })).pem,
    'server.pem': server.pem,
    'server-key.pem': server.keyPem,
    'soon.pem': expiring.pem,
    'soon-key.pem': expiring.keyPem,
    'over.pem': expired.pem,
    'over-key.pem': expired.keyPem,
    'early.pem': early.pem,
    'early-key.pem': early.keyPem,
    'early-ca.pem': (await createCa({ notBefore: daysFromNow(1) })).pem,
    'alice.pem': alice.pem,
    'good.crl': (await createCrl(ca)).pem,
    'forged.crl': (await createCrl(ca, { signedBy: await generateKeys() })).der,
    'stale.crl': (await createCrl(ca, { thisUpdate: daysFromNow(-9), nextUpdate: daysFromNow(-1) })).der,
    'empty.pem': '',
  });
});

const getPath = (name: string): string => paths[name] ?? join(folder, name);
const createIssuer = (file: string, name = 'ca') =>
  ({ name, file: getPath(file), directory: 'staff', identityFrom: 'commonName' }) as const;
const load = (names: { server?: [string, string]; issuers?: string[]; crls?: string[] }) =>
  loadCertificateFiles(
    {
      ...(names.server && {
        server: { certificate: getPath(names.server[0]), key: getPath(names.server[1]) },
      }),
      issuers: (names.issuers ?? ['ca.pem']).map((file) => createIssuer(file, file)),
      crls: (names.crls ?? []).map(getPath),
    },
    nowSeconds(),
  );
const loadProblems = async (names: Parameters<typeof load>[0]): Promise<readonly string[]> => {
  try {
    await load(names);
    return [];
  } catch (error) {
    if (error instanceof CertificateFilesError) return error.problems;
    throw error;
  }
};

test('valid files load without a warning', async () => {
  const files = await load({
    server: ['server.pem', 'server-key.pem'],
    issuers: ['ca.pem', 'ca.der'],
    crls: ['good.crl'],
  });
  expect(files.issuers.map(({ name }) => name)).toEqual(['ca.pem', 'ca.der']);
  expect(files.server?.certificate).toContain('BEGIN CERTIFICATE');
  expect(files.warnings).toEqual([]);
});

test('all problems are reported together, each with its file', async () => {
  expect(
    await loadProblems({
      server: ['server.pem', 'soon-key.pem'],
      issuers: ['ca.pem', 'alice.pem', 'nowhere.pem', 'empty.pem'],
      crls: ['forged.crl'],
    }),
  ).toEqual([
    `listen.tls.key: ${getPath('soon-key.pem')} is not the private key of the certificate in ${getPath('server.pem')}`,
    `${getPath('alice.pem')} is not a CA certificate (basic constraints)`,
    `${getPath('nowhere.pem')} does not exist`,
    `${getPath('empty.pem')} contains no certificate`,
    `${getPath('forged.crl')}: is not signed by any of the approved issuers (certificates.issuers)`,
  ]);
});

test('an invalid key file is reported at its setting, without its content', async () => {
  expect(await loadProblems({ server: ['server.pem', 'server.pem'] })).toEqual([
    `listen.tls.key: ${getPath('server.pem')} contains a certificate, but no private key; name the file with the key`,
  ]);
  expect(await loadProblems({ server: ['server.pem', 'empty.pem'] })).toEqual([
    `listen.tls.key: ${getPath('empty.pem')} is not an unencrypted private key in PEM`,
  ]);
});

test('certificates that have expired or are not valid yet are loaded, and reported with the consequence', async () => {
  const expired = await load({ server: ['over.pem', 'over-key.pem'], issuers: ['ca.pem', 'ended.pem'] });
  expect(expired.server?.certificate).toContain('BEGIN CERTIFICATE');
  expect(expired.issuers.map(({ name }) => name)).toEqual(['ca.pem', 'ended.pem']);
  expect(expired.warnings).toEqual([]);
  expect(expired.expired).toEqual([
    expect.stringMatching(/^listen\.tls\.certificate: .*over\.pem expired on \d{4}-.*Z; clients reject connections/),
    expect.stringMatching(/ended\.pem expired on .*; client certificates of this CA are refused/),
  ]);
  const early = await load({ server: ['early.pem', 'early-key.pem'], issuers: ['early-ca.pem'] });
  expect(early.expired).toEqual([
    expect.stringMatching(/early\.pem is not valid before .*; clients reject connections until then/),
    expect.stringMatching(/early-ca\.pem is not valid before .*; client certificates of this CA are refused/),
  ]);
});

test('one file may hold an expired issuer and its successor', async () => {
  const { issuers, expired, warnings } = await load({ issuers: ['both.pem'] });
  expect(issuers).toHaveLength(2);
  expect(expired).toEqual([]);
  expect(warnings).toEqual([expect.stringMatching(/both\.pem also contains a certificate that expired on/)]);
});

test('a certificate that expires within 30 days and an expired CRL cause warnings', async () => {
  expect((await load({ server: ['soon.pem', 'soon-key.pem'], crls: ['stale.crl'] })).warnings).toEqual([
    expect.stringMatching(/soon\.pem expires on /),
    expect.stringMatching(/stale\.crl: the revocation list of ca\.pem expired on /),
  ]);
});

test('an issuer with name constraints is rejected, whether or not the extension is critical', async () => {
  // permittedSubtrees: dNSName example.test
  const value = Buffer.from('3012a010300e820c6578616d706c652e74657374', 'hex');
  for (const critical of [true, false]) {
    const limited = await createCa({ extensions: [{ oid: '2.5.29.30', critical, value }] });
    const written = writePki(folder, { 'limited.pem': limited.pem });
    paths = { ...paths, ...written };
    expect(await loadProblems({ issuers: ['limited.pem'] })).toEqual([
      `${getPath('limited.pem')} has name constraints, which are not supported`,
    ]);
  }
});

test('two issuers with the same key but different lookup settings are rejected', async () => {
  const entries = (second: object) => ({
    issuers: [createIssuer('ca.pem', 'one'), { ...createIssuer('ca.der', 'two'), ...second }],
    crls: [],
  });
  for (const second of [{ directory: 'workloads' }, { identityFrom: 'email' as const }])
    await expect(loadCertificateFiles(entries(second), nowSeconds())).rejects.toThrow(
      'certificates.issuers: "one" and "two" have the same key, but differ in directory, identityFrom, trustDomain or dnsDomain',
    );
  expect((await loadCertificateFiles(entries({}), nowSeconds())).issuers).toHaveLength(2);
});
