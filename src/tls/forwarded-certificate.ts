import { createHash } from 'node:crypto';
import { foldedName } from '../http/folded-name.ts';

/**
 * A client certificate that a TLS-terminating proxy in front passes on in a header. Whether the sender may be
 * believed is the caller's decision (`certificates.forwardedFrom`); everybody else's such headers are removed.
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
const FORMS: ReadonlyMap<string, ForwardedHeader> = new Map(
  (Object.keys(READERS) as ForwardedHeader[]).map((name) => [foldedName(name), name]),
);

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

/** Proxies and upstreams disagree about `_` and `.` in names; for these headers they are all one. */
const plainName = (name: string): string => name.toLowerCase().replace(/[_.]/g, '-');

/**
 * The leaf certificate (DER) that the raw headers carry; undefined when they carry none. More than one header, or
 * one that cannot be read in exactly one way, is `ambiguous`: that is a refusal, never "no certificate".
 *
 * `only` is the header the front writes. A front replaces that one and no other: where it has no certificate to tell
 * of, a header of another form is its client's own invention.
 */
export function forwardedCertificate(
  rawHeaders: readonly string[],
  only?: ForwardedHeader,
): Buffer | undefined | 'ambiguous' {
  let found: readonly [name: ForwardedHeader, value: string] | undefined;
  for (let at = 0; at + 1 < rawHeaders.length; at += 2) {
    const given = rawHeaders[at] ?? '';
    const name = FORMS.get(foldedName(given));
    if (name === undefined || (only !== undefined && name !== only)) continue;
    const value = (rawHeaders[at + 1] ?? '').trim();
    // A front proxy does not write other spellings, and may not remove them.
    if (found !== undefined || plainName(given) !== name) return 'ambiguous';
    found = [name, value];
  }
  if (found === undefined) return undefined;
  const [name, value] = found;
  // nginx sends an empty header where the client had no certificate.
  if (value === '') return undefined;
  if (value.length > MAX_HEADER) return 'ambiguous';
  return READERS[name](value) ?? 'ambiguous';
}

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
