import { hash } from 'node:crypto';
import type { Peers } from '../config/units.ts';
import type { Epoch, PresentedCertificate } from '../domain/grant.ts';
import type { Outcome } from '../domain/refusal.ts';
import { createBoundedCache } from '../lib/bounded-cache.ts';
import { Fault } from '../ports/fault.ts';
import type { CertificateContext } from '../proxy/config.ts';
import type { CertificateValidator, ValidatedCertificate } from '../x509/certificate-validator.ts';
import { type ForwardedHeader, findForwardedField, parseForwardedCertificate } from '../x509/forwarded-certificate.ts';

interface ClientCertificatesOptions {
  /** Front proxies that terminate TLS, and the header in which they forward the certificate of their client. */
  readonly forwardedFrom: Peers;
  readonly forwardedHeader?: ForwardedHeader | undefined;
  readonly certificateValidator: CertificateValidator;
  readonly now: () => Epoch;
}

export interface ClientCertificate {
  readonly der: Uint8Array;
  /** SHA-256, base64url (RFC 8705 §3.1 `x5t#S256`). */
  readonly fingerprint: string;
}

interface CertificateVerdict extends ClientCertificate {
  accepted: boolean;
  revision: number;
  validatedAt: Epoch;
  validUntil: Epoch;
}

const MAX_HEADER_VALUES = 1_000;
const MAX_PEERS = 1_000;
/** Envoy writes the certificate of its client like nginx. */
const SOURCE_CERTIFICATE_FORMAT: ForwardedHeader = 'x-ssl-client-cert';

export type ClientCertificates = ReturnType<typeof createClientCertificates>;

/** The client certificates of requests, for one configuration. */
export function createClientCertificates(options: ClientCertificatesOptions) {
  const { forwardedFrom, forwardedHeader: header, certificateValidator, now } = options;
  // A connection keeps the same buffer for its certificate.
  const verdicts = new WeakMap<Uint8Array, CertificateVerdict>();
  const headerVerdicts = createBoundedCache<string, CertificateVerdict | 'ambiguous'>(MAX_HEADER_VALUES);
  const frontProxies = createBoundedCache<string, boolean>(MAX_PEERS);
  const getVerdict = (der: Uint8Array): CertificateVerdict => {
    const cached = verdicts.get(der);
    if (cached !== undefined) return cached;
    const fingerprint = hash('sha256', der, 'base64url');
    const unknown = { accepted: false, revision: 0, validatedAt: Number.POSITIVE_INFINITY, validUntil: 0 };
    const verdict = { der, fingerprint, ...unknown };
    verdicts.set(der, verdict);
    return verdict;
  };
  const isFromFrontProxy = ({ peer, sourceUnknown }: CertificateContext): boolean => {
    if (!forwardedFrom.hasEntries || sourceUnknown === true) return false;
    let isListed = frontProxies.get(peer);
    if (isListed === undefined) frontProxies.set(peer, (isListed = forwardedFrom.includes(peer)));
    return isListed;
  };
  const parseCached = (format: ForwardedHeader, value: string): CertificateVerdict | undefined => {
    const key = `${format}: ${value}`;
    let cached = headerVerdicts.get(key);
    if (cached === undefined) {
      const der = parseForwardedCertificate(format, value);
      cached = der === undefined ? 'ambiguous' : getVerdict(der);
      headerVerdicts.set(key, cached);
    }
    return cached === 'ambiguous' ? undefined : cached;
  };
  const readForwarded = ({ request, sourceCertificate }: CertificateContext): CertificateVerdict | undefined => {
    if (sourceCertificate !== undefined) return parseCached(SOURCE_CERTIFICATE_FORMAT, sourceCertificate);
    if (header === undefined) return undefined;
    const field = findForwardedField(request.rawHeaders, header);
    return field.kind === 'found' ? parseCached(header, field.value) : undefined;
  };
  /** Is the header repeated or spelled differently, or does it contradict what the gateway itself says about its client? */
  const isContradictory = ({ request, sourceCertificate }: CertificateContext): boolean => {
    if (header === undefined) return false;
    const field = findForwardedField(request.rawHeaders, header);
    if (field.kind !== 'found') return field.kind === 'ambiguous';
    if (sourceCertificate === undefined) return false;
    const source = parseCached(SOURCE_CERTIFICATE_FORMAT, sourceCertificate);
    return source === undefined || source.fingerprint !== parseCached(header, field.value)?.fingerprint;
  };
  const revalidate = (certificate: ClientCertificate): CertificateVerdict | Promise<CertificateVerdict> => {
    const verdict = getVerdict(certificate.der);
    const checkedAt = now();
    const { revision } = certificateValidator;
    if (checkedAt >= verdict.validatedAt && checkedAt <= verdict.validUntil && verdict.revision === revision)
      return verdict;
    const outcome = certificateValidator.validate(verdict.der, checkedAt);
    const apply = (result: Outcome<ValidatedCertificate>): CertificateVerdict => {
      verdict.accepted = result.ok;
      verdict.revision = revision;
      verdict.validatedAt = checkedAt;
      // A rejected certificate may become valid: its notBefore may be in the future.
      verdict.validUntil = result.ok ? result.value.validUntil : checkedAt + 1;
      return verdict;
    };
    return outcome instanceof Promise ? outcome.then(apply) : apply(outcome);
  };
  return {
    /**
     * From the TLS connection, or from the header of a front proxy: the certificate of its own connection does not identify
     * its client.
     */
    get: (context: CertificateContext): ClientCertificate | undefined => {
      if (isFromFrontProxy(context)) return readForwarded(context);
      const der = context.certificate();
      return der && getVerdict(der);
    },
    /** The certificate in the header of a front proxy; undefined from other peers. */
    getForwarded: (context: CertificateContext): ClientCertificate | undefined =>
      isFromFrontProxy(context) ? readForwarded(context) : undefined,
    /**
     * Revalidates issuer, validity and revocation when the cached verdict may be outdated; asynchronous only while an OCSP
     * responder is asked. Throws or rejects with a `Fault` while it is not known whether the certificate is revoked.
     */
    validate: (
      certificate: ClientCertificate | undefined,
    ): PresentedCertificate | undefined | Promise<PresentedCertificate> => certificate && revalidate(certificate),
    /** Whether a certificate is still accepted. `unknown`: whether it is revoked cannot be found out now. */
    isAccepted: (der: Uint8Array): boolean | 'unknown' => {
      try {
        const verdict = revalidate(getVerdict(der));
        if (!(verdict instanceof Promise)) return verdict.accepted;
        verdict.catch(() => {});
        // With `softFail`, an unreachable responder must not end streams at each retry.
        return certificateValidator.isAcceptedMeanwhile(der, now()) || 'unknown';
      } catch (error) {
        if (error instanceof Fault) return 'unknown';
        throw error;
      }
    },
    /** Does a front proxy send the certificate header twice, in another spelling, or besides another certificate? */
    isAmbiguous: (context: CertificateContext): boolean =>
      header !== undefined && isFromFrontProxy(context) && isContradictory(context),
  };
}
