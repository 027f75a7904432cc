import { UnusableResponse } from '../http/read-response.ts';
import { KeyPairError } from '../lib/key-pair.ts';
import { UNKNOWN_CA_CODES } from '../lib/tls-errors.ts';

interface ConnectionErrorContext {
  readonly url: URL;
  /** The option that sets the CA, such as "--cacert FILE". */
  readonly caOption: string;
  /** Whether that option was given. */
  readonly hasCa: boolean;
  /** The message about a timeout names it. */
  readonly timeoutMs?: number;
}

/** OpenSSL reports these errors when the peer does not send TLS records. */
const NOT_TLS = /wrong version number|packet length too long|record layer failure/i;
const CLOSED_CODES: readonly string[] = ['ECONNRESET', 'EPIPE', 'UND_ERR_SOCKET'];
const TIMEOUT_CODES: readonly string[] = [
  'ABORT_ERR',
  'ETIMEDOUT',
  'UND_ERR_BODY_TIMEOUT',
  'UND_ERR_CONNECT_TIMEOUT',
  'UND_ERR_HEADERS_TIMEOUT',
];

/** Requests of this program are aborted on timeout only. */
export const isTimeout = (error: unknown): boolean => {
  const { name, code = '' } = error as NodeJS.ErrnoException;
  return name === 'AbortError' || name === 'TimeoutError' || TIMEOUT_CODES.includes(code);
};

const MESSAGES: Readonly<Record<string, (url: URL) => string>> = {
  ENOTFOUND: ({ hostname }) => `cannot be reached: there is no host named ${hostname}; check the spelling (ENOTFOUND)`,
  EAI_AGAIN: ({ hostname }) =>
    `cannot be reached: the DNS server did not respond to the query for ${hostname}; check the network, and try again (EAI_AGAIN)`,
  ECONNREFUSED: () => 'cannot be reached: nothing listens at this address; is it running? (ECONNREFUSED)',
  CERT_HAS_EXPIRED: () => 'presented an expired certificate',
  CERT_NOT_YET_VALID: () => 'presented a certificate that is not valid yet; check the clock of this machine',
  ERR_TLS_CERT_ALTNAME_INVALID: ({ hostname }) => `presented a certificate that is not valid for ${hostname}`,
  ERR_SSL_TLSV13_ALERT_CERTIFICATE_REQUIRED: () => 'requires a client certificate',
  ERR_SSL_TLSV1_ALERT_UNKNOWN_CA: () => 'does not trust the CA of the client certificate',
};

export const explainConnectionError = (error: unknown, context: ConnectionErrorContext) => ({
  /** Follows the address: "https://api.example.test …". */
  message: describe(error as NodeJS.ErrnoException, context),
  /** A local file cannot be used, so a retry does not help. */
  isLocal: error instanceof KeyPairError,
});

function describe(error: NodeJS.ErrnoException, context: ConnectionErrorContext): string {
  const { url, caOption, hasCa, timeoutMs } = context;
  const { name, code = '', message, cause } = error;
  if (error instanceof UnusableResponse) return `sent an unusable response: ${message}`;
  if (error instanceof KeyPairError) return `was not contacted: ${message}`;
  if (isTimeout(error)) return timeoutMs === undefined ? 'timed out' : `did not respond within ${timeoutMs / 1_000} s`;
  if (UNKNOWN_CA_CODES.includes(code))
    return hasCa
      ? `is not trusted: its certificate was not issued by the CA in ${caOption}`
      : `is not trusted: its certificate was not issued by a known CA; set the CA with ${caOption}`;
  if (Object.hasOwn(MESSAGES, code)) return MESSAGES[code]?.(url) ?? code;
  if (url.protocol === 'https:') {
    if (NOT_TLS.test(message)) return 'does not use TLS; is it an http address?';
  } else if (CLOSED_CODES.includes(code)) return 'closed the connection without a response; is it an https address?';
  return `cannot be reached (${code || message || (cause as Error | undefined)?.message || name})`;
}
