import { createHash } from 'node:crypto';
import { foldedName } from '../http/folded-name.ts';

/**
 * A client certificate that a TLS-terminating proxy in front passes on in a header. Whether the sender is trusted is the
 * caller's decision (`certificates.forwardedFrom`); such headers of other senders are removed.
 */

/** The forms read here, each under its lower-case header name. */
const READERS = {
  'client-cert': fromByteSequence,
  'x-forwarded-client-cert': fromEnvoy,
  'ssl-client-cert': fromEscapedPem,
  'x-ssl-client-cert': fromEscapedPem,
  'x-forwarded-tls-client-cert': fromBareBase64,
} as const satisfies Readonly<Record<string, (value: string) => Buffer | undefined>>;

export type ForwardedHeader = keyof typeof READERS;

/** Headers that tell about a client certificate and so are never passed on from strangers; lower case. */
export const CERTIFICATE_HEADERS: readonly string[] = [
  ...Object.keys(READERS),
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

type Field =
  | { readonly kind: 'none' | 'ambiguous' }
  /** Not empty. */
  | { readonly kind: 'one'; readonly value: string };

const NONE: Field = { kind: 'none' };
const AMBIGUOUS: Field = { kind: 'ambiguous' };

/**
 * The one field of this name. Header names are case-insensitive (RFC 9110 §5.1), and nothing else about them is: a front
 * proxy that overwrites `Client-Cert` passes `Client_Cert` and `Client.Cert` of its client on, while others read all of
 * them as one name. Such a field, or a second one, makes the request ambiguous.
 */
export function forwardedField(rawHeaders: readonly string[], header: ForwardedHeader): Field {
  const folded = foldedName(header);
  let value: string | undefined;
  for (let at = 0; at + 1 < rawHeaders.length; at += 2) {
    const name = rawHeaders[at] as string;
    // The first character is the same in every spelling, but for those that begin with a punctuation mark.
    if (isOther(name, header)) continue;
    if (name.toLowerCase() === header) {
      if (value !== undefined) return AMBIGUOUS;
      value = rawHeaders[at + 1] as string;
    } else if (foldedName(name) === folded) return AMBIGUOUS;
  }
  // nginx sends an empty header where the client had no certificate.
  return value === undefined || value.trim() === '' ? NONE : { kind: 'one', value: value.trim() };
}

/** Cheaply, for most names: they begin with another letter. */
function isOther(name: string, header: string): boolean {
  const first = name.charCodeAt(0) | 0x20;
  return first >= 0x61 && first <= 0x7a && first !== header.charCodeAt(0);
}

/**
 * The leaf certificate (DER) in the field; undefined when there is none. A field that cannot be read in exactly one way
 * is `ambiguous`: that is a refusal, never "no certificate".
 */
export function forwardedCertificate(
  rawHeaders: readonly string[],
  header: ForwardedHeader,
): Buffer | undefined | 'ambiguous' {
  const field = forwardedField(rawHeaders, header);
  if (field.kind === 'one') return certificateIn(header, field.value) ?? 'ambiguous';
  return field.kind === 'ambiguous' ? 'ambiguous' : undefined;
}

/** Undefined for a value that cannot be read in exactly one way. */
export const certificateIn = (header: ForwardedHeader, value: string): Buffer | undefined =>
  value.length > MAX_HEADER ? undefined : READERS[header](value);

/** Exactly one spelling for the same bytes; anything else could be read differently by somebody else. */
function fromBase64(text: string): Buffer | undefined {
  if (text === '' || !/^[A-Za-z0-9+/]+={0,2}$/.test(text)) return undefined;
  const bytes = Buffer.from(text, 'base64');
  return bytes.toString('base64').replace(/=+$/, '') === text.replace(/=+$/, '') ? bytes : undefined;
}

/** RFC 9440 §2.2: a structured-field byte sequence, `:base64:`. */
function fromByteSequence(value: string): Buffer | undefined {
  const inside = /^:([A-Za-z0-9+/=]*):$/.exec(value)?.[1];
  return inside === undefined ? undefined : fromBase64(inside);
}

/** Traefik: the DER in base64, without PEM lines; with a chain, several joined by commas. */
function fromBareBase64(value: string): Buffer | undefined {
  if (value.includes(',')) return undefined;
  return fromBase64(value.includes('%') ? (decoded(value) ?? '') : value);
}

/** nginx `$ssl_client_escaped_cert`: PEM, percent-encoded. */
function fromEscapedPem(value: string): Buffer | undefined {
  const pem = decoded(value);
  const body =
    pem && /^-----BEGIN CERTIFICATE-----\s([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----\s*$/.exec(pem)?.[1];
  return body ? fromBase64(body.replace(/\s/g, '')) : undefined;
}

function decoded(value: string): string | undefined {
  try {
    return decodeURIComponent(value);
  } catch {
    return undefined;
  }
}

/**
 * Envoy: elements joined by commas, each `Key=value;Key="quoted value"`. Two elements mean two proxies, of which
 * the first may be the client's own invention. `Hash` is the SHA-256 of the certificate and must fit it.
 */
function fromEnvoy(value: string): Buffer | undefined {
  const pairs = envoyPairs(value);
  const certificates = pairs?.filter(([key]) => key === 'cert') ?? [];
  const hashes = pairs?.filter(([key]) => key === 'hash') ?? [];
  const [certificate] = certificates;
  if (certificate === undefined || certificates.length > 1 || hashes.length > 1) return undefined;
  const der = fromEscapedPem(certificate[1]);
  const hash = hashes[0]?.[1].toLowerCase();
  if (der === undefined || hash === undefined) return undefined;
  return createHash('sha256').update(der).digest('hex') === hash ? der : undefined;
}

const PAIR = /([A-Za-z]+)=(?:"((?:[^"\\]|\\.)*)"|([^",;]*))/y;

/** Undefined for more than one element and for everything that is not quite of the form. */
function envoyPairs(value: string): (readonly [key: string, value: string])[] | undefined {
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
