import { beforeAll, expect, test } from 'vitest';
import { CERTIFICATE_HEADERS, forwardedCertificate } from '../../src/tls/forwarded-certificate.ts';
import { forwardedForms } from '../support/forwarded.ts';
import { issue, makeCa, pemOf } from '../support/pki.ts';

let der: Buffer;
let bob: Buffer;
let forms: readonly (readonly [string, string])[];
beforeAll(async () => {
  const ca = await makeCa();
  der = (await issue(ca)).der;
  bob = (await issue(ca, { commonName: 'bob' })).der;
  forms = forwardedForms(der);
});

const valueOf = (header: string): string => forms.find(([name]) => name === header)?.[1] ?? '';

test('every header form yields the certificate; the header name is case-insensitive', () => {
  for (const [name, value] of forms)
    for (const spelling of [name, name.toLowerCase(), name.toUpperCase(), name.replaceAll('-', '_')])
      expect(forwardedCertificate(['Host', 'a', spelling, value])).toEqual(der);
});

test('a missing or empty header yields no certificate', () => {
  expect(forwardedCertificate(['Host', 'a', 'X-Client', 'b'])).toBeUndefined();
  expect(forwardedCertificate(['X-SSL-Client-Cert', ''])).toBeUndefined();
});

test('two certificate headers are ambiguous, even if one is empty or both agree', () => {
  const [first, second] = [forms[0] ?? [], forms[4] ?? []];
  expect(forwardedCertificate([...first, ...first])).toBe('ambiguous');
  expect(forwardedCertificate([...first, ...second])).toBe('ambiguous');
  expect(forwardedCertificate([...first, 'X-SSL-Client-Cert', ''])).toBe('ambiguous');
  expect(forwardedCertificate([...first, 'client_cert', first[1] ?? ''])).toBe('ambiguous');
});

test('a header in a spelling that no proxy writes is ambiguous, and never a certificate', () => {
  for (const [name, value] of forms)
    for (const spelling of [name.replaceAll('-', '+'), name.replaceAll('-', ''), name.replace('-', '--')]) {
      expect([spelling, forwardedCertificate([spelling, value])]).toEqual([spelling, 'ambiguous']);
      expect([spelling, forwardedCertificate([name, value, spelling, value])]).toEqual([
        spelling,
        'ambiguous',
      ]);
    }
});

test('Envoy: two elements, two certificates, or a wrong or missing hash are ambiguous', () => {
  const header = 'X-Forwarded-Client-Cert';
  const good = valueOf(header);
  const other = encodeURIComponent(pemOf('CERTIFICATE', bob));
  const read = (value: string) => forwardedCertificate([header, value]);
  expect(read(good)).toEqual(der);
  expect(read(`${good},${good}`)).toBe('ambiguous');
  expect(read(`Hash=ab,${good}`)).toBe('ambiguous');
  expect(read(`${good};Cert="${other}"`)).toBe('ambiguous');
  expect(read(good.replace(/Hash=..../, 'Hash=0000'))).toBe('ambiguous');
  expect(read(good.replace(/Hash=[0-9a-f]+;/, ''))).toBe('ambiguous');
  expect(read(good.replace(/Cert="[^"]+"/, `Cert="${other}"`))).toBe('ambiguous');
});

test('Envoy: separators inside quotes are ignored', () => {
  const header = 'X-Forwarded-Client-Cert';
  const good = valueOf(header).replace(/Subject="[^;]*";/, 'Subject="CN=alice\\";Cert=x,Hash=y";');
  expect(good).toContain('Cert=x');
  expect(forwardedCertificate([header, good])).toEqual(der);
});

test('RFC 9440: anything but a single byte sequence is ambiguous', () => {
  const text = der.toString('base64');
  for (const value of [
    text,
    `:${text}`,
    `"${text}"`,
    `:${text}:;a=b`,
    `:${text}:, :${text}:`,
    `:${text.slice(0, -3)}!:`,
    '::',
  ])
    expect(forwardedCertificate(['Client-Cert', value])).toBe('ambiguous');
});

test('PEM with leading, trailing or additional data is ambiguous', () => {
  const pem = pemOf('CERTIFICATE', der);
  for (const text of [pem + pem, `x${pem}`, `${pem}x`, pem.replace('CERTIFICATE', 'X509 CRL'), '%zz', '%'])
    expect(
      forwardedCertificate(['X-SSL-Client-Cert', text.startsWith('%') ? text : encodeURIComponent(text)]),
    ).toBe('ambiguous');
});

test('a Traefik header with several certificates is ambiguous', () => {
  const text = der.toString('base64');
  expect(forwardedCertificate(['X-Forwarded-Tls-Client-Cert', `${text},${text}`])).toBe('ambiguous');
});

test('every header that is read is removed from requests of untrusted peers', () => {
  for (const [name] of forms) expect(CERTIFICATE_HEADERS).toContain(name.toLowerCase());
});
