import { execFileSync } from 'node:child_process';

import { writeFileSync } from 'node:fs';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type OcspSubject, readOcspResponse, writeOcspRequest } from '../../src/x509/ocsp-message.ts';
import { mutations } from '../fuzz/mutations.ts';
import { createOcspAuthority, OCSP_SIGNING, type OcspAuthority, type RespondOptions } from '../support/ocsp-server.ts';
import { createCa, der, EKU, type IssuedCertificate, issue } from '../support/pki.ts';
import { approve, nowSeconds } from './validator.ts';

let ca: IssuedCertificate;
let alice: IssuedCertificate;
let mallory: IssuedCertificate;
let authority: OcspAuthority;
beforeAll(async () => {
  ca = await createCa();
  [alice, mallory] = await Promise.all([issue(ca), issue(ca, { commonName: 'mallory' })]);
  authority = await createOcspAuthority(ca);
  authority.setIndex([
    [alice, 'good'],
    [mallory, 'revoked'],
  ]);
});
afterAll(() => authority.remove());

const subjectOf = ({ serial }: IssuedCertificate): OcspSubject => ({
  issuer: approve(ca),
  serial,
});
/** OpenSSL's response about this certificate. */
const respond = (certificate: IssuedCertificate, options?: RespondOptions): Buffer =>
  authority.respond(writeOcspRequest(subjectOf(certificate)), options);
const read = (bytes: Buffer, certificate = alice, now = nowSeconds(), isRevoked?: (serial: string) => boolean) =>
  readOcspResponse(bytes, subjectOf(certificate), now, isRevoked);

describe('a response of OpenSSL', () => {
  test('to a request that OpenSSL understands is read: good, revoked and unknown', async () => {
    expect(read(respond(alice))).toMatchObject({ status: 'good' });
    expect(read(respond(mallory), mallory)).toMatchObject({ status: 'revoked' });
    const unknown = await issue(ca);
    expect(read(respond(unknown), unknown)).toMatchObject({ status: 'unknown' });
    writeFileSync(authority.folder.file('r.der'), writeOcspRequest(subjectOf(alice)));
    const text = execFileSync('openssl', ['ocsp', '-reqin', 'r.der', '-req_text', '-noverify'], {
      cwd: authority.folder.path,
      encoding: 'utf8',
    });
    expect(text).toContain(`Serial Number: ${alice.serial.toUpperCase()}`);
  });

  test('may be signed by the issuer itself, and may name the responder by its key', () => {
    expect(read(respond(alice, { signer: ca }))).toMatchObject({ status: 'good' });
    expect(read(respond(alice, { signer: ca, args: ['-resp_key_id', '-nmin', '5'] }))).toMatchObject({
      status: 'good',
    });
    expect(read(respond(alice, { args: ['-resp_key_id', '-nmin', '5'] }))).toMatchObject({ status: 'good' });
  });

  test('is not valid without its certificate, if the issuer did not sign it', () => {
    expect(() => read(respond(alice, { args: ['-resp_no_certs', '-nmin', '5'] }))).toThrow(/not signed/);
  });

  test.each([
    ['a client certificate', (one: IssuedCertificate) => issue(one)],
    ['a certificate for any usage', (one: IssuedCertificate) => issue(one, { extendedKeyUsage: [EKU.any] })],
    ['a certificate without usages', (one: IssuedCertificate) => issue(one, { extendedKeyUsage: null })],
    [
      'an expired responder',
      (one: IssuedCertificate) =>
        issue(one, { extendedKeyUsage: [OCSP_SIGNING], notAfter: new Date(Date.now() - 60_000) }),
    ],
    [
      'a responder with the name of the issuer and another key',
      async () => issue(await createCa(), { extendedKeyUsage: [OCSP_SIGNING] }),
    ],
    [
      'a responder that an intermediate CA signed',
      async (one: IssuedCertificate) =>
        issue(await createCa({ name: 'CN=Intermediate', issuer: one }), { extendedKeyUsage: [OCSP_SIGNING] }),
    ],
    ['a weak key', (one: IssuedCertificate) => issue(one, { extendedKeyUsage: [OCSP_SIGNING], key: 'rsa1024' })],
    ['another CA of the same name', () => createCa()],
  ])('is refused if signed by %s', async (_name, createSigner) => {
    const signer = await createSigner(ca);
    expect(() => read(respond(alice, { signer }))).toThrow(/not signed/);
  });

  test('is refused if the certificate of its responder is on the revocation list', () => {
    const { serial } = authority.responder;
    expect(read(respond(alice), alice, nowSeconds(), () => false)).toMatchObject({ status: 'good' });
    expect(() => read(respond(alice), alice, nowSeconds(), (one) => one === serial)).toThrow(/not signed/);
  });

  test('about another certificate, or the same serial number of another issuer, is refused', async () => {
    expect(() => read(respond(alice), mallory)).toThrow(/not about this certificate/);
    const other = await createCa({ name: 'CN=Other', keys: ca.keys });
    expect(() =>
      readOcspResponse(respond(alice), { ...subjectOf(alice), issuer: approve(other) }, nowSeconds()),
    ).toThrow();
  });

  test('is valid from thisUpdate, with five minutes of tolerance, through nextUpdate', () => {
    const bytes = respond(alice, { args: ['-nmin', '10'] });
    const { thisUpdate, validUntil } = read(bytes);
    expect(validUntil - thisUpdate).toBe(600);
    expect(read(bytes, alice, validUntil).status).toBe('good');
    expect(() => read(bytes, alice, validUntil + 1)).toThrow(/out of date/);
    expect(read(bytes, alice, thisUpdate - 300).status).toBe('good');
    expect(() => read(bytes, alice, thisUpdate - 301)).toThrow(/from the future/);
  });

  test('without nextUpdate is valid for five minutes', () => {
    const bytes = respond(alice, { args: [] });
    const { thisUpdate, validUntil } = read(bytes);
    expect(validUntil).toBe(thisUpdate + 300);
    expect(() => read(bytes, alice, thisUpdate + 301)).toThrow(/out of date/);
  });
});

test('an error status, another response type and other input are refused', () => {
  expect(() => read(Buffer.from('30030a0103', 'hex'))).toThrow('the responder reports tryLater');
  expect(() => read(Buffer.from('30030a0106', 'hex'))).toThrow('the responder reports unauthorized');
  for (const bytes of [
    Buffer.alloc(0),
    Buffer.from('30030a0100', 'hex'),
    alice.der,
    der(0x30),
    Buffer.alloc(65_536, 0x30),
  ])
    expect(() => read(bytes)).toThrow();
});

describe('4000 mutated copies', () => {
  const ROUNDS = 2_000;

  test('of a response about a revoked certificate never say anything but revoked', () => {
    const original = respond(mallory);
    const now = nowSeconds();
    const expected = read(original, mallory, now);
    let accepted = 0;
    for (const mutated of mutations(original, ROUNDS, 11)) {
      const result = tryRead(mutated, mallory, now);
      if (result === undefined) continue;
      accepted += 1;
      expect(result).toEqual(expected);
    }
    // Only bytes outside of the signed part can be altered, such as unused parts of the responder's certificate.
    expect(accepted).toBeLessThan(ROUNDS / 4);
  });

  test('of a good response are accepted only if the signed part is unchanged', () => {
    const original = respond(alice);
    const now = nowSeconds();
    const expected = read(original, alice, now);
    const signed = findSignedPart(original);
    for (const mutated of mutations(original, ROUNDS, 12)) {
      const result = tryRead(mutated, alice, now);
      if (result === undefined) continue;
      expect(mutated.includes(signed)).toBe(true);
      expect(result).toEqual(expected);
    }
  });

  /** Every refusal is an `Error`; anything else fails the test. */
  const tryRead = (bytes: Buffer, certificate: IssuedCertificate, now: number) => {
    try {
      return read(bytes, certificate, now);
    } catch (error) {
      expect(error).toBeInstanceOf(Error);
      expect(error).not.toBeInstanceOf(TypeError);
      expect(error).not.toBeInstanceOf(RangeError);
      return undefined;
    }
  };
});

/** tbsResponseData: the first element in the octet string of the response. */
function findSignedPart(response: Buffer): Buffer {
  const text = execFileSync('openssl', ['asn1parse', '-inform', 'DER'], {
    input: response,
    encoding: 'utf8',
  });
  const octets = /^\s*(\d+):d=\d+\s+hl=(\d+) l=\s*\d+ prim: OCTET STRING/m.exec(text);
  const start = Number(octets?.[1]) + Number(octets?.[2]);
  const inner = execFileSync('openssl', ['asn1parse', '-inform', 'DER', '-strparse', String(octets?.[1])], {
    input: response,
    encoding: 'utf8',
  });
  const data = /^\s*(\d+):d=1\s+hl=(\d+) l=\s*(\d+) cons: SEQUENCE/m.exec(inner);
  const [from, header, length] = [data?.[1], data?.[2], data?.[3]].map(Number) as [number, number, number];
  return response.subarray(start + from, start + from + header + length);
}
