import { hash } from 'node:crypto';
import type { Peers } from '../config/units.ts';
import type { ShownCertificate } from '../domain/bearer.ts';
import type { Epoch } from '../domain/epoch.ts';
import { boundedCache } from '../http/bounded-cache.ts';
import type { CertificateJudge } from '../ports/certificate-judge.ts';
import type { CertificateCall } from '../proxy/fast/generation.ts';
import { certificateIn, type ForwardedHeader, forwardedField } from '../tls/forwarded-certificate.ts';

export interface CallCertificatesOptions {
  /** Front proxies that terminate TLS, and the header in which they forward the certificate of their client. */
  readonly forwardedFrom: Peers;
  readonly forwardedHeader: ForwardedHeader | undefined;
  readonly judge: CertificateJudge;
  readonly now: () => Epoch;
}

/** The client certificates of requests, under one configuration. */
export interface CallCertificates {
  /** From the TLS connection, or from the header of a front proxy. */
  of(call: CertificateCall): KnownCertificate | undefined;
  /** The certificate in the header of a front proxy; undefined from other peers. */
  forwarded(call: CertificateCall): KnownCertificate | undefined;
  /** Issuer, validity and revocation are judged anew when the verdict may have changed. */
  judged(certificate: KnownCertificate | undefined): ShownCertificate | undefined;
  accepts(der: Uint8Array): boolean;
  /** Does a front proxy send the certificate header twice, or in another spelling? */
  isAmbiguous(call: CertificateCall): boolean;
}

export interface KnownCertificate {
  readonly der: Uint8Array;
  /** SHA-256, base64url (RFC 8705 §3.1 `x5t#S256`). */
  readonly fingerprint: string;
}

interface Verdict extends KnownCertificate {
  accepted: boolean;
  judgedAt: Epoch;
  until: Epoch;
}

/** How many header values of front proxies, and how many addresses, are remembered. */
const VALUES = 1_000;
const PEERS = 1_000;

export function createCallCertificates({
  forwardedFrom,
  forwardedHeader: header,
  judge,
  now,
}: CallCertificatesOptions): CallCertificates {
  // A connection keeps one buffer for its certificate; another configuration begins with nothing remembered.
  const known = new WeakMap<Uint8Array, Verdict>();
  const values = boundedCache<string, Verdict | 'ambiguous'>(VALUES);
  const fronts = boundedCache<string, boolean>(PEERS);
  const knows = (der: Uint8Array): Verdict => {
    const found = known.get(der);
    if (found !== undefined) return found;
    const fingerprint = hash('sha256', der, 'base64url');
    const verdict = { der, fingerprint, accepted: false, judgedAt: Number.POSITIVE_INFINITY, until: 0 };
    known.set(der, verdict);
    return verdict;
  };
  const isFront = ({ peer, sourceUnknown }: CertificateCall): boolean => {
    if (!forwardedFrom.some || sourceUnknown === true) return false;
    let listed = fronts.get(peer);
    if (listed === undefined) fronts.set(peer, (listed = forwardedFrom.includes(peer)));
    return listed;
  };
  const inHeader = ({ request }: CertificateCall): Verdict | undefined => {
    if (header === undefined) return undefined;
    const field = forwardedField(request.rawHeaders, header);
    if (field.kind !== 'one') return undefined;
    let found = values.get(field.value);
    if (found === undefined) {
      const der = certificateIn(header, field.value);
      found = der === undefined ? 'ambiguous' : knows(der);
      values.set(field.value, found);
    }
    return found === 'ambiguous' ? undefined : found;
  };
  const judged = (certificate: KnownCertificate): Verdict => {
    const verdict = knows(certificate.der);
    const at = now();
    if (at >= verdict.judgedAt && at <= verdict.until) return verdict;
    const outcome = judge.judge(verdict.der, at);
    verdict.accepted = outcome.ok;
    verdict.judgedAt = at;
    // What is refused may be accepted later: it may not be valid yet.
    verdict.until = outcome.ok ? outcome.value.until : at + 1;
    return verdict;
  };
  return {
    // The certificate of a front proxy's own connection does not identify its client.
    of(call) {
      if (isFront(call)) return inHeader(call);
      const der = call.certificate();
      return der && knows(der);
    },
    forwarded: (call) => (isFront(call) ? inHeader(call) : undefined),
    judged: (certificate) => certificate && judged(certificate),
    accepts: (der) => judged(knows(der)).accepted,
    isAmbiguous: (call) =>
      header !== undefined &&
      isFront(call) &&
      forwardedField(call.request.rawHeaders, header).kind === 'ambiguous',
  };
}
