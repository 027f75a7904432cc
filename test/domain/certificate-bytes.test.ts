import { beforeAll, describe, expect, test } from 'vitest';
import { readCertificate } from '../../src/tls/certificate-facts.ts';
import { readClientHello } from '../../src/tls/client-hello.ts';
import { DerError, readBits, readIntegerHex, readOid, readOne, readTime, TAG } from '../../src/tls/der.ts';
import { forwardedCertificate } from '../../src/tls/forwarded-certificate.ts';
import { readProxyHeader } from '../../src/tls/proxy-protocol.ts';
import { readRevocationFile } from '../../src/tls/revocation-lists.ts';
import { mutations } from '../fuzz/mutations.ts';
import { forwardedForms } from '../support/forwarded.ts';
import { type Certified, der, issue, makeCa, makeCrl } from '../support/pki.ts';
import { approved, judgeOf, verdict } from './judge.ts';

const hex = (text: string): Buffer => Buffer.from(text.replace(/\s/g, ''), 'hex');

describe('strict DER parsing', () => {
  test.each([
    ['empty input', ''],
    ['a tag without a length', '30'],
    ['an indefinite length', '30 80 00 00'],
    ['a length that is not minimally encoded', '30 81 05 0201010500'],
    ['a length padded with zero', '30 82 0005 0201010500'],
    ['a length of five bytes', '30 85 0000000001 00'],
    ['truncated content', '30 05 0201'],
    ['trailing bytes', '30 00 00'],
    ['a tag number above 30', '3f 81 01 00'],
  ])('%s is rejected', (_name, bytes) => {
    expect(() => readOne(hex(bytes), hex(bytes)[0] ?? TAG.sequence)).toThrow(DerError);
  });

  test('every value has exactly one encoding', () => {
    const one = (bytes: string) => readOne(hex(bytes), hex(bytes)[0] ?? 0);
    expect(readOid(one('06 03 55 04 03'))).toBe('2.5.4.3');
    expect(readOid(one('06 09 2a864886f70d01010b'))).toBe('1.2.840.113549.1.1.11');
    expect(() => readOid(one('06 04 55 04 80 03'))).toThrow(DerError);
    expect(() => readOid(one('06 02 55 84'))).toThrow(DerError);
    expect(readIntegerHex(one('02 02 00 ff'))).toBe('00ff');
    expect(() => readIntegerHex(one('02 02 00 7f'))).toThrow(DerError);
    expect(() => readIntegerHex(one('02 00'))).toThrow(DerError);
    expect([...readBits(one('03 02 05 a0'))]).toEqual([0, 2]);
    expect(() => readBits(one('03 02 05 a1'))).toThrow(DerError);
  });

  test('times are valid calendar dates in UTC, with seconds', () => {
    const utc = (text: string) => readTime(readOne(der(0x17, Buffer.from(text)), 0x17));
    const general = (text: string) => readTime(readOne(der(0x18, Buffer.from(text)), 0x18));
    expect(utc('260131120000Z')).toBe(Date.UTC(2026, 0, 31, 12) / 1_000);
    expect(utc('500101000000Z')).toBe(Date.UTC(1950, 0, 1) / 1_000);
    expect(general('20500101000000Z')).toBe(Date.UTC(2050, 0, 1) / 1_000);
    for (const wrong of [
      '260230120000Z',
      '2601311200Z',
      '260131120000+0100',
      '26013112000Z',
      '261331120000Z',
    ])
      expect(() => utc(wrong)).toThrow(DerError);
    expect(() => general('20260131120000.5Z')).toThrow(DerError);
  });

  test('deeply nested values throw DerError', () => {
    const deep = Buffer.alloc(60_000, Buffer.from([0x30, 0x80]));
    expect(() => readCertificate(deep)).toThrow(DerError);
  });
});

describe('20,000 mutations', () => {
  const ROUNDS = 20_000;
  let ca: Certified;
  let alice: Certified;
  beforeAll(async () => {
    ca = await makeCa();
    alice = await issue(ca, { emails: ['alice@example.test'], userPrincipalNames: ['alice@corp.test'] });
  });

  test('of a certificate neither crash the verification nor yield a name', () => {
    const judge = judgeOf([approved(ca)], { remembered: 1 });
    const verdicts = new Map<string, number>();
    for (const broken of mutations(alice.der, ROUNDS, 1)) {
      const said = verdict(judge(broken));
      verdicts.set(said, (verdicts.get(said) ?? 0) + 1);
    }
    expect([...verdicts.keys()].filter((said) => said.startsWith('name: '))).toEqual([]);
    // The copies are not all thrown out at the first byte: many are sound enough to be asked who signed them.
    expect(verdicts.get('certificate_issuer_not_approved') ?? 0).toBeGreaterThan(ROUNDS / 20);
  });

  test('of a certificate make the parser throw only DerError', () => {
    let read = 0;
    for (const broken of mutations(alice.der, ROUNDS, 2))
      try {
        readCertificate(broken);
        read += 1;
      } catch (error) {
        expect(error).toBeInstanceOf(DerError);
      }
    expect(read).toBeGreaterThan(ROUNDS / 20);
  });

  test('of a CRL are reported as a problem of the file', async () => {
    const { der: list } = await makeCrl(ca, { revoked: [alice, '0badcafe'] });
    const issuers = [approved(ca)];
    for (const broken of mutations(list, ROUNDS, 3))
      try {
        const [read] = readRevocationFile('a.crl', broken, issuers);
        expect(read).toBeUndefined();
      } catch (error) {
        expect((error as Error).message).toMatch(
          /^(?:is not|is signed|holds no|does not say|is a delta|covers|carries)/,
        );
      }
  });

  test('of every forwarded certificate header yield the same certificate, none, or a rejection', () => {
    const judge = judgeOf([approved(ca)], { remembered: 1 });
    for (const [name, value] of forwardedForms(alice.der))
      for (const broken of mutations(Buffer.from(value), ROUNDS, 4)) {
        const found = forwardedCertificate([name, broken.toString('latin1')]);
        if (found === undefined || found === 'ambiguous') continue;
        const said = verdict(judge(found));
        if (said.startsWith('name: ')) expect(said).toBe('name: alice');
      }
  });

  test('of a ClientHello or PROXY header never crash the parser', () => {
    const hello = hex(
      `160301004b 010000 47 0303 ${'ab'.repeat(32)} 00 0002 1301 0100 001c 0000 0018 0016 00 0013 ${Buffer.from('strict.example.test').toString('hex')}`,
    );
    expect(readClientHello(hello)).toEqual({ kind: 'read', serverName: 'strict.example.test' });
    const v2 = hex('0d0a0d0a000d0a515549540a 2111 000c cb007109 0a000001 1000 01bb');
    expect(readProxyHeader(v2)).toEqual({ kind: 'read', length: 28, source: '203.0.113.9' });
    const kinds = new Set<string>();
    for (const broken of mutations(hello, ROUNDS, 5)) kinds.add(readClientHello(broken).kind);
    for (const broken of mutations(v2, ROUNDS, 6)) kinds.add(readProxyHeader(broken).kind);
    expect([...kinds].sort()).toEqual(['incomplete', 'read', 'unreadable']);
    for (let length = 0; length < hello.length; length += 1)
      expect(readClientHello(hello.subarray(0, length)).kind).toBe('incomplete');
  });
});
