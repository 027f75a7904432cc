import { beforeAll, expect, test } from 'vitest';
import { CERTIFICATE_HEADERS, type ForwardedHeader } from '../../src/x509/forwarded-certificate.ts';
import { forwardedCertificateHeaders, readForwardedCertificate } from '../support/forwarded-certificate.ts';
import { createCa, issue, toPem } from '../support/pki.ts';

let der: Buffer;
let bob: Buffer;
let headers: readonly (readonly [string, string])[];
beforeAll(async () => {
  const ca = await createCa();
  der = (await issue(ca)).der;
  bob = (await issue(ca, { commonName: 'bob' })).der;
  headers = forwardedCertificateHeaders(der);
});

type Header = ForwardedHeader;
const readHeader = (name: string, value: string) =>
  readForwardedCertificate(['Host', 'a', name, value], name.toLowerCase() as Header);
const getValue = (header: string): string => headers.find(([name]) => name === header)?.[1] ?? '';

test('every header format yields the certificate; the header name is case-insensitive', () => {
  for (const [name, value] of headers)
    for (const spelling of [name, name.toLowerCase(), name.toUpperCase()])
      expect(readForwardedCertificate(['Host', 'a', spelling, value], name.toLowerCase() as Header)).toEqual(der);
});

test('another spelling of the header name is never trusted: with or without the header itself, the request is ambiguous', () => {
  for (const [name, value] of headers)
    for (const separator of "_.!#$%&'*+^`|~") {
      const spelling = name.replaceAll('-', separator);
      const withOneReplaced = name.replace('-', separator);
      for (const fields of [
        [spelling, value],
        [withOneReplaced.toUpperCase(), value],
        [spelling, ''],
        [name, value, spelling, value],
        [spelling, value, name, value],
        [name, '', spelling, value],
      ])
        expect([fields, readForwardedCertificate(fields, name.toLowerCase() as Header)]).toEqual([fields, 'ambiguous']);
    }
});

test('a missing or empty header yields no certificate, and headers of another format are ignored', () => {
  expect(readForwardedCertificate(['Host', 'a', 'X-Client', 'b'], 'client-cert')).toBeUndefined();
  expect(readHeader('X-SSL-Client-Cert', '')).toBeUndefined();
  for (const [name, value] of headers.slice(1))
    expect(readForwardedCertificate([name, value], 'client-cert')).toBeUndefined();
});

test('a duplicate header is ambiguous, even if one is empty or both are equal', () => {
  for (const [name, value] of headers) {
    const header = name.toLowerCase() as Header;
    expect(readForwardedCertificate([name, value, name, value], header)).toBe('ambiguous');
    expect(readForwardedCertificate([name, value, name.toUpperCase(), ''], header)).toBe('ambiguous');
    expect(readForwardedCertificate([name, '', name, value], header)).toBe('ambiguous');
    expect(readHeader(name, `${value}, ${value}`)).toBe('ambiguous');
  }
});

test('another spelling of the header, alone or with it, is ambiguous and never yields a certificate', () => {
  for (const [name, value] of headers) {
    const header = name.toLowerCase() as Header;
    for (const spelling of [name.replaceAll('-', '+'), name.replaceAll('-', ''), name.replace('-', '--')]) {
      expect([spelling, readForwardedCertificate([spelling, value], header)]).toEqual([spelling, 'ambiguous']);
      const both = [name, value, spelling, value];
      expect([spelling, readForwardedCertificate(both, header)]).toEqual([spelling, 'ambiguous']);
    }
  }
});

test('Envoy: two elements, two certificates, or a wrong or missing hash are ambiguous', () => {
  const header = 'X-Forwarded-Client-Cert';
  const good = getValue(header);
  const other = encodeURIComponent(toPem('CERTIFICATE', bob));
  expect(readHeader(header, good)).toEqual(der);
  expect(readHeader(header, `${good},${good}`)).toBe('ambiguous');
  expect(readHeader(header, `Hash=ab,${good}`)).toBe('ambiguous');
  expect(readHeader(header, `${good};Cert="${other}"`)).toBe('ambiguous');
  expect(readHeader(header, good.replace(/Hash=..../, 'Hash=0000'))).toBe('ambiguous');
  expect(readHeader(header, good.replace(/Hash=[0-9a-f]+;/, ''))).toBe('ambiguous');
  expect(readHeader(header, good.replace(/Cert="[^"]+"/, `Cert="${other}"`))).toBe('ambiguous');
});

test('Envoy: separators inside quotes are ignored', () => {
  const header = 'X-Forwarded-Client-Cert';
  const good = getValue(header).replace(/Subject="[^;]*";/, 'Subject="CN=alice\\";Cert=x,Hash=y";');
  expect(good).toContain('Cert=x');
  expect(readHeader(header, good)).toEqual(der);
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
    expect(readHeader('Client-Cert', value)).toBe('ambiguous');
});

test('PEM with leading, trailing or additional data is ambiguous', () => {
  const pem = toPem('CERTIFICATE', der);
  for (const text of [pem + pem, `x${pem}`, `${pem}x`, pem.replace('CERTIFICATE', 'X509 CRL'), '%zz', '%'])
    expect(readHeader('X-SSL-Client-Cert', text.startsWith('%') ? text : encodeURIComponent(text))).toBe('ambiguous');
});

test('a Traefik header with several certificates is ambiguous', () => {
  const text = der.toString('base64');
  expect(readHeader('X-Forwarded-Tls-Client-Cert', `${text},${text}`)).toBe('ambiguous');
});

test('every header that is read is removed from requests of untrusted peers', () => {
  for (const [name] of headers) expect(CERTIFICATE_HEADERS).toContain(name.toLowerCase());
});
