import { beforeAll, describe, expect, test } from 'vitest';
import { readCertificate } from '../../src/tls/certificate-facts.ts';
import { readClientHello } from '../../src/tls/client-hello.ts';
import { DerError } from '../../src/tls/der.ts';
import { forwardedCertificate } from '../../src/tls/forwarded-certificate.ts';
import { readProxyHeader } from '../../src/tls/proxy-protocol.ts';
import { readRevocationFile } from '../../src/tls/revocation-lists.ts';
import { mutations } from '../fuzz/mutations.ts';
import { forwardedForms } from '../support/forwarded.ts';
import { type Certified, issue, makeCa, makeCrl } from '../support/pki.ts';
import { approved, judgeOf, verdict } from './judge.ts';

const hex = (text: string): Buffer => Buffer.from(text.replace(/\s/g, ''), 'hex');

export function testBrokenCopies(rounds: number): void {
  describe(`${rounds} mutated copies`, () => {
    let ca: Certified;
    let alice: Certified;
    beforeAll(async () => {
      ca = await makeCa();
      alice = await issue(ca, { emails: ['alice@example.test'], userPrincipalNames: ['alice@corp.test'] });
    });

    test('of a certificate never break its evaluation and never yield another name', () => {
      const judge = judgeOf([approved(ca)], { remembered: 1 });
      const verdicts = new Map<string, number>();
      for (const broken of mutations(alice.der, rounds, 1)) {
        const said = verdict(judge(broken));
        verdicts.set(said, (verdicts.get(said) ?? 0) + 1);
      }
      expect([...verdicts.keys()].filter((said) => said.startsWith('name: '))).toEqual([]);
      // The copies are not all thrown out at the first byte: many are sound enough to be asked who signed them.
      expect(verdicts.get('certificate_issuer_not_approved') ?? 0).toBeGreaterThan(rounds / 20);
    });

    test('of a certificate make the reader throw a DerError and nothing else', () => {
      let read = 0;
      for (const broken of mutations(alice.der, rounds, 2))
        try {
          readCertificate(broken);
          read += 1;
        } catch (error) {
          expect(error).toBeInstanceOf(DerError);
        }
      expect(read).toBeGreaterThan(rounds / 20);
    });

    test('of a revocation list are reported as a problem of the file', async () => {
      const { der: list } = await makeCrl(ca, { revoked: [alice, '0badcafe'] });
      const issuers = [approved(ca)];
      for (const broken of mutations(list, rounds, 3))
        try {
          const [read] = readRevocationFile('a.crl', broken, issuers);
          expect(read).toBeUndefined();
        } catch (error) {
          expect((error as Error).message).toMatch(
            /^(?:is not|is signed|is cut short|is damaged|holds|does not say|is a delta|covers|carries)/,
          );
        }
    });

    test('of every forwarded header yield the same certificate, none, or a rejection', () => {
      const judge = judgeOf([approved(ca)], { remembered: 1 });
      for (const [name, value] of forwardedForms(alice.der))
        for (const broken of mutations(Buffer.from(value), rounds, 4)) {
          const header = name.toLowerCase() as Parameters<typeof forwardedCertificate>[1];
          const found = forwardedCertificate([name, broken.toString('latin1')], header);
          if (found === undefined || found === 'ambiguous') continue;
          const said = verdict(judge(found));
          if (said.startsWith('name: ')) expect(said).toBe('name: alice');
        }
    });

    test('of a ClientHello and a PROXY header never break their readers', () => {
      const hello = hex(
        `160301004b 010000 47 0303 ${'ab'.repeat(32)} 00 0002 1301 0100 001c 0000 0018 0016 00 0013 ${Buffer.from('strict.example.test').toString('hex')}`,
      );
      expect(readClientHello(hello)).toEqual({ kind: 'read', serverName: 'strict.example.test' });
      const v2 = hex('0d0a0d0a000d0a515549540a 2111 000c cb007109 0a000001 1000 01bb');
      expect(readProxyHeader(v2)).toEqual({ kind: 'read', length: 28, source: '203.0.113.9' });
      const kinds = new Set<string>();
      for (const broken of mutations(hello, rounds, 5)) kinds.add(readClientHello(broken).kind);
      for (const broken of mutations(v2, rounds, 6)) kinds.add(readProxyHeader(broken).kind);
      expect([...kinds].sort()).toEqual(['incomplete', 'read', 'unreadable']);
      for (let length = 0; length < hello.length; length += 1)
        expect(readClientHello(hello.subarray(0, length)).kind).toBe('incomplete');
    });
  });
}
