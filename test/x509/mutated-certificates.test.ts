import { describe, expect, test } from 'vitest';
import { readCertificateFacts } from '../../src/x509/certificate-facts.ts';
import { DerError, readElement, readIntegerHex, readNamedBits, readOid, readTime, TAG } from '../../src/x509/der.ts';
import { der } from '../support/pki.ts';
import { testMutatedCopies } from './mutated-certificates.ts';

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
    expect(() => readElement(hex(bytes), hex(bytes)[0] ?? TAG.sequence)).toThrow(DerError);
  });

  test('every value has exactly one encoding', () => {
    const parse = (bytes: string) => readElement(hex(bytes), hex(bytes)[0] ?? 0);
    expect(readOid(parse('06 03 55 04 03'))).toBe('2.5.4.3');
    expect(readOid(parse('06 09 2a864886f70d01010b'))).toBe('1.2.840.113549.1.1.11');
    expect(() => readOid(parse('06 04 55 04 80 03'))).toThrow(DerError);
    expect(() => readOid(parse('06 02 55 84'))).toThrow(DerError);
    expect(readIntegerHex(parse('02 02 00 ff'))).toBe('00ff');
    expect(() => readIntegerHex(parse('02 02 00 7f'))).toThrow(DerError);
    expect(() => readIntegerHex(parse('02 00'))).toThrow(DerError);
    expect([...readNamedBits(parse('03 02 05 a0'))]).toEqual([0, 2]);
    expect(() => readNamedBits(parse('03 02 05 a1'))).toThrow(DerError);
  });

  test('times are valid calendar dates in UTC, with seconds', () => {
    const utc = (text: string) => readTime(readElement(der(0x17, Buffer.from(text)), 0x17));
    const general = (text: string) => readTime(readElement(der(0x18, Buffer.from(text)), 0x18));
    expect(utc('260131120000Z')).toBe(Date.UTC(2026, 0, 31, 12) / 1_000);
    expect(utc('500101000000Z')).toBe(Date.UTC(1950, 0, 1) / 1_000);
    expect(general('20500101000000Z')).toBe(Date.UTC(2050, 0, 1) / 1_000);
    for (const wrong of ['260230120000Z', '2601311200Z', '260131120000+0100', '26013112000Z', '261331120000Z'])
      expect(() => utc(wrong)).toThrow(DerError);
    expect(() => general('20260131120000.5Z')).toThrow(DerError);
  });

  test('deeply nested values throw DerError', () => {
    const deep = Buffer.alloc(60_000, Buffer.from([0x30, 0x80]));
    expect(() => readCertificateFacts(deep)).toThrow(DerError);
  });
});

testMutatedCopies(1_500);
