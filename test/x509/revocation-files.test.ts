import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, constants, createWriteStream, openSync, rmSync, utimesSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from 'vitest';
import { EMPTY_PEER_LIST } from '../../src/listener/client-address.ts';
import { createClientCertificates } from '../../src/server/client-certificates.ts';
import {
  type CertificateFiles,
  CertificateFilesError,
  loadCertificateFiles,
} from '../../src/x509/certificate-files.ts';
import { createCertificateValidator } from '../../src/x509/certificate-validator.ts';
import { createCrlFiles } from '../../src/x509/crl-files.ts';
import { createCrlSet, parseCrlFile } from '../../src/x509/crl-set.ts';
import { largeCrl } from '../support/large-crl.ts';
import { createCa, createCrl, type IssuedCertificate, issue, toPem } from '../support/pki.ts';
import { tempFolder } from '../support/temp-folder.ts';
import { until } from '../support/until.ts';
import { approve, nowSeconds } from './validator.ts';

const folder = tempFolder('crls');
afterAll(() => folder.remove());

let ca: IssuedCertificate;
let other: IssuedCertificate;
let alice: IssuedCertificate;
let bob: IssuedCertificate;
let lists: { readonly of: Buffer; readonly both: string; readonly second: string };
beforeAll(async () => {
  [ca, other] = [await createCa(), await createCa({ name: 'CN=Other CA' })];
  [alice, bob] = [await issue(ca), await issue(other, { commonName: 'bob' })];
  const first = await createCrl(ca, { revoked: [alice] });
  const second = (await createCrl(other, { revoked: [bob] })).pem;
  lists = { of: first.der, both: first.pem + second, second };
});

const issuers = () => [approve(ca, 'commonName', 'first'), approve(other, 'commonName', 'second')];
const loadCrl = (content: string | Buffer) => createCrlFiles().load([folder.write('some.crl', content)], issuers());
const getProblem = async (content: string | Buffer): Promise<string | undefined> => {
  const { lists: found, problems } = await loadCrl(content);
  if (problems.length > 0) expect(found).toEqual([]);
  return problems[0];
};

describe('an incomplete CRL file is refused', () => {
  test('explanatory text around the blocks is allowed, in every line ending and with a byte order mark', async () => {
    const { both } = lists;
    for (const content of [
      both,
      both.trimEnd(),
      both.replaceAll('\n', '\r\n'),
      `\ufeff${both}`,
      `Issued by hand\n-------\n\n${both}\nLast line - the end`,
      both.replaceAll('X509 CRL', 'CRL'),
      both.replace(/^/gm, '  '),
    ])
      expect((await loadCrl(content)).lists.map(({ issuer }) => issuer)).toEqual(['first', 'second']);
  });

  test('a truncated file is refused, unless it ends exactly after the first CRL', () => {
    const { both, second } = lists;
    const boundary = both.length - second.length;
    const approvedIssuers = issuers();
    for (let length = 0; length < both.length - 1; length += length > boundary + 30 ? 13 : 1) {
      const parse = () => parseCrlFile('a.crl', Buffer.from(both.slice(0, length)), approvedIssuers);
      // Truncated exactly between two CRLs the file is valid; a reload detects the missing CRL.
      if (length === boundary || length === boundary - 1) expect(parse()).toHaveLength(1);
      else expect(parse, `${length} bytes`).toThrow(/^(?:is|contains) /);
    }
  });

  test.each<[string, (both: string) => string, RegExp]>([
    ['the last 60 bytes missing', (both) => both.slice(0, -60), /truncated or damaged: a block "X509 CRL" has no END/],
    ['a damaged BEGIN line', (both) => both.replace('BEGIN X509', 'BEGIM X509'), /neither a BEGIN nor an END line/],
    ['a BEGIN line in lower case', (both) => both.replace('BEGIN X509', 'begin x509'), /neither a BEGIN nor an END/],
    ['a missing BEGIN line', (both) => both.replace(/^.*\n/, ''), /line \d+ ends a block that did not begin/],
    ['a missing END line', (both) => both.replace(/-----END X509 CRL-----\n/, ''), /has no END line/],
    ['another label at the end', (both) => both.replace('END X509 CRL', 'END CRL'), /ends a block that did not begin/],
    ['no line break between two lists', (both) => both.replace('-----\n-----BEGIN', '----------BEGIN'), /neither/],
    ['a character that is not base64', (both) => both.replace(/\n(.{20})./, '\n$1*'), /is not base64/],
    ['a character missing', (both) => both.replace(/\n(.{20})./, '\n$1'), /is not base64/],
    ['four characters missing', (both) => both.replace(/\n(.{20})..../, '\n$1'), /is not a revocation list/],
    ['a block of another kind', (both) => both + toPem('CERTIFICATE', ca.der), /contains a block "CERTIFICATE"/],
    ['nothing', () => '', /contains no revocation list/],
    ['text alone', () => 'nothing here\n', /contains no revocation list/],
  ])('%s', async (_name, change, problem) => {
    expect(await getProblem(change(lists.both))).toMatch(problem);
  });

  test('a DER file contains exactly one CRL', async () => {
    expect(await getProblem(lists.of)).toBeUndefined();
    for (const content of [
      Buffer.concat([lists.of, Buffer.from('\n')]),
      Buffer.concat([lists.of, lists.of]),
      lists.of.subarray(0, -1),
      lists.of.subarray(0, 40),
    ])
      expect(await getProblem(content)).toMatch(/is not a revocation list/);
  });

  test('every unusable file is reported', async () => {
    const [truncated, empty] = [folder.write('cut.crl', lists.both.slice(0, -9)), folder.write('empty.crl', '')];
    const missing = folder.file('nowhere.crl');
    const { problems } = await createCrlFiles().load([truncated, empty, missing], issuers());
    expect(problems).toEqual([
      expect.stringContaining(`${truncated}: is`),
      expect.stringContaining(`${empty}: contains no revocation list`),
      `${missing}: does not exist`,
    ]);
  });

  test('a truncated issuer file is refused', async () => {
    const file = folder.write('issuers.pem', (ca.pem + other.pem).slice(0, -60));
    const issuer = { name: 'both', file, directory: 'staff', identityFrom: 'commonName' } as const;
    await expect(loadCertificateFiles({ issuers: [issuer], crls: [] }, nowSeconds())).rejects.toThrow(
      /issuers\.pem is truncated or damaged/,
    );
  });
});

describe('a reload never drops a CRL silently', () => {
  const load = (crls: readonly string[], before?: CertificateFiles, authorities = [ca, other]) =>
    loadCertificateFiles(
      {
        issuers: authorities.map((certificate, index) => ({
          name: index === 0 ? 'first' : 'second',
          file: folder.write(`${certificate.serial}.pem`, certificate.pem),
          directory: 'staff',
          identityFrom: 'commonName',
        })),
        crls,
      },
      nowSeconds(),
      { current: before },
    );
  const problems = async (...given: Parameters<typeof load>): Promise<readonly string[]> => {
    const error: unknown = await load(...given).then(
      () => undefined,
      (thrown: unknown) => thrown,
    );
    return error instanceof CertificateFilesError ? error.problems : [];
  };

  test('a CRL that is missing from a file that is still configured is a problem', async () => {
    const file = folder.write('all.crl', lists.both);
    const before = await load([file]);
    folder.write('all.crl', lists.second);
    expect(await problems([file], before)).toEqual([
      `${file}: no longer contains the revocation list of first; restore it, remove the issuer or the file from the configuration, or restart to run without it`,
    ]);
    // The CRL may be in another file.
    const moved = folder.write('moved.crl', lists.of);
    expect((await load([file, moved], before)).warnings).toEqual([]);
    // An issuer that is no longer approved needs no CRL.
    expect(await problems([file], before, [other])).toEqual([]);
    // At start there is nothing to compare with.
    expect(await problems([file])).toEqual([]);
  });

  test('an expired issuer needs no CRL, since its certificates are not accepted', async () => {
    const old = await createCa({ name: 'CN=Old CA', notAfter: new Date(Date.now() + 3_600_000) });
    const issuer = {
      name: 'both',
      file: folder.write('both.pem', old.pem + ca.pem),
      directory: 'staff',
      identityFrom: 'commonName',
    } as const;
    const [first, second] = [(await createCrl(old)).pem, (await createCrl(ca)).pem];
    const names = { issuers: [issuer], crls: [folder.write('two.crl', first + second)] };
    const before = await loadCertificateFiles(names, nowSeconds());
    folder.write('two.crl', second);
    await expect(loadCertificateFiles(names, nowSeconds(), { current: before })).rejects.toThrow(/no longer contains/);
    const later = await loadCertificateFiles(names, nowSeconds() + 7_200, { current: before });
    expect(later.crls.lists).toHaveLength(1);
  });

  test('a file that was removed from the configuration causes a warning', async () => {
    const file = folder.write('all.crl', lists.both);
    const before = await load([file]);
    expect((await load([], before)).warnings).toEqual([
      expect.stringContaining('certificates.crls: no revocation list of first is loaded anymore'),
      expect.stringContaining('certificates.crls: no revocation list of second is loaded anymore'),
    ]);
  });

  test('an older CRL is a problem, a newer one and one of the same time are not', async () => {
    const at = (hours: number): Date => new Date(Date.now() + hours * 3_600_000);
    const writeCrl = async (hours: number, revoked: IssuedCertificate[] = []): Promise<string> =>
      folder.write('one.crl', (await createCrl(ca, { thisUpdate: at(hours), revoked })).pem);
    const file = await writeCrl(-2, [alice]);
    const before = await load([file]);
    await writeCrl(-3);
    expect(await problems([file], before)).toEqual([
      expect.stringContaining(`${file}: contains a revocation list of first that is older than the one in use`),
    ]);
    for (const hours of [-2, -1]) {
      await writeCrl(hours);
      expect(await problems([file], before)).toEqual([]);
    }
  });
});

test('a certificate is refused from the time at which a CRL from the future applies, whenever it was used before', async () => {
  const thisUpdate = Math.ceil(nowSeconds()) + 4_000;
  const future = await createCrl(ca, { revoked: [alice], thisUpdate: new Date(thisUpdate * 1_000) });
  const { lists: found } = await loadCrl((await createCrl(ca)).pem + future.pem);
  const validate = createCertificateValidator({
    issuers: issuers(),
    crls: createCrlSet(found),
    requireCrl: true,
    requireClientAuth: false,
    asciiNames: false,
  });
  let at = 0;
  const certificates = createClientCertificates({
    forwardedFrom: { ...EMPTY_PEER_LIST, entries: [] },
    forwardedHeader: undefined,
    certificateValidator: validate,
    now: () => at,
  });
  // It applies five minutes before thisUpdate, since the clock of a CA may be ahead.
  const appliesFrom = thisUpdate - 300;
  for (at of [appliesFrom - 2, appliesFrom - 1, appliesFrom - 0.75, appliesFrom - 0.25])
    expect([at, certificates.isAccepted(alice.der)]).toEqual([at, true]);
  for (at of [appliesFrom, appliesFrom + 0.5, appliesFrom + 3_000])
    expect([at, certificates.isAccepted(alice.der)]).toEqual([at, false]);
});

describe('parsing', () => {
  const ENTRIES = 8_000;

  test('a file is parsed only when its content or the issuers change', async () => {
    const files = createCrlFiles();
    const file = folder.write('large.crl', await largeCrl(ca, ENTRIES));
    const small = folder.write('small.crl', lists.second);
    const load = (names: readonly string[], by = issuers()) => files.load(names, by);
    const { lists: parsed } = await load([file, small]);
    expect(parsed).toHaveLength(2);
    utimesSync(file, 1, 1);
    const again = await load([file, small]);
    // The same objects: they were not parsed again.
    expect([again.lists[0] === parsed[0], again.lists[1] === parsed[1]]).toEqual([true, true]);
    expect(again.problems).toEqual([]);
    // A damaged file does not remove the cached CRLs.
    folder.write('large.crl', 'damaged');
    expect((await load([file])).problems).toHaveLength(1);
    folder.write('large.crl', await largeCrl(ca, ENTRIES, [alice]));
    const { lists: changed } = await load([file]);
    expect(changed[0] === parsed[0]).toBe(false);
    const crlSet = createCrlSet(changed);
    const key = issuers()[0]?.keyFingerprint ?? '';
    expect(crlSet.getStatus(key, alice.serial, nowSeconds())).toBe('revoked');
    expect(crlSet.getStatus(key, bob.serial, nowSeconds())).toBe('good');
    expect(changed[0]?.serials.count).toBe(ENTRIES + 1);
    expect((await load([file])).lists[0] === changed[0]).toBe(true);
    expect((await load([file], issuers().slice(0, 1))).lists[0] === changed[0]).toBe(false);
  });

  test('large CRLs, in PEM and DER, are checked as strictly as small ones', async () => {
    const complete = await largeCrl(ca, ENTRIES, [alice]);
    const forged = Buffer.from(complete);
    forged[200] = (forged[200] ?? 0) ^ 1;
    expect(await getProblem(complete)).toBeUndefined();
    expect(await getProblem(toPem('X509 CRL', complete))).toBeUndefined();
    expect(await getProblem(forged)).toMatch(/is not/);
    expect(await getProblem(complete.subarray(0, -60))).toMatch(/is not a revocation list/);
    expect(await getProblem(toPem('X509 CRL', complete).slice(0, -60))).toMatch(/is truncated or damaged/);
  });

  test('the event loop is not blocked while a CRL is read and parsed', async () => {
    // A pipe: its reader waits until the test writes to it.
    const pipe = folder.file('pipe.crl');
    execFileSync('mkfifo', [pipe]);
    onTestFinished(() => rmSync(pipe));
    const files = createCrlFiles();
    let isLoaded = false;
    const loading = files.load([pipe], issuers()).finally(() => {
      isLoaded = true;
    });
    // Opening a pipe for writing succeeds once the worker thread has opened it for reading.
    const writer = createWriteStream(pipe);
    await once(writer, 'open');
    for (let round = 0; round < 10; round += 1) await new Promise((resolve) => setImmediate(resolve));
    expect(isLoaded).toBe(false);
    writer.end(lists.both);
    expect((await loading).lists).toHaveLength(2);
  });

  test('a pipe without a writer blocks neither a stop nor the process', async () => {
    const pipe = folder.file('silent.crl');
    execFileSync('mkfifo', [pipe]);
    onTestFinished(() => rmSync(pipe));
    const files = createCrlFiles();
    const loading = files.load([pipe], issuers());
    // A non-blocking open succeeds once the pipe is open for reading.
    const writer = await until('the pipe is being read', () => {
      try {
        return openSync(pipe, constants.O_WRONLY | constants.O_NONBLOCK);
      } catch {
        return false;
      }
    });
    onTestFinished(() => closeSync(writer));
    await files.stop();
    expect((await loading).problems).toHaveLength(1);
  });
});
