import { createHash, X509Certificate } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { refused } from '../../src/domain/refusal.ts';
import { readCertificateFacts } from '../../src/x509/certificate-facts.ts';
import { createCertificateValidator } from '../../src/x509/certificate-validator.ts';
import { createCrlSet, parseCrlFile } from '../../src/x509/crl-set.ts';
import {
  createCa,
  createCrl,
  der,
  derName,
  EKU,
  generateKeys,
  type IssuedCertificate,
  issue,
  type LeafOptions,
  otherName,
  sanExtension,
  UPN,
  USAGE,
} from '../support/pki.ts';
import { approve, createTestValidator, formatResult, nowSeconds } from './validator.ts';

const DAY = 86_400_000;
const daysFromNow = (days: number): Date => new Date(Date.now() + days * DAY);
const utf8 = (text: string): Buffer => Buffer.from(text, 'utf8');
const withCommonName = (tag: number, content: Buffer): LeafOptions => ({
  subjectDer: derName([tag, content]),
});

let ca: IssuedCertificate;
let rsaCa: IssuedCertificate;
beforeAll(async () => {
  ca = await createCa();
  rsaCa = await createCa({ key: 'rsa2048', name: 'CN=RSA CA' });
});

/** Validates a certificate issued by the test CA with the strict default settings. */
const validateIssued = async (options: LeafOptions): Promise<string> =>
  formatResult(createTestValidator([approve(ca)])(await issue(ca, options)));

describe('a valid certificate', () => {
  test('C01 a valid certificate yields its common name, its fingerprint, its issuer and that issuer’s directory', async () => {
    const leaf = await issue(ca, { commonName: 'alice' });
    const outcome = createTestValidator([approve(ca)])(leaf);
    expect(outcome).toEqual({
      ok: true,
      value: {
        fingerprint: createHash('sha256').update(leaf.der).digest('base64url'),
        serial: new X509Certificate(leaf.pem).serialNumber.toLowerCase(),
        encodedSerial: leaf.serial,
        subject: 'CN=alice',
        issuerKey: approve(ca).keyFingerprint,
        issuer: 'ca',
        source: 'commonName',
        name: 'alice',
        directory: 'staff',
        hasOtherNames: false,
        validUntil: readCertificateFacts(leaf.der).notAfter,
      },
    });
  });

  test.each(['p256', 'ed25519', 'rsa2048', 'pss2048'] as const)(
    'C01 an issuer with a %s key is supported',
    async (key) => {
      const other = await createCa({ key, name: `CN=${key}` });
      expect(formatResult(createTestValidator([approve(other)])(await issue(other, { key })))).toBe('name: alice');
    },
  );

  test('C02 input that is not a certificate is rejected, and so is empty input', () => {
    const validate = createTestValidator([approve(ca)]);
    expect(formatResult(validate(Buffer.alloc(0)))).toBe('certificate_unusable');
    expect(formatResult(validate(Buffer.from('30030201ff', 'hex')))).toBe('certificate_unusable');
  });
});

describe('time', () => {
  test('C03 before notBefore, after notAfter, and one second beyond either end', async () => {
    const from = Math.floor(nowSeconds()) - 1_000;
    const until = from + 2_000;
    const leaf = await issue(ca, { notBefore: new Date(from * 1_000), notAfter: new Date(until * 1_000) });
    const validate = createTestValidator([approve(ca)]);
    expect(formatResult(validate(leaf, from - 1))).toBe('certificate_outside_validity');
    expect(formatResult(validate(leaf, from))).toBe('name: alice');
    expect(formatResult(validate(leaf, until))).toBe('name: alice');
    expect(formatResult(validate(leaf, until + 1))).toBe('certificate_outside_validity');
  });

  test('C03 certificates of an expired issuer are rejected', async () => {
    const old = await createCa({ notBefore: daysFromNow(-20), notAfter: daysFromNow(-1) });
    expect(formatResult(createTestValidator([approve(old)])(await issue(old)))).toBe('certificate_issuer_not_approved');
  });
});

describe('issuers', () => {
  test('C04 another CA, a CA of the same name, and a self-signed certificate with the CA’s name are rejected', async () => {
    const validate = createTestValidator([approve(ca)]);
    const other = await createCa({ name: 'CN=Other CA' });
    const evil = await createCa();
    const ownKeys = await generateKeys();
    expect(evil.subject).toBe(ca.subject);
    expect(formatResult(validate(await issue(other)))).toBe('certificate_issuer_not_approved');
    expect(formatResult(validate(await issue(evil)))).toBe('certificate_issuer_not_approved');
    expect(formatResult(validate(await issue(ca, { keys: ownKeys, signedBy: ownKeys, commonName: 'Test CA' })))).toBe(
      'certificate_issuer_not_approved',
    );
  });

  test('C04 two approved issuers of one name and two keys both work, each with its own directory', async () => {
    const twin = await createCa();
    const validate = createTestValidator([
      { ...approve(ca), directory: 'first' },
      { ...approve(twin, 'email', 'twin'), directory: 'second' },
    ]);
    const outcome = validate(await issue(twin, { commonName: 'alice', emails: ['bob@example.test'] }));
    expect(formatResult(validate(await issue(ca)))).toBe('name: alice');
    expect(outcome).toMatchObject({
      ok: true,
      value: { name: 'bob@example.test', directory: 'second', issuer: 'twin' },
    });
  });

  test('C05 a certificate of an unapproved intermediate, or signed by a client certificate, is rejected', async () => {
    const validate = createTestValidator([approve(ca)]);
    const intermediate = await createCa({ name: 'CN=Below', issuer: ca });
    const client = await issue(ca, { commonName: 'mallory' });
    expect(formatResult(validate(await issue(intermediate)))).toBe('certificate_issuer_not_approved');
    expect(formatResult(validate(await issue(client)))).toBe('certificate_issuer_not_approved');
    expect(formatResult(createTestValidator([approve(intermediate)])(await issue(intermediate)))).toBe('name: alice');
  });

  test('C05 a certificate that may not sign certificates cannot be approved as an issuer', async () => {
    expect(() => approve({ ...ca, pem: '' })).toThrow('is not a certificate');
    const plain = await createCa({ ca: false });
    const listsOnly = await createCa({ keyUsage: USAGE.cRLSign });
    const weak = await createCa({ key: 'rsa1024' });
    expect(() => approve(plain)).toThrow('is not a CA certificate');
    expect(() => approve(listsOnly)).toThrow('may not sign certificates');
    expect(() => approve(weak)).toThrow('RSA key of 1024 bits');
  });

  test('C05 an issuer’s own certificate is not accepted as a client certificate', async () => {
    expect(formatResult(createTestValidator([approve(ca)])(ca))).toBe('certificate_unusable');
  });
});

describe('revocation', () => {
  test('C06 a revoked certificate is refused, others are not', async () => {
    const [revokedLeaf, valid] = [await issue(ca), await issue(ca, { commonName: 'bob' })];
    const validate = createTestValidator([approve(ca)], {
      lists: [await createCrl(ca, { revoked: [revokedLeaf] })],
    });
    expect(formatResult(validate(revokedLeaf))).toBe('certificate_revoked');
    expect(formatResult(validate(valid))).toBe('name: bob');
  });

  test('C06 an empty CRL is valid; an expired CRL affects only its own issuer', async () => {
    const stale = await createCrl(ca, { thisUpdate: daysFromNow(-10), nextUpdate: daysFromNow(-1) });
    const validate = createTestValidator([approve(ca), approve(rsaCa)], {
      lists: [stale, await createCrl(rsaCa)],
    });
    expect(formatResult(validate(await issue(ca)))).toBe('certificate_status_unknown');
    expect(formatResult(validate(await issue(rsaCa)))).toBe('name: alice');
  });

  test('C06 an issuer without a CRL is trusted, unless CRLs are required', async () => {
    const lists = [await createCrl(rsaCa)];
    const leaf = await issue(ca);
    expect(formatResult(createTestValidator([approve(ca), approve(rsaCa)], { lists })(leaf))).toBe('name: alice');
    expect(formatResult(createTestValidator([approve(ca), approve(rsaCa)], { lists, requireCrl: true })(leaf))).toBe(
      'certificate_status_unknown',
    );
  });

  test('C06 a CRL with a wrong signature is reported as a problem and not used', async () => {
    const forged = await createCrl(ca, { signedBy: await generateKeys() });
    const foreign = await createCrl(await createCa({ name: 'CN=Nobody' }));
    for (const { der } of [forged, foreign])
      expect(() => parseCrlFile('some.crl', der, [approve(ca)])).toThrow(
        'is not signed by any of the approved issuers',
      );
  });

  test('C06 the newer of two CRLs applies, in either order; one from the future does not replace it yet', async () => {
    const leaf = await issue(ca);
    const older = await createCrl(ca, { thisUpdate: daysFromNow(-2), revoked: [] });
    const newer = await createCrl(ca, { thisUpdate: daysFromNow(-1), revoked: [leaf] });
    const future = await createCrl(ca, { thisUpdate: daysFromNow(2), nextUpdate: daysFromNow(9) });
    for (const lists of [
      [older, newer],
      [newer, older],
      [newer, older, future],
    ])
      expect(formatResult(createTestValidator([approve(ca)], { lists })(leaf))).toBe('certificate_revoked');
  });

  test('C06 delta and partial CRLs, unknown critical extensions and CRLs without nextUpdate are refused', async () => {
    const partial = { oid: '2.5.29.28', critical: true, value: der(0x30) };
    const delta = { oid: '2.5.29.27', critical: true, value: der(0x02, Buffer.from([1])) };
    const unknownExtension = { oid: '1.2.3.4', critical: true, value: der(0x05) };
    const read = async (options: Parameters<typeof createCrl>[1]) =>
      parseCrlFile('some.crl', (await createCrl(ca, options)).der, [approve(ca)]);
    await expect(read({ extensions: [partial] })).rejects.toThrow('issuing distribution point');
    await expect(read({ extensions: [delta] })).rejects.toThrow('delta');
    await expect(read({ extensions: [unknownExtension] })).rejects.toThrow('1.2.3.4');
    await expect(read({ nextUpdate: null })).rejects.toThrow('nextUpdate');
  });

  test('C06 a CRL of an issuer that may not sign CRLs is refused', async () => {
    const withoutCrlSign = await createCa({ keyUsage: USAGE.keyCertSign });
    const { der } = await createCrl(withoutCrlSign);
    expect(() => parseCrlFile('some.crl', der, [approve(withoutCrlSign)])).toThrow('may not sign revocation lists');
  });

  test('C06 one PEM file may contain CRLs of several issuers; a warning is reported after 80 % of a CRL’s validity', async () => {
    const pem =
      (await createCrl(ca, { thisUpdate: daysFromNow(-8.05), nextUpdate: daysFromNow(1.95) })).pem +
      (await createCrl(rsaCa, { thisUpdate: daysFromNow(-1) })).pem;
    const issuers = [approve(ca), approve(rsaCa, 'commonName', 'rsa')];
    const lists = parseCrlFile('all.pem', Buffer.from(pem), issuers);
    expect(lists.map(({ issuer }) => issuer)).toEqual(['ca', 'rsa']);
    const crlSet = createCrlSet(lists);
    expect(crlSet.getWarnings(nowSeconds())).toEqual([
      expect.stringMatching(/^all\.pem: the revocation list of ca expires on /),
    ]);
    expect(crlSet.getWarnings(nowSeconds() - (0.11 * DAY) / 1_000)).toEqual([]);
    expect(crlSet.getWarnings(nowSeconds() + (2 * DAY) / 1_000)).toEqual([
      expect.stringMatching(/the revocation list of ca expired on .* refused/),
    ]);
  });

  test('C07 a certificate validated before is validated again: against the current time, CRLs and issuers', async () => {
    const leaf = await issue(ca, { notAfter: daysFromNow(1) });
    const validate = createTestValidator([approve(ca)]);
    expect(formatResult(validate(leaf))).toBe('name: alice');
    expect(formatResult(validate(leaf, nowSeconds() + (2 * DAY) / 1_000))).toBe('certificate_outside_validity');
    expect(formatResult(validate(leaf))).toBe('name: alice');
    const lists = [await createCrl(ca, { nextUpdate: daysFromNow(0.5) })];
    const withCrl = createTestValidator([approve(ca)], { lists });
    expect(formatResult(withCrl(leaf))).toBe('name: alice');
    expect(formatResult(withCrl(leaf, nowSeconds() + (0.6 * DAY) / 1_000))).toBe('certificate_status_unknown');
    expect(formatResult(createTestValidator([approve(rsaCa)])(leaf))).toBe('certificate_issuer_not_approved');
  });
});

describe('certificate usage', () => {
  test('C08 a missing extended key usage is accepted only if clientAuth is not required', async () => {
    const leaf = await issue(ca, { extendedKeyUsage: null });
    expect(formatResult(createTestValidator([approve(ca)])(leaf))).toBe('certificate_unusable');
    expect(formatResult(createTestValidator([approve(ca)], { requireClientAuth: false })(leaf))).toBe('name: alice');
  });

  test('C08 serverAuth, any usage alone, and a key usage without digital signatures are rejected in either case', async () => {
    for (const requireClientAuth of [true, false]) {
      const validate = createTestValidator([approve(ca)], { requireClientAuth });
      expect(formatResult(validate(await issue(ca, { extendedKeyUsage: [EKU.serverAuth] })))).toBe(
        'certificate_unusable',
      );
      expect(formatResult(validate(await issue(ca, { extendedKeyUsage: [EKU.any] })))).toBe('certificate_unusable');
      expect(formatResult(validate(await issue(ca, { keyUsage: USAGE.keyAgreement })))).toBe('certificate_unusable');
    }
    expect(await validateIssued({ extendedKeyUsage: [EKU.serverAuth, EKU.clientAuth] })).toBe('name: alice');
    expect(await validateIssued({ keyUsage: null })).toBe('name: alice');
  });

  test('C16 an unknown critical extension, MD5, SHA-1 and a key of 1024 bits are refused', async () => {
    const extension = { oid: '1.2.3.4.5', value: der(0x05) };
    const rsa = createTestValidator([approve(rsaCa)]);
    expect(await validateIssued({ extensions: [{ ...extension, critical: true }] })).toBe('certificate_unusable');
    expect(await validateIssued({ extensions: [extension] })).toBe('name: alice');
    expect(await validateIssued({ hash: 'SHA-1' })).toBe('certificate_unusable');
    expect(await validateIssued({ hash: 'SHA-384' })).toBe('name: alice');
    expect(await validateIssued({ key: 'rsa1024' })).toBe('certificate_unusable');
    expect(formatResult(rsa(await issue(rsaCa, { md5: true })))).toBe('certificate_unusable');
    expect(formatResult(rsa(await issue(rsaCa)))).toBe('name: alice');
  });

  test('C16 the same extension twice is refused', async () => {
    const twice = sanExtension(der(0x81, utf8('bob@example.test')));
    expect(await validateIssued({ extensions: [twice, twice] })).toBe('certificate_unusable');
  });
});

describe('common names', () => {
  test.each(['*', '*.corp', 'al*ce', '', ' ', 'a'.repeat(300), ' alice', 'alice '])(
    'C09 %j is not a valid name',
    async (commonName) => {
      expect(await validateIssued({ subjectDer: derName([0x0c, utf8(commonName)]) })).toBe('certificate_name_unusable');
    },
  );

  test('C09 a name may have at most 256 characters', async () => {
    expect(await validateIssued(withCommonName(0x0c, utf8('a'.repeat(256))))).toBe(`name: ${'a'.repeat(256)}`);
    expect(await validateIssued(withCommonName(0x0c, utf8('a'.repeat(257))))).toBe('certificate_name_unusable');
  });

  test('C10 two common names, equal or not, in one RDN or in two, are ambiguous', async () => {
    expect(await validateIssued({ commonName: ['alice', 'admin'] })).toBe('certificate_name_unusable');
    expect(await validateIssued({ commonName: ['alice', 'alice'] })).toBe('certificate_name_unusable');
    const commonName = (text: string): Buffer => der(0x30, Buffer.from('0603550403', 'hex'), der(0x0c, utf8(text)));
    expect(await validateIssued({ subjectDer: der(0x30, der(0x31, commonName('admin'), commonName('alice'))) })).toBe(
      'certificate_name_unusable',
    );
  });

  test('C10 a certificate without a common name identifies no user', async () => {
    expect(await validateIssued({ subjectDer: der(0x30), emails: ['alice@example.test'] })).toBe(
      'certificate_name_unusable',
    );
  });

  test.each(['admin\0.evil.test', 'alice\nCN=admin', 'alice\r', '\x7f', 'a\tb'])(
    'C11 %j is not a valid name',
    async (text) => {
      expect(await validateIssued(withCommonName(0x0c, utf8(text)))).toBe('certificate_name_unusable');
    },
  );

  test.each(['/CN=admin', 'alice, CN=admin', 'CN=admin', 'alice+CN=admin', 'alice\\, CN=admin'])(
    'C11 %j stays one complete name and is never split',
    async (text) => {
      expect(await validateIssued(withCommonName(0x0c, utf8(text)))).toBe(`name: ${text}`);
    },
  );

  test.each(['аlice', 'ａlice', 'alice\u200b', '\u202ealice', 'jose\u0301'])(
    'C12 %j is refused if names must be ASCII',
    async (text) => {
      expect(await validateIssued(withCommonName(0x0c, utf8(text)))).toBe('certificate_name_unusable');
    },
  );

  test('C12 if names may be Unicode, they are compared in NFC, homographs stay different, and invisible characters are refused', async () => {
    const validate = createTestValidator([approve(ca)], { asciiNames: false });
    const validateName = async (text: string) =>
      formatResult(validate(await issue(ca, withCommonName(0x0c, utf8(text)))));
    expect(await validateName('jose\u0301')).toBe('name: jos\u00e9');
    expect(await validateName('аlice')).toBe('name: аlice');
    expect(await validateName('аlice')).not.toBe('name: alice');
    expect(await validateName('alice\u200b')).toBe('certificate_name_unusable');
    expect(await validateName('\u202ealice')).toBe('certificate_name_unusable');
    expect(await validateName('alice\u00a0')).toBe('certificate_name_unusable');
  });

  test('C12 every string type is decoded by its own rules, and ambiguous types are refused', async () => {
    expect(await validateIssued(withCommonName(0x13, utf8('alice')))).toBe('name: alice');
    expect(await validateIssued(withCommonName(0x16, utf8('alice')))).toBe('name: alice');
    expect(await validateIssued(withCommonName(0x1e, Buffer.from('\0a\0l\0i\0c\0e', 'latin1')))).toBe('name: alice');
    expect(await validateIssued(withCommonName(0x14, utf8('alice')))).toBe('certificate_name_unusable');
    expect(await validateIssued(withCommonName(0x1c, Buffer.from('\0\0\0a', 'latin1')))).toBe(
      'certificate_name_unusable',
    );
    // Half a character, invalid and overlong UTF-8, non-ASCII IA5; OpenSSL does not parse some of them as a certificate.
    const malformed = [
      [0x1e, [0, 0x61, 0]],
      [0x0c, [0x61, 0xff]],
      [0x0c, [0xc0, 0x80]],
      [0x16, [0x61, 0xe9]],
    ] as const;
    for (const [tag, bytes] of malformed)
      expect(await validateIssued(withCommonName(tag, Buffer.from(bytes)))).toMatch(
        /^certificate_(?:name_unusable|unusable)$/,
      );
  });
});

describe('user principal names', () => {
  const validateUpn = async (options: LeafOptions): Promise<string> =>
    formatResult(createTestValidator([approve(ca, 'userPrincipalName')])(await issue(ca, options)));
  const withRawSan = (value: Buffer, oid: string = UPN): LeafOptions => ({
    extensions: [sanExtension(otherName(oid, value))],
  });

  test('C13 a single user principal name is used', async () => {
    expect(await validateUpn({ userPrincipalNames: ['alice@corp.test'] })).toBe('name: alice@corp.test');
    expect(await validateUpn(withRawSan(der(0x0c, utf8('alice@corp.test'))))).toBe('name: alice@corp.test');
  });

  test('C13 two, none with a matching common name, another type, invalid UTF-8, NUL, 4 KB, another OID: all refused', async () => {
    const unusable = 'certificate_name_unusable';
    expect(await validateUpn({ userPrincipalNames: ['alice@corp.test', 'bob@corp.test'] })).toBe(unusable);
    expect(await validateUpn({ commonName: 'alice@corp.test', emails: ['alice@corp.test'] })).toBe(unusable);
    expect(await validateUpn(withRawSan(der(0x16, utf8('alice@corp.test'))))).toBe(unusable);
    expect(await validateUpn(withRawSan(der(0x0c, Buffer.from([0x61, 0xfe]))))).toBe(unusable);
    expect(await validateUpn(withRawSan(der(0x0c, utf8('alice\0@corp.test'))))).toBe(unusable);
    expect(await validateUpn(withRawSan(der(0x0c, utf8('a'.repeat(4_096)))))).toBe(unusable);
    expect(await validateUpn(withRawSan(der(0x0c, utf8('alice@corp.test')), '1.3.6.1.4.1.311.20.2.4'))).toBe(unusable);
  });
});

describe('e-mail addresses', () => {
  const validateEmail = async (options: LeafOptions): Promise<string> =>
    formatResult(createTestValidator([approve(ca, 'email')])(await issue(ca, options)));
  const withRawSan = (text: string): LeafOptions => ({ extensions: [sanExtension(der(0x81, utf8(text)))] });

  test('C14 a single address is used; its domain is case-insensitive, its local part is not', async () => {
    expect(await validateEmail({ emails: ['alice@example.test'] })).toBe('name: alice@example.test');
    expect(await validateEmail(withRawSan('Alice@EXAMPLE.Test'))).toBe('name: Alice@example.test');
    expect(await validateEmail(withRawSan('alice@xn--bcher-kva.test'))).toBe('name: alice@xn--bcher-kva.test');
  });

  test('C14 two addresses are ambiguous; an address in the subject is ignored', async () => {
    expect(await validateEmail({ emails: ['alice@example.test', 'bob@example.test'] })).toBe(
      'certificate_name_unusable',
    );
    expect(await validateEmail({ subject: [{ E: ['alice@example.test'] }] })).toBe('certificate_name_unusable');
  });

  test.each([
    '"alice, email:admin@example.test"@example.test',
    '"a b"@example.test',
    'alice@example.test\0.evil.test',
    'alice@example.test, bob@example.test',
    'alice@@example.test',
    'alice@bücher.test',
    'alice',
    '@example.test',
    'alice@',
    'alice@example.test ',
    '<alice@example.test>',
  ])('C14 %j is not a valid address', async (text) => {
    expect(await validateEmail(withRawSan(text))).toBe('certificate_name_unusable');
  });

  test('C15 if the common name is used, a different user in the alternative names is reported and has no effect', async () => {
    const outcome = createTestValidator([approve(ca)])(
      await issue(ca, { commonName: 'alice', emails: ['bob@example.test'] }),
    );
    const same = createTestValidator([approve(ca)])(
      await issue(ca, { commonName: 'alice', emails: ['alice@example.test'] }),
    );
    expect(outcome).toMatchObject({ ok: true, value: { name: 'alice', hasOtherNames: true } });
    expect(same).toMatchObject({ ok: true, value: { name: 'alice', hasOtherNames: false } });
  });
});

describe('large certificates', () => {
  const createNames = (count: number): string[] => Array.from({ length: count }, (_, index) => `name ${index}`);
  const createValidator = () =>
    createCertificateValidator({
      issuers: [approve(ca)],
      crls: createCrlSet([]),
      requireCrl: false,
      requireClientAuth: true,
      asciiNames: true,
    });

  test('a certificate of more than 16 KiB is refused, and its names are not read', async () => {
    const large = await issue(ca, { commonName: createNames(1_000) });
    const validator = createValidator();
    expect(large.der.length).toBeGreaterThan(16_384);
    expect(validator.describe(large.der)).toBeUndefined();
    expect(validator.validateLocally(large.der, nowSeconds())).toEqual(
      refused({ reason: 'certificate_unusable', detail: 'it cannot be read' }),
    );
  });

  test('a certificate is described once for all its refusals', async () => {
    const { der: bytes } = await issue(ca, { commonName: createNames(300) });
    const validator = createValidator();
    const first = validator.describe(bytes);
    expect(first?.subject).toMatch(/name 299/);
    expect(validator.describe(Buffer.from(bytes))).toBe(first);
  });
});
