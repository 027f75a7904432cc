import { beforeAll, describe, expect, test } from 'vitest';
import { createClientHelloReader } from '../../src/listener/client-hello.ts';
import { parseProxyHeader } from '../../src/listener/proxy-protocol.ts';
import { readCertificateFacts } from '../../src/x509/certificate-facts.ts';
import { parseCrlFile } from '../../src/x509/crl-set.ts';
import { DerError } from '../../src/x509/der.ts';
import type { ForwardedHeader } from '../../src/x509/forwarded-certificate.ts';
import { mutations } from '../fuzz/mutations.ts';
import { forwardedCertificateHeaders, readForwardedCertificate } from '../support/forwarded-certificate.ts';
import { createCa, createCrl, type IssuedCertificate, issue } from '../support/pki.ts';
import { approve, createTestValidator, formatResult } from './validator.ts';

const hex = (text: string): Buffer => Buffer.from(text.replace(/\s/g, ''), 'hex');

export function testMutatedCopies(rounds: number): void {
  describe(`${rounds} mutated copies`, () => {
    let ca: IssuedCertificate;
    let alice: IssuedCertificate;
    beforeAll(async () => {
      ca = await createCa();
      alice = await issue(ca, { emails: ['alice@example.test'], userPrincipalNames: ['alice@corp.test'] });
    });

    test('of a certificate never make the validator throw and never yield another name', () => {
      const validate = createTestValidator([approve(ca)], { cacheSize: 1 });
      const verdicts = new Map<string, number>();
      for (const mutated of mutations(alice.der, rounds, 1)) {
        const output = formatResult(validate(mutated));
        verdicts.set(output, (verdicts.get(output) ?? 0) + 1);
      }
      expect([...verdicts.keys()].filter((output) => output.startsWith('name: '))).toEqual([]);
      // Many copies are valid enough to reach the signature check.
      expect(verdicts.get('certificate_issuer_not_approved') ?? 0).toBeGreaterThan(rounds / 20);
    });

    test('of a certificate make the parser throw only DerError', () => {
      let read = 0;
      for (const mutated of mutations(alice.der, rounds, 2))
        try {
          readCertificateFacts(mutated);
          read += 1;
        } catch (error) {
          expect(error).toBeInstanceOf(DerError);
        }
      expect(read).toBeGreaterThan(rounds / 20);
    });

    test('of a CRL are reported as a problem of the file', async () => {
      const { der: list } = await createCrl(ca, { revoked: [alice, '0badcafe'] });
      const issuers = [approve(ca)];
      for (const mutated of mutations(list, rounds, 3))
        try {
          const [read] = parseCrlFile('a.crl', mutated, issuers);
          expect(read).toBeUndefined();
        } catch (error) {
          expect((error as Error).message).toMatch(
            /^(?:is not|is signed|is truncated|is damaged|contains|has|is a delta|covers)/,
          );
        }
    });

    test('of every forwarded header yield the same certificate, none, or a rejection', () => {
      const validate = createTestValidator([approve(ca)], { cacheSize: 1 });
      for (const [name, value] of forwardedCertificateHeaders(alice.der))
        for (const mutated of mutations(Buffer.from(value), rounds, 4)) {
          const header = name.toLowerCase() as ForwardedHeader;
          const found = readForwardedCertificate([name, mutated.toString('latin1')], header);
          if (found === undefined || found === 'ambiguous') continue;
          const output = formatResult(validate(found));
          if (output.startsWith('name: ')) expect(output).toBe('name: alice');
        }
    });

    test('of a ClientHello and a PROXY header never make their parsers throw', () => {
      const hello = hex(
        `160301004b 010000 47 0303 ${'ab'.repeat(32)} 00 0002 1301 0100 001c 0000 0018 0016 00 0013 ${Buffer.from('strict.example.test').toString('hex')}`,
      );
      expect(createClientHelloReader()(hello)).toEqual({ kind: 'parsed', serverName: 'strict.example.test' });
      const v2 = hex('0d0a0d0a000d0a515549540a 2111 000c cb007109 0a000001 1000 01bb');
      expect(parseProxyHeader(v2)).toEqual({ kind: 'parsed', length: 28, source: '203.0.113.9' });
      const kinds = new Set<string>();
      for (const mutated of mutations(hello, rounds, 5)) kinds.add(createClientHelloReader()(mutated).kind);
      for (const mutated of mutations(v2, rounds, 6)) kinds.add(parseProxyHeader(mutated).kind);
      expect([...kinds].sort()).toEqual(['incomplete', 'malformed', 'parsed']);
      for (let length = 0; length < hello.length; length += 1)
        expect(createClientHelloReader()(hello.subarray(0, length)).kind).toBe('incomplete');
    });
  });
}
