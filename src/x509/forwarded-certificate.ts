import { hash } from 'node:crypto';
import { foldFieldName } from '../http/fold-field-name.ts';

/**
 * Headers in which a TLS-terminating proxy forwards the client certificate. Callers decide whether the sender is trusted
 * (`certificates.forwardedFrom`).
 */
const PARSERS = {
  'client-cert': parseByteSequence,
  'x-forwarded-client-cert': parseEnvoyHeader,
  'ssl-client-cert': parseEscapedPem,
  'x-ssl-client-cert': parseEscapedPem,
  'x-forwarded-tls-client-cert': parseBareBase64,
} as const satisfies Readonly<Record<string, (value: string) => Buffer | undefined>>;

export type ForwardedHeader = keyof typeof PARSERS;

/** Headers about client certificates, lower case. Removed from requests of untrusted senders. */
export const CERTIFICATE_HEADERS: readonly string[] = [
  ...Object.keys(PARSERS),
  'client-cert-chain',
  'x-forwarded-tls-client-cert-info',
  'x-client-cert',
  'x-ssl-cert',
  'x-ssl-client-verify',
  'x-ssl-client-s-dn',
  'x-ssl-client-dn',
  'x-ssl-client-cn',
  'x-ssl-client-i-dn',
  'x-ssl-client-serial',
  'x-ssl-client-fingerprint',
  'x-ssl-client-sha1',
  'ssl-client-verify',
  'ssl-client-subject-dn',
  'ssl-client-issuer-dn',
  'x-arr-clientcert',
  'x-amzn-mtls-clientcert',
  'x-amzn-mtls-clientcert-leaf',
];

const MAX_HEADER = 65_536;

type FieldLookup = { readonly kind: 'none' | 'ambiguous' } | { readonly kind: 'found'; readonly value: string };

const NONE: FieldLookup = { kind: 'none' };
const AMBIGUOUS: FieldLookup = { kind: 'ambiguous' };

/**
 * The only field of this name. A proxy that overwrites `Client-Cert` may pass through `Client_Cert` and `Client.Cert` of its
 * client, which other servers take for the same name. Such a field, or a second one, makes the request ambiguous.
 */
export function findForwardedField(rawHeaders: readonly string[], header: ForwardedHeader): FieldLookup {
  const folded = foldFieldName(header);
  let value: string | undefined;
  for (let at = 0; at + 1 < rawHeaders.length; at += 2) {
    const name = rawHeaders[at] as string;
    if (cannotMatch(name, header)) continue;
    if (name.toLowerCase() === header) {
      if (value !== undefined) return AMBIGUOUS;
      value = rawHeaders[at + 1] as string;
    } else if (foldFieldName(name) === folded) return AMBIGUOUS;
  }
  // nginx sends an empty header where the client had no certificate.
  return value === undefined || value.trim() === '' ? NONE : { kind: 'found', value: value.trim() };
}

/** A cheap check that excludes most names: they begin with another letter. */
function cannotMatch(name: string, header: string): boolean {
  const first = name.charCodeAt(0) | 0x20;
  return first >= 0x61 && first <= 0x7a && first !== header.charCodeAt(0);
}

/** Undefined for a value without exactly one interpretation. */
export const parseForwardedCertificate = (header: ForwardedHeader, value: string): Buffer | undefined =>
  value.length > MAX_HEADER ? undefined : PARSERS[header](value);

/** Accepts only the canonical encoding: decoders differ about others. */
function decodeBase64Strict(text: string): Buffer | undefined {
  if (text === '' || !/^[A-Za-z0-9+/]+={0,2}$/.test(text)) return undefined;
  const bytes = Buffer.from(text, 'base64');
  return bytes.toString('base64').replace(/=+$/, '') === text.replace(/=+$/, '') ? bytes : undefined;
}

/** RFC 9440 §2.2: a structured-field byte sequence, `:base64:`. */
function parseByteSequence(value: string): Buffer | undefined {
  const encoded = /^:([A-Za-z0-9+/=]*):$/.exec(value)?.[1];
  return encoded === undefined ? undefined : decodeBase64Strict(encoded);
}

/** Traefik: DER in base64 without PEM delimiters; a chain is joined by commas. */
function parseBareBase64(value: string): Buffer | undefined {
  if (value.includes(',')) return undefined;
  return decodeBase64Strict(value.includes('%') ? (decodePercentEncoding(value) ?? '') : value);
}

/** nginx `$ssl_client_escaped_cert`: PEM, percent-encoded. */
function parseEscapedPem(value: string): Buffer | undefined {
  const pem = decodePercentEncoding(value);
  const body = pem && /^-----BEGIN CERTIFICATE-----\s([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----\s*$/.exec(pem)?.[1];
  return body ? decodeBase64Strict(body.replace(/\s/g, '')) : undefined;
}

function decodePercentEncoding(value: string): string | undefined {
  try {
    return decodeURIComponent(value);
  } catch {
    return undefined;
  }
}

/**
 * Envoy: elements joined by commas, each `Key=value;Key="quoted value"`. The first of two elements may be forged by the
 * client. `Hash` is the SHA-256 of the certificate and must match.
 */
function parseEnvoyHeader(value: string): Buffer | undefined {
  const pairs = parseEnvoyPairs(value);
  const certificates = pairs?.filter(([key]) => key === 'cert') ?? [];
  const hashes = pairs?.filter(([key]) => key === 'hash') ?? [];
  const [certificate] = certificates;
  if (certificate === undefined || certificates.length > 1 || hashes.length > 1) return undefined;
  const der = parseEscapedPem(certificate[1]);
  return der !== undefined && hash('sha256', der) === hashes[0]?.[1].toLowerCase() ? der : undefined;
}

const PAIR = /([A-Za-z]+)=(?:"((?:[^"\\]|\\.)*)"|([^",;]*))/y;

/** Undefined for malformed values and for more than one element. */
function parseEnvoyPairs(value: string): (readonly [key: string, value: string])[] | undefined {
  const pairs: (readonly [string, string])[] = [];
  for (let at = 0; ; at += 1) {
    PAIR.lastIndex = at;
    const pair = PAIR.exec(value);
    if (pair === null) return undefined;
    const [, key = '', quoted, plain = ''] = pair;
    pairs.push([key.toLowerCase(), quoted === undefined ? plain : quoted.replace(/\\(.)/g, '$1')]);
    at = PAIR.lastIndex;
    if (at === value.length) return pairs;
    if (value[at] !== ';') return undefined;
  }
}
