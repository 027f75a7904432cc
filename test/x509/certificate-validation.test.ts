import { createHash } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { readCertificateFacts } from '../../src/x509/certificate-facts.ts';
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
import { approved, createTestValidator, nowSeconds, verdict } from './validator.ts';

const DAY = 86_400_000;
const at = (days: number): Date => new Date(Date.now() + days * DAY);
const utf8 = (text: string): Buffer => Buffer.from(text, 'utf8');
const oddName = (tag: number, content: Buffer): LeafOptions => ({ subjectDer: derName([tag, content]) });

let ca: IssuedCertificate;
let rsaCa: IssuedCertificate;
beforeAll(async () => {
  ca = await createCa();
  rsaCa = await createCa({ key: 'rsa2048', name: 'CN=RSA CA' });
});

/** What the strict judge says about a leaf of the test CA. */
const validateIssued = async (options: LeafOptions): Promise<string> =>
  verdict(createTestValidator([approved(ca)])(await issue(ca, options)));

describe('a valid certificate', () => {
  test('C01 a good certificate gives its common name, its fingerprint, its issuer and that issuer’s directory', async () => {
    const leaf = await issue(ca, { commonName: 'alice' });
    const outcome = createTestValidator([approved(ca)])(leaf);
    expect(outcome).toEqual({
      ok: true,
      value: {
        fingerprint: createHash('sha256').update(leaf.der).digest('base64url'),
        issuerKey: approved(ca).keyFingerprint,
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
    'C01 an issuer with a %s key is as good as any',
    async (key) => {
      const other = await createCa({ key, name: `CN=${key}` });
      expect(verdict(createTestValidator([approved(other)])(await issue(other, { key })))).toBe(
        'name: alice',
      );
    },
  );

  test('C02 input that is not a certificate is rejected, and so is empty input', () => {
    const validate = createTestValidator([approved(ca)]);
    expect(verdict(validate(Buffer.alloc(0)))).toBe('certificate_unusable');
    expect(verdict(validate(Buffer.from('30030201ff', 'hex')))).toBe('certificate_unusable');
  });
});

describe('time', () => {
  test('C03 before notBefore, after notAfter, and one second beyond either end', async () => {
    const from = Math.floor(nowSeconds()) - 1_000;
    const until = from + 2_000;
    const leaf = await issue(ca, { notBefore: new Date(from * 1_000), notAfter: new Date(until * 1_000) });
    const validate = createTestValidator([approved(ca)]);
    expect(verdict(validate(leaf, from - 1))).toBe('certificate_outside_validity');
    expect(verdict(validate(leaf, from))).toBe('name: alice');
    expect(verdict(validate(leaf, until))).toBe('name: alice');
    expect(verdict(validate(leaf, until + 1))).toBe('certificate_outside_validity');
  });

  test('C03 certificates of an expired issuer are rejected', async () => {
    const old = await createCa({ notBefore: at(-20), notAfter: at(-1) });
    expect(verdict(createTestValidator([approved(old)])(await issue(old)))).toBe(
      'certificate_issuer_not_approved',
    );
  });
});

describe('issuers', () => {
  test('C04 another CA, a CA of the same name, and a certificate that signed itself under the CA’s name', async () => {
    const validate = createTestValidator([approved(ca)]);
    const other = await createCa({ name: 'CN=Other CA' });
    const evil = await createCa();
    const own = await generateKeys();
    expect(evil.subject).toBe(ca.subject);
    expect(verdict(validate(await issue(other)))).toBe('certificate_issuer_not_approved');
    expect(verdict(validate(await issue(evil)))).toBe('certificate_issuer_not_approved');
    expect(verdict(validate(await issue(ca, { keys: own, signedBy: own, commonName: 'Test CA' })))).toBe(
      'certificate_issuer_not_approved',
    );
  });

  test('C04 two approved issuers of one name and two keys both work, each with its own directory', async () => {
    const twin = await createCa();
    const validate = createTestValidator([
      { ...approved(ca), directory: 'first' },
      { ...approved(twin, 'email', 'twin'), directory: 'second' },
    ]);
    const outcome = validate(await issue(twin, { commonName: 'alice', emails: ['bob@example.test'] }));
    expect(verdict(validate(await issue(ca)))).toBe('name: alice');
    expect(outcome).toMatchObject({
      ok: true,
      value: { name: 'bob@example.test', directory: 'second', issuer: 'twin' },
    });
  });

  test('C05 a leaf below an intermediate that is not approved itself, and a leaf signed by a client', async () => {
    const validate = createTestValidator([approved(ca)]);
    const intermediate = await createCa({ name: 'CN=Below', issuer: ca });
    const client = await issue(ca, { commonName: 'mallory' });
    expect(verdict(validate(await issue(intermediate)))).toBe('certificate_issuer_not_approved');
    expect(verdict(validate(await issue(client)))).toBe('certificate_issuer_not_approved');
    expect(verdict(createTestValidator([approved(intermediate)])(await issue(intermediate)))).toBe(
      'name: alice',
    );
  });

  test('C05 what may not sign certificates cannot be approved', async () => {
    expect(() => approved({ ...ca, pem: '' })).toThrow('is not a certificate');
    const plain = await createCa({ ca: false });
    const listsOnly = await createCa({ keyUsage: USAGE.cRLSign });
    const weak = await createCa({ key: 'rsa1024' });
    expect(() => approved(plain)).toThrow('is not a CA certificate');
    expect(() => approved(listsOnly)).toThrow('may not sign certificates');
    expect(() => approved(weak)).toThrow('RSA key of 1024 bits');
  });

  test('C05 an issuer’s own certificate is not accepted as a client certificate', async () => {
    expect(verdict(createTestValidator([approved(ca)])(ca))).toBe('certificate_unusable');
  });
});

describe('revocation', () => {
  test('C06 a revoked certificate is refused, its neighbour is not', async () => {
    const [gone, stays] = [await issue(ca), await issue(ca, { commonName: 'bob' })];
    const validate = createTestValidator([approved(ca)], {
      lists: [await createCrl(ca, { revoked: [gone] })],
    });
    expect(verdict(validate(gone))).toBe('certificate_revoked');
    expect(verdict(validate(stays))).toBe('name: bob');
  });

  test('C06 an empty CRL is valid; an expired CRL affects only its own issuer', async () => {
    const stale = await createCrl(ca, { thisUpdate: at(-10), nextUpdate: at(-1) });
    const validate = createTestValidator([approved(ca), approved(rsaCa)], {
      lists: [stale, await createCrl(rsaCa)],
    });
    expect(verdict(validate(await issue(ca)))).toBe('certificate_status_unknown');
    expect(verdict(validate(await issue(rsaCa)))).toBe('name: alice');
  });

  test('C06 an issuer without a list is trusted, unless lists are required', async () => {
    const lists = [await createCrl(rsaCa)];
    const leaf = await issue(ca);
    expect(verdict(createTestValidator([approved(ca), approved(rsaCa)], { lists })(leaf))).toBe(
      'name: alice',
    );
    expect(
      verdict(createTestValidator([approved(ca), approved(rsaCa)], { lists, requireCrl: true })(leaf)),
    ).toBe('certificate_status_unknown');
  });

  test('C06 a list with a wrong signature is reported as a problem and not used', async () => {
    const forged = await createCrl(ca, { signedBy: await generateKeys() });
    const foreign = await createCrl(await createCa({ name: 'CN=Nobody' }));
    for (const { der } of [forged, foreign])
      expect(() => parseCrlFile('some.crl', der, [approved(ca)])).toThrow(
        'is not signed by any of the approved issuers',
      );
  });

  test('C06 the newer of two lists applies, in either order; one from the future hides nothing', async () => {
    const leaf = await issue(ca);
    const older = await createCrl(ca, { thisUpdate: at(-2), revoked: [] });
    const newer = await createCrl(ca, { thisUpdate: at(-1), revoked: [leaf] });
    const future = await createCrl(ca, { thisUpdate: at(2), nextUpdate: at(9) });
    for (const lists of [
      [older, newer],
      [newer, older],
      [newer, older, future],
    ])
      expect(verdict(createTestValidator([approved(ca)], { lists })(leaf))).toBe('certificate_revoked');
  });

  test('C06 delta and partial lists, unknown critical extensions and lists without a next update are refused', async () => {
    const part = { oid: '2.5.29.28', critical: true, value: der(0x30) };
    const delta = { oid: '2.5.29.27', critical: true, value: der(0x02, Buffer.from([1])) };
    const odd = { oid: '1.2.3.4', critical: true, value: der(0x05) };
    const read = async (options: Parameters<typeof createCrl>[1]) =>
      parseCrlFile('some.crl', (await createCrl(ca, options)).der, [approved(ca)]);
    await expect(read({ extensions: [part] })).rejects.toThrow('issuing distribution point');
    await expect(read({ extensions: [delta] })).rejects.toThrow('delta');
    await expect(read({ extensions: [odd] })).rejects.toThrow('1.2.3.4');
    await expect(read({ nextUpdate: null })).rejects.toThrow('nextUpdate');
  });

  test('C06 an issuer that may not sign lists signs none', async () => {
    const quiet = await createCa({ keyUsage: USAGE.keyCertSign });
    const { der } = await createCrl(quiet);
    expect(() => parseCrlFile('some.crl', der, [approved(quiet)])).toThrow('may not sign revocation lists');
  });

  test('C06 one PEM file holds lists of several issuers; a warning comes at 80 % of a list’s time', async () => {
    const pem =
      (await createCrl(ca, { thisUpdate: at(-8.05), nextUpdate: at(1.95) })).pem +
      (await createCrl(rsaCa, { thisUpdate: at(-1) })).pem;
    const issuers = [approved(ca), approved(rsaCa, 'commonName', 'rsa')];
    const lists = parseCrlFile('all.pem', Buffer.from(pem), issuers);
    expect(lists.map(({ issuer }) => issuer)).toEqual(['ca', 'rsa']);
    const held = createCrlSet(lists);
    expect(held.getWarnings(nowSeconds())).toEqual([
      expect.stringMatching(/^all\.pem: the revocation list of ca expires on /),
    ]);
    expect(held.getWarnings(nowSeconds() - (0.11 * DAY) / 1_000)).toEqual([]);
    expect(held.getWarnings(nowSeconds() + (2 * DAY) / 1_000)).toEqual([
      expect.stringMatching(/the revocation list of ca expired on .* refused/),
    ]);
  });

  test('C07 a certificate validated before is validated again: against the current time, lists and issuers', async () => {
    const leaf = await issue(ca, { notAfter: at(1) });
    const validate = createTestValidator([approved(ca)]);
    expect(verdict(validate(leaf))).toBe('name: alice');
    expect(verdict(validate(leaf, nowSeconds() + (2 * DAY) / 1_000))).toBe('certificate_outside_validity');
    expect(verdict(validate(leaf))).toBe('name: alice');
    const lists = [await createCrl(ca, { nextUpdate: at(0.5) })];
    const listed = createTestValidator([approved(ca)], { lists });
    expect(verdict(listed(leaf))).toBe('name: alice');
    expect(verdict(listed(leaf, nowSeconds() + (0.6 * DAY) / 1_000))).toBe('certificate_status_unknown');
    expect(verdict(createTestValidator([approved(rsaCa)])(leaf))).toBe('certificate_issuer_not_approved');
  });
});

describe('what a certificate is for', () => {
  test('C08 a missing extended key usage is accepted only where clientAuth is not required', async () => {
    const leaf = await issue(ca, { extendedKeyUsage: null });
    expect(verdict(createTestValidator([approved(ca)])(leaf))).toBe('certificate_unusable');
    expect(verdict(createTestValidator([approved(ca)], { requireClientAuth: false })(leaf))).toBe(
      'name: alice',
    );
  });

  test('C08 serverAuth, any usage alone, and a key usage without digital signatures are rejected in either case', async () => {
    for (const requireClientAuth of [true, false]) {
      const validate = createTestValidator([approved(ca)], { requireClientAuth });
      expect(verdict(validate(await issue(ca, { extendedKeyUsage: [EKU.serverAuth] })))).toBe(
        'certificate_unusable',
      );
      expect(verdict(validate(await issue(ca, { extendedKeyUsage: [EKU.any] })))).toBe(
        'certificate_unusable',
      );
      expect(verdict(validate(await issue(ca, { keyUsage: USAGE.keyAgreement })))).toBe(
        'certificate_unusable',
      );
    }
    expect(await validateIssued({ extendedKeyUsage: [EKU.serverAuth, EKU.clientAuth] })).toBe('name: alice');
    expect(await validateIssued({ keyUsage: null })).toBe('name: alice');
  });

  test('C16 an unknown critical extension, MD5, SHA-1 and a key of 1024 bits are refused', async () => {
    const extension = { oid: '1.2.3.4.5', value: der(0x05) };
    const rsa = createTestValidator([approved(rsaCa)]);
    expect(await validateIssued({ extensions: [{ ...extension, critical: true }] })).toBe(
      'certificate_unusable',
    );
    expect(await validateIssued({ extensions: [extension] })).toBe('name: alice');
    expect(await validateIssued({ hash: 'SHA-1' })).toBe('certificate_unusable');
    expect(await validateIssued({ hash: 'SHA-384' })).toBe('name: alice');
    expect(await validateIssued({ key: 'rsa1024' })).toBe('certificate_unusable');
    expect(verdict(rsa(await issue(rsaCa, { md5: true })))).toBe('certificate_unusable');
    expect(verdict(rsa(await issue(rsaCa)))).toBe('name: alice');
  });

  test('C16 the same extension twice is refused', async () => {
    const twice = sanExtension(der(0x81, utf8('bob@example.test')));
    expect(await validateIssued({ extensions: [twice, twice] })).toBe('certificate_unusable');
  });
});

describe('common names', () => {
  test.each(['*', '*.corp', 'al*ce', '', ' ', 'a'.repeat(300), ' alice', 'alice '])(
    'C09 %j is not a name',
    async (commonName) => {
      expect(await validateIssued({ subjectDer: derName([0x0c, utf8(commonName)]) })).toBe(
        'certificate_name_unusable',
      );
    },
  );

  test('C09 256 characters are the most', async () => {
    expect(await validateIssued(oddName(0x0c, utf8('a'.repeat(256))))).toBe(`name: ${'a'.repeat(256)}`);
    expect(await validateIssued(oddName(0x0c, utf8('a'.repeat(257))))).toBe('certificate_name_unusable');
  });

  test('C10 two common names, equal or not, in one part or in two, are ambiguous', async () => {
    expect(await validateIssued({ commonName: ['alice', 'admin'] })).toBe('certificate_name_unusable');
    expect(await validateIssued({ commonName: ['alice', 'alice'] })).toBe('certificate_name_unusable');
    const one = (text: string): Buffer => der(0x30, Buffer.from('0603550403', 'hex'), der(0x0c, utf8(text)));
    expect(await validateIssued({ subjectDer: der(0x30, der(0x31, one('admin'), one('alice'))) })).toBe(
      'certificate_name_unusable',
    );
  });

  test('C10 a certificate without a common name identifies no user', async () => {
    expect(await validateIssued({ subjectDer: der(0x30), emails: ['alice@example.test'] })).toBe(
      'certificate_name_unusable',
    );
  });

  test.each(['admin\0.evil.test', 'alice\nCN=admin', 'alice\r', '\x7f', 'a\tb'])(
    'C11 %j is not a name',
    async (text) => {
      expect(await validateIssued(oddName(0x0c, utf8(text)))).toBe('certificate_name_unusable');
    },
  );

  test.each(['/CN=admin', 'alice, CN=admin', 'CN=admin', 'alice+CN=admin', 'alice\\, CN=admin'])(
    'C11 %j stays one complete name and is never split',
    async (text) => {
      expect(await validateIssued(oddName(0x0c, utf8(text)))).toBe(`name: ${text}`);
    },
  );

  test.each(['аlice', 'ａlice', 'alice\u200b', '\u202ealice', 'jose\u0301'])(
    'C12 %j is refused where names are ASCII',
    async (text) => {
      expect(await validateIssued(oddName(0x0c, utf8(text)))).toBe('certificate_name_unusable');
    },
  );

  test('C12 where names may be Unicode they are compared in NFC, look-alikes stay different, and invisible characters are refused', async () => {
    const validate = createTestValidator([approved(ca)], { asciiNames: false });
    const named = async (text: string) => verdict(validate(await issue(ca, oddName(0x0c, utf8(text)))));
    expect(await named('jose\u0301')).toBe('name: jos\u00e9');
    expect(await named('аlice')).toBe('name: аlice');
    expect(await named('аlice')).not.toBe('name: alice');
    expect(await named('alice\u200b')).toBe('certificate_name_unusable');
    expect(await named('\u202ealice')).toBe('certificate_name_unusable');
    expect(await named('alice\u00a0')).toBe('certificate_name_unusable');
  });

  test('C12 every string type is read as what it is, and disputed ones are refused', async () => {
    expect(await validateIssued(oddName(0x13, utf8('alice')))).toBe('name: alice');
    expect(await validateIssued(oddName(0x16, utf8('alice')))).toBe('name: alice');
    expect(await validateIssued(oddName(0x1e, Buffer.from('\0a\0l\0i\0c\0e', 'latin1')))).toBe('name: alice');
    expect(await validateIssued(oddName(0x14, utf8('alice')))).toBe('certificate_name_unusable');
    expect(await validateIssued(oddName(0x1c, Buffer.from('\0\0\0a', 'latin1')))).toBe(
      'certificate_name_unusable',
    );
    // Half a character, broken and overlong UTF-8, IA5 beyond ASCII: some of it OpenSSL takes for no certificate at all.
    const broken = [
      [0x1e, [0, 0x61, 0]],
      [0x0c, [0x61, 0xff]],
      [0x0c, [0xc0, 0x80]],
      [0x16, [0x61, 0xe9]],
    ] as const;
    for (const [tag, bytes] of broken)
      expect(await validateIssued(oddName(tag, Buffer.from(bytes)))).toMatch(
        /^certificate_(?:name_unusable|unusable)$/,
      );
  });
});

describe('user principal names', () => {
  const upn = async (options: LeafOptions): Promise<string> =>
    verdict(createTestValidator([approved(ca, 'userPrincipalName')])(await issue(ca, options)));
  const raw = (value: Buffer, oid: string = UPN): LeafOptions => ({
    extensions: [sanExtension(otherName(oid, value))],
  });

  test('C13 the one that is there is the name', async () => {
    expect(await upn({ userPrincipalNames: ['alice@corp.test'] })).toBe('name: alice@corp.test');
    expect(await upn(raw(der(0x0c, utf8('alice@corp.test'))))).toBe('name: alice@corp.test');
  });

  test('C13 two, none beside a fitting common name, another type, broken UTF-8, NUL, 4 KB, another OID: all refused', async () => {
    const unclear = 'certificate_name_unusable';
    expect(await upn({ userPrincipalNames: ['alice@corp.test', 'bob@corp.test'] })).toBe(unclear);
    expect(await upn({ commonName: 'alice@corp.test', emails: ['alice@corp.test'] })).toBe(unclear);
    expect(await upn(raw(der(0x16, utf8('alice@corp.test'))))).toBe(unclear);
    expect(await upn(raw(der(0x0c, Buffer.from([0x61, 0xfe]))))).toBe(unclear);
    expect(await upn(raw(der(0x0c, utf8('alice\0@corp.test'))))).toBe(unclear);
    expect(await upn(raw(der(0x0c, utf8('a'.repeat(4_096)))))).toBe(unclear);
    expect(await upn(raw(der(0x0c, utf8('alice@corp.test')), '1.3.6.1.4.1.311.20.2.4'))).toBe(unclear);
  });
});

describe('e-mail addresses', () => {
  const email = async (options: LeafOptions): Promise<string> =>
    verdict(createTestValidator([approved(ca, 'email')])(await issue(ca, options)));
  const raw = (text: string): LeafOptions => ({ extensions: [sanExtension(der(0x81, utf8(text)))] });

  test('C14 the one that is there is the name; its domain is the same in any case, its local part is not', async () => {
    expect(await email({ emails: ['alice@example.test'] })).toBe('name: alice@example.test');
    expect(await email(raw('Alice@EXAMPLE.Test'))).toBe('name: Alice@example.test');
    expect(await email(raw('alice@xn--bcher-kva.test'))).toBe('name: alice@xn--bcher-kva.test');
  });

  test('C14 two addresses are ambiguous; the one in the subject is none', async () => {
    expect(await email({ emails: ['alice@example.test', 'bob@example.test'] })).toBe(
      'certificate_name_unusable',
    );
    expect(await email({ subject: [{ E: ['alice@example.test'] }] })).toBe('certificate_name_unusable');
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
  ])('C14 %j is not an address', async (text) => {
    expect(await email(raw(text))).toBe('certificate_name_unusable');
  });

  test('C15 where the common name is used, a different user in the alternative names is logged and changes nothing', async () => {
    const outcome = createTestValidator([approved(ca)])(
      await issue(ca, { commonName: 'alice', emails: ['bob@example.test'] }),
    );
    const same = createTestValidator([approved(ca)])(
      await issue(ca, { commonName: 'alice', emails: ['alice@example.test'] }),
    );
    expect(outcome).toMatchObject({ ok: true, value: { name: 'alice', hasOtherNames: true } });
    expect(same).toMatchObject({ ok: true, value: { name: 'alice', hasOtherNames: false } });
  });
});
