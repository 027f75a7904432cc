import { beforeAll, describe, expect, test } from 'vitest';
import { type ApprovedIssuer, approveIssuer, type NameRule } from '../../src/x509/approved-issuer.ts';
import { createCa, der, type IssuedCertificate, issue, type LeafOptions, sanExtension } from '../support/pki.ts';
import { createTestValidator, formatResult } from './validator.ts';

const UNUSABLE = 'certificate_name_unusable';

let ca: IssuedCertificate;
beforeAll(async () => {
  ca = await createCa();
});

const approveWith = (rule: NameRule): ApprovedIssuer =>
  approveIssuer({ name: 'ca', certificate: ca.pem, directory: 'machines', ...rule });
const validateWith = async (rule: NameRule, options: LeafOptions): Promise<string> =>
  formatResult(createTestValidator([approveWith(rule)])(await issue(ca, options)));
/** GeneralName elements with exactly these bytes. */
const rawNames = (tag: number, ...names: readonly (string | Buffer)[]): LeafOptions => ({
  extensions: [sanExtension(...names.map((name) => der(tag, Buffer.from(name as string, 'latin1'))))],
});

describe('DNS names', () => {
  const validateDns = (options: LeafOptions, dnsDomain?: string): Promise<string> =>
    validateWith({ identityFrom: 'dnsName', ...(dnsDomain !== undefined && { dnsDomain }) }, options);

  test('a single DNS name is the identity, in lower case', async () => {
    expect(await validateDns({ dnsNames: ['Billing.Example.Test'] })).toBe('name: billing.example.test');
    expect(await validateDns({ dnsNames: ['billing'] })).toBe('name: billing');
    expect(await validateDns({ dnsNames: ['xn--bcher-kva.test'] })).toBe('name: xn--bcher-kva.test');
  });

  test('the common name, an address or a URI is never used instead', async () => {
    expect(await validateDns({ commonName: 'billing.example.test' })).toBe(UNUSABLE);
    expect(await validateDns({ addresses: ['10.0.0.1'], uris: ['https://billing.example.test'] })).toBe(UNUSABLE);
  });

  test('two DNS names are ambiguous, also if they are equal', async () => {
    expect(await validateDns({ dnsNames: ['a.example.test', 'b.example.test'] })).toBe(UNUSABLE);
    expect(await validateDns({ dnsNames: ['a.example.test', 'a.example.test'] })).toBe(UNUSABLE);
  });

  test('dnsDomain picks the only name in the domain, and refuses names outside it', async () => {
    const names = ['billing', 'billing.shop.svc', 'billing.shop.svc.cluster.local'];
    expect(await validateDns({ dnsNames: names }, 'cluster.local')).toBe('name: billing.shop.svc.cluster.local');
    expect(await validateDns({ dnsNames: ['CLUSTER.local'] }, 'cluster.local')).toBe('name: cluster.local');
    expect(await validateDns({ dnsNames: ['a.cluster.local', 'b.Cluster.Local'] }, 'cluster.local')).toBe(UNUSABLE);
    for (const outside of ['evilcluster.local', 'cluster.local.evil.test', 'local', 'a.cluster.local.'])
      expect(await validateDns({ dnsNames: [outside] }, 'cluster.local')).toBe(UNUSABLE);
    // It cannot be decoded, so it could be a second name in the domain.
    expect(await validateDns(rawNames(0x82, 'a.cluster.local', '\xff.cluster.local'), 'cluster.local')).toBe(UNUSABLE);
  });

  test.each([
    '*.example.test',
    '*',
    'a.*.test',
    '',
    '.',
    '.example.test',
    'example..test',
    'billing.example.test.',
    ' billing',
    'billing\0.example.test',
    'billing.example.test\n',
    'b\xfccher.test',
    '-a.test',
    'a-.test',
    'a_b.test',
    '10.0.0.1',
    'a.123',
    `${'a'.repeat(64)}.test`,
    `${'a.'.repeat(127)}test`,
    'user@example.test',
    'a.test:443',
    'a.test/b',
  ])('%j is not a DNS name', async (name) => {
    expect(await validateDns(rawNames(0x82, name))).toBe(UNUSABLE);
  });
});

describe('URIs', () => {
  const validateUri = (options: LeafOptions, trustDomain?: string): Promise<string> =>
    validateWith({ identityFrom: 'uri', ...(trustDomain !== undefined && { trustDomain }) }, options);

  test('a single URI is the identity, compared exactly', async () => {
    expect(await validateUri({ uris: ['urn:uuid:F81d4fae-7dec-11d0-a765-00a0c91e6bf6'] })).toBe(
      'name: urn:uuid:F81d4fae-7dec-11d0-a765-00a0c91e6bf6',
    );
    expect(await validateUri({ uris: ['https://Example.test/a%20b'] })).toBe('name: https://Example.test/a%20b');
    expect(await validateUri({ uris: ['urn:a:b', 'urn:a:c'] })).toBe(UNUSABLE);
    expect(await validateUri({ commonName: 'urn:a:b' })).toBe(UNUSABLE);
  });

  test.each([
    '',
    'billing',
    '//host/path',
    'urn:',
    'urn:a b',
    'urn:a\0b',
    'urn:\xe4',
    'urn:%zz',
    'urn:*',
    '1a:b',
    'urn:<b>',
    `urn:${'a'.repeat(2_048)}`,
  ])('%j is not a usable URI', async (uri) => {
    expect(await validateUri(rawNames(0x86, uri))).toBe(UNUSABLE);
  });

  test('the DNS names of a workload beside its URI are ignored, and not reported as other names', async () => {
    const validate = createTestValidator([approveWith({ identityFrom: 'uri', trustDomain: 'example.org' })]);
    const certificate = await issue(ca, {
      commonName: 'billing.shop.svc',
      dnsNames: ['billing.shop.svc', 'billing'],
      uris: ['spiffe://example.org/ns/shop/sa/billing'],
    });
    expect(validate(certificate)).toMatchObject({
      ok: true,
      value: { name: 'spiffe://example.org/ns/shop/sa/billing', source: 'uri', hasOtherNames: false },
    });
  });
});

describe('SPIFFE IDs', () => {
  const validateSpiffe = (uri: string, trustDomain: string | undefined = 'example.org'): Promise<string> =>
    validateWith({ identityFrom: 'uri', ...(trustDomain && { trustDomain }) }, rawNames(0x86, uri));

  test.each([
    'spiffe://example.org/billing',
    'spiffe://example.org/ns/Shop/sa/billing_1-a.b',
    'spiffe://example.org/...',
    `spiffe://example.org/${'a'.repeat(2_048 - 'spiffe://example.org/'.length)}`,
  ])('%s is accepted from the issuer of its trust domain', async (uri) => {
    expect(await validateSpiffe(uri)).toBe(`name: ${uri}`);
  });

  test('an issuer asserts workloads of its own trust domain only', async () => {
    for (const uri of [
      'spiffe://other.org/billing',
      'spiffe://example.org.evil.test/billing',
      'spiffe://evil.test/example.org/billing',
      'spiffe://xexample.org/billing',
      'spiffe://sub.example.org/billing',
    ])
      expect(await validateSpiffe(uri), uri).toBe(UNUSABLE);
  });

  test('an issuer without a trust domain cannot assert SPIFFE IDs, in any spelling', async () => {
    for (const uri of ['spiffe://example.org/billing', 'SPIFFE://example.org/billing', 'sPiFfE:/example.org/billing'])
      expect(await validateSpiffe(uri, ''), uri).toBe(UNUSABLE);
  });

  test('an issuer with a trust domain asserts nothing but SPIFFE IDs', async () => {
    for (const uri of ['https://example.org/billing', 'urn:example.org:billing', 'spiffes://example.org/billing'])
      expect(await validateSpiffe(uri), uri).toBe(UNUSABLE);
  });

  test('a certificate with a second URI is refused, even if only one is in the trust domain', async () => {
    const options = rawNames(0x86, 'spiffe://example.org/billing', 'spiffe://other.org/billing');
    expect(await validateWith({ identityFrom: 'uri', trustDomain: 'example.org' }, options)).toBe(UNUSABLE);
  });

  test.each([
    'SPIFFE://example.org/billing',
    'spiffe:/example.org/billing',
    'spiffe:example.org/billing',
    'spiffe://',
    'spiffe:///billing',
    'spiffe://example.org',
    'spiffe://example.org/',
    'spiffe://example.org/billing/',
    'spiffe://example.org//billing',
    'spiffe://example.org/a//b',
    'spiffe://example.org/.',
    'spiffe://example.org/..',
    'spiffe://example.org/a/../b',
    'spiffe://example.org/a/./b',
    'spiffe://Example.org/billing',
    'spiffe://example.org:443/billing',
    'spiffe://user@example.org/billing',
    'spiffe://user:password@example.org/billing',
    'spiffe://other.org@example.org/billing',
    'spiffe://example.org/billing?a=b',
    'spiffe://example.org/billing#a',
    'spiffe://example.org?a/billing',
    'spiffe://example.org#/billing',
    'spiffe://example.org/bil%6cing',
    'spiffe://example%2eorg/billing',
    'spiffe://example.org/b\xfc',
    'spiffe://example.org/a b',
    'spiffe://example.org/a~b',
    'spiffe://example.org/a:b',
    'spiffe://example.org/*',
    'spiffe://*.org/billing',
    'spiffe://example.org/billing\0',
    'spiffe://example.org\\/billing',
    `spiffe://example.org/${'a'.repeat(2_049 - 'spiffe://example.org/'.length)}`,
  ])('%j is not a SPIFFE ID of a workload', async (uri) => {
    expect(await validateSpiffe(uri)).toBe(UNUSABLE);
  });

  test('a trust domain has at most 255 characters', async () => {
    const longest = 'a'.repeat(255);
    expect(await validateSpiffe(`spiffe://${longest}/b`, longest)).toBe(`name: spiffe://${longest}/b`);
    expect(await validateSpiffe(`spiffe://${longest}a/b`, `${longest}a`)).toBe(UNUSABLE);
  });
});
