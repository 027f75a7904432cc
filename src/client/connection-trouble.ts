import { createPrivateKey, type KeyObject, X509Certificate } from 'node:crypto';
import { UnusableResponse } from '../http/read-response.ts';

/** Why there is no connection, in words for whoever can change it. */
export interface ConnectionTrouble {
  /** Goes on after the address: "https://api.example.test …". */
  readonly words: string;
  /** What was given here is wrong, such as a key that is not the certificate's: trying again changes nothing. */
  readonly isOurs: boolean;
}

export interface TroubleTerms {
  readonly url: URL;
  /** How the CA is named, such as "--cacert FILE". */
  readonly caBy: string;
  /** One was named, so it is the wrong one. */
  readonly caGiven: boolean;
}

const UNKNOWN_CA: readonly string[] = [
  'CERT_SIGNATURE_FAILURE',
  'CERT_UNTRUSTED',
  'DEPTH_ZERO_SELF_SIGNED_CERT',
  'SELF_SIGNED_CERT_IN_CHAIN',
  'UNABLE_TO_GET_ISSUER_CERT',
  'UNABLE_TO_GET_ISSUER_CERT_LOCALLY',
  'UNABLE_TO_VERIFY_LEAF_SIGNATURE',
];
/** OpenSSL's ways to say that these are no TLS records. */
const NO_TLS = /wrong version number|packet length too long|record layer failure/i;
const CLOSED: readonly string[] = ['ECONNRESET', 'EPIPE', 'UND_ERR_SOCKET'];

const LATE: readonly string[] = [
  'ABORT_ERR',
  'ETIMEDOUT',
  'UND_ERR_BODY_TIMEOUT',
  'UND_ERR_CONNECT_TIMEOUT',
  'UND_ERR_HEADERS_TIMEOUT',
];

/** Ours ended it since it took too long: requests here are given up for no other reason. */
export const isLate = (error: unknown): boolean => {
  const { name, code = '' } = error as NodeJS.ErrnoException;
  return name === 'AbortError' || name === 'TimeoutError' || LATE.includes(code);
};

/** Words for codes that say it all. */
const WORDS: Readonly<Record<string, (terms: TroubleTerms) => string>> = {
  CERT_HAS_EXPIRED: () => 'shows a certificate that has expired',
  CERT_NOT_YET_VALID: () => 'shows a certificate that is not valid yet; is the clock here right?',
  ERR_TLS_CERT_ALTNAME_INVALID: ({ url }) => `shows a certificate that is not for ${url.hostname}`,
  ERR_SSL_TLSV13_ALERT_CERTIFICATE_REQUIRED: () => 'asks for a client certificate',
  ERR_SSL_TLSV1_ALERT_UNKNOWN_CA: () => 'does not know the CA of the client certificate',
};

export function connectionTrouble(error: unknown, terms: TroubleTerms): ConnectionTrouble {
  const { name, code = '', message, cause } = error as NodeJS.ErrnoException & { readonly cause?: Error };
  const there = (words: string): ConnectionTrouble => ({ words, isOurs: false });
  if (error instanceof UnusableResponse) return there(`sent a response that cannot be used: ${message}`);
  if (error instanceof UnusablePair) return { words: `was not asked: ${message}`, isOurs: true };
  if (isLate(error)) return there('did not answer in time');
  if (UNKNOWN_CA.includes(code))
    return there(
      terms.caGiven
        ? `cannot be trusted: its certificate is not of the CA given by ${terms.caBy}`
        : `cannot be trusted: its certificate is not of a CA known here; name the CA by ${terms.caBy}`,
    );
  const known = Object.hasOwn(WORDS, code) ? WORDS[code] : undefined;
  if (known !== undefined) return there(known(terms));
  const isTls = terms.url.protocol === 'https:';
  if (isTls && NO_TLS.test(message)) return there('does not answer in TLS; does it speak https?');
  if (!isTls && CLOSED.includes(code))
    return there('closed the connection without an answer; does it speak https?');
  return there(`cannot be reached (${code || message || cause?.message || name})`);
}

export class UnusablePair extends Error {}

type Pem = string | Buffer;

/**
 * Throws an `UnusablePair` unless the key is that of the certificate. TLS itself says nothing about a key of another
 * kind: it connects as nobody.
 */
export function checkPair({ cert, key }: { readonly cert: Pem; readonly key: Pem }): void {
  const leaf = readable(() => new X509Certificate(cert), 'the certificate cannot be read; PEM is needed');
  const own: KeyObject = readable(
    () => createPrivateKey(key),
    key.includes('ENCRYPTED')
      ? 'the private key has a passphrase; one without is needed'
      : 'the private key cannot be read; PEM is needed',
  );
  if (!leaf.checkPrivateKey(own))
    throw new UnusablePair('the private key does not belong to the certificate');
}

function readable<T>(read: () => T, otherwise: string): T {
  try {
    return read();
  } catch {
    throw new UnusablePair(otherwise);
  }
}
