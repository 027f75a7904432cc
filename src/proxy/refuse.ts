import type { IncomingMessage, ServerResponse } from 'node:http';
import type { TokenFault } from '../domain/refusal.ts';
import { endsItself } from '../tls/client-error.ts';

/** Every way a proxied request is turned away. What a stranger is told stands in the table below. */
export type ProxyRefusal =
  | { readonly reason: 'malformed'; readonly detail: string }
  | { readonly reason: 'misdirected' }
  | { readonly reason: 'method_not_served' }
  | { readonly reason: 'coding_not_served' }
  | { readonly reason: 'expectation_failed' }
  | { readonly reason: 'token_missing' }
  | { readonly reason: 'token_invalid'; readonly why: TokenFault }
  | { readonly reason: 'no_rule' }
  | { readonly reason: 'client_not_admitted'; readonly scope?: string }
  | { readonly reason: 'scope_unmet'; readonly scope: string }
  | { readonly reason: 'service_worker_script' }
  | { readonly reason: 'upgrade_not_served' }
  | { readonly reason: 'websocket_version' }
  | { readonly reason: 'origin_not_allowed' }
  | { readonly reason: 'body_too_large' }
  | { readonly reason: 'client_too_slow' }
  | { readonly reason: 'upstream_failed' }
  | { readonly reason: 'upstream_too_slow' }
  | { readonly reason: 'peer_not_listed' }
  | { readonly reason: 'original_unclear'; readonly detail: string }
  | { readonly reason: 'overloaded'; readonly retryAfter: number }
  | { readonly reason: 'unavailable'; readonly retryAfter: number };

/** Of a front proxy whose requests carry the certificate header twice, or in another spelling. */
export const AMBIGUOUS_CERTIFICATE = {
  reason: 'malformed',
  detail: 'it is ambiguous which client certificate is forwarded',
} as const satisfies ProxyRefusal;

interface Wording {
  readonly status: number;
  readonly error: string;
  readonly description: string;
  /** The connection cannot be trusted to be in step any more, or is not worth keeping. */
  readonly close?: true;
}

type RefusalOf<R extends ProxyRefusal['reason']> = Extract<ProxyRefusal, { reason: R }>;
type Words = { readonly [R in ProxyRefusal['reason']]: Wording | ((refusal: RefusalOf<R>) => Wording) };

const TOKEN_WORDS = {
  malformed: 'The access token is malformed.',
  not_authentic: 'The access token is not one of ours.',
  expired: 'The access token has expired.',
  not_yet_valid: 'The access token is not valid yet.',
  revoked: 'The access token has been revoked.',
  client_removed: 'The integration of this access token is gone.',
  certificate_not_presented: 'The access token is bound to a certificate that was not presented.',
  certificate_refused: 'The access token is bound to a certificate that is no longer accepted.',
} as const satisfies Record<TokenFault, string>;

const insufficient = (description: string): Wording => ({
  status: 403,
  error: 'insufficient_scope',
  description,
});

const WORDS: Words = {
  malformed: ({ detail }) => ({
    status: 400,
    error: 'invalid_request',
    description: `The request is not acceptable: ${detail}.`,
    close: true,
  }),
  misdirected: {
    status: 421,
    error: 'misdirected_request',
    description: 'This host is not served here.',
    close: true,
  },
  method_not_served: {
    status: 405,
    error: 'method_not_allowed',
    description: 'This method is not served.',
    close: true,
  },
  coding_not_served: {
    status: 501,
    error: 'not_implemented',
    description: 'The only transfer coding served is chunked.',
    close: true,
  },
  expectation_failed: {
    status: 417,
    error: 'expectation_failed',
    description: 'The only expectation met is 100-continue.',
    close: true,
  },
  token_missing: { status: 401, error: 'unauthorized', description: 'A bearer token is required.' },
  token_invalid: ({ why }) => ({ status: 401, error: 'invalid_token', description: TOKEN_WORDS[why] }),
  no_rule: { status: 404, error: 'not_found', description: 'There is nothing here.' },
  client_not_admitted: insufficient('This is not open to the integration of this access token.'),
  scope_unmet: insufficient('The access token does not carry the scope that is required here.'),
  service_worker_script: {
    status: 403,
    error: 'service_worker_not_allowed',
    description: 'No service worker may be registered on the origin of the confirmation pages.',
  },
  upgrade_not_served: {
    status: 403,
    error: 'upgrade_not_allowed',
    description: 'No protocol upgrade is allowed here.',
    close: true,
  },
  websocket_version: {
    status: 426,
    error: 'upgrade_required',
    description: 'The only WebSocket version served is 13.',
    close: true,
  },
  origin_not_allowed: {
    status: 403,
    error: 'origin_not_allowed',
    description: 'Pages of this origin may not use this.',
  },
  body_too_large: {
    status: 413,
    error: 'content_too_large',
    description: 'The request body is too large.',
    close: true,
  },
  client_too_slow: {
    status: 408,
    error: 'request_timeout',
    description: 'The request body did not arrive in time.',
    close: true,
  },
  upstream_failed: {
    status: 502,
    error: 'bad_gateway',
    description: 'The service behind this gateway did not answer properly.',
  },
  upstream_too_slow: {
    status: 504,
    error: 'gateway_timeout',
    description: 'The service behind this gateway did not answer in time.',
  },
  peer_not_listed: {
    status: 403,
    error: 'access_denied',
    description: 'This caller may not ask about the requests of others.',
  },
  original_unclear: ({ detail }) => ({
    status: 403,
    error: 'invalid_request',
    description: `It is not clear which request this is about: ${detail}.`,
  }),
  overloaded: {
    status: 503,
    error: 'temporarily_unavailable',
    description: 'Too many requests are waiting; retry.',
  },
  unavailable: {
    status: 503,
    error: 'temporarily_unavailable',
    description: 'The gateway cannot decide at the moment; this is temporary, retry.',
  },
};

export function wordingOf<R extends ProxyRefusal['reason']>(refusal: RefusalOf<R>): Wording {
  const words: Wording | ((refusal: RefusalOf<R>) => Wording) = WORDS[refusal.reason];
  return typeof words === 'function' ? words(refusal) : words;
}

/** For the log. */
export function reasonOf(refusal: ProxyRefusal): string {
  if (refusal.reason === 'token_invalid') return `token_${refusal.why}`;
  return refusal.reason === 'malformed' ? `malformed: ${refusal.detail}` : refusal.reason;
}

/** RFC 9110 §5.6.4: inside a quoted string, quotes and backslashes are escaped. */
const quoted = (text: string): string =>
  `"${text.replace(/[^\x20-\x7e]/g, '?').replace(/["\\]/g, String.raw`\$&`)}"`;

/** RFC 6750 §3: a request without a token learns only that one is needed. */
export function challenge(refusal: ProxyRefusal, realm: string): string | undefined {
  const words = wordingOf(refusal);
  if (words.status === 401 && refusal.reason === 'token_missing') return `Bearer realm=${quoted(realm)}`;
  if (words.error !== 'invalid_token' && words.error !== 'insufficient_scope') return undefined;
  const scope = 'scope' in refusal && refusal.scope !== undefined ? `, scope=${quoted(refusal.scope)}` : '';
  return `Bearer realm=${quoted(realm)}, error=${quoted(words.error)}, error_description=${quoted(words.description)}${scope}`;
}

const SERVED_METHODS = 'GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS';

export interface RefusalTerms {
  readonly realm: string;
  readonly requestId: string;
  /** Told in another way than the table says. */
  readonly instead?: { readonly status: number; readonly close: boolean };
  /** For pages of other origins, so that they can read it. */
  readonly cors?: Readonly<Record<string, string>> | undefined;
}

/** A refusal as it is told to a stranger. */
export function refusalAnswer(refusal: ProxyRefusal, terms: RefusalTerms): EarlyAnswer {
  const words = wordingOf(refusal);
  const { status, close = false } = terms.instead ?? words;
  const { error, description } = words;
  const text = JSON.stringify({ error, error_description: description, request_id: terms.requestId });
  const asked = challenge(refusal, terms.realm);
  return {
    status,
    text,
    close,
    headers: {
      'content-type': 'application/json; charset=utf-8',
      'x-content-type-options': 'nosniff',
      'x-request-id': terms.requestId,
      ...(status === 405 && { allow: SERVED_METHODS }),
      // RFC 6455 §4.4, RFC 9110 §15.5.22.
      ...(status === 426 && { upgrade: 'websocket', 'sec-websocket-version': '13' }),
      ...(asked !== undefined && { 'www-authenticate': asked }),
      ...('retryAfter' in refusal && { 'retry-after': String(refusal.retryAfter) }),
      ...terms.cors,
    },
  };
}

/** Sends a refusal that nobody may store, and leaves the connection fit for what comes next, or closed. */
export const refuse = (response: ServerResponse, refusal: ProxyRefusal, terms: RefusalTerms): void =>
  answerEarly(response, refusalAnswer(refusal, terms));

export interface EarlyAnswer {
  readonly status: number;
  readonly text: string;
  readonly close: boolean;
  readonly headers: Readonly<Record<string, string>>;
}

/** Answers, for nobody to store, before the body of the request was read. */
export function answerEarly(response: ServerResponse, { status, text, close, headers }: EarlyAnswer): void {
  if (response.headersSent || response.destroyed) return;
  const { req: request } = response;
  // A client that was not told to continue may send its body or may not: nobody can say where the next request starts.
  const unclear = request.headers.expect !== undefined && !request.complete;
  // The listener goes by it when more requests came in the same breath.
  if (close || unclear) response.shouldKeepAlive = false;
  response.writeHead(status, {
    // RFC 9110 §8.6: no Content-Length in a 204.
    ...(status !== 204 && { 'content-length': Buffer.byteLength(text) }),
    'cache-control': 'no-store',
    ...headers,
    ...((close || unclear) && { connection: 'close' }),
  });
  const body = request.method === 'HEAD' ? '' : text;
  // Over HTTP/2 the rest is of this request alone: the listener says that it is not wanted (RFC 9113 §8.1).
  if (request.complete || unclear || request.httpVersion === '2') {
    response.end(body);
    return;
  }
  if (close && body !== '') {
    // Closing while the client still sends would reset the connection and take this answer with it: listen a little longer.
    response.write(body);
    endsItself(response);
    discardRest(request, () => response.end());
    return;
  }
  response.end(body);
  discardRest(request, (arrived) => {
    if (!arrived) request.destroy();
  });
}

const DISCARD_BYTES = 1_048_576;
const DISCARD_MS = 2_000;

/**
 * Reads and forgets the rest of a body nobody wants, within a size and a time. `done` learns whether all of it
 * arrived; it is not called when the client leaves.
 */
export function discardRest(request: IncomingMessage, done: (arrived: boolean) => void): void {
  if (request.readableEnded) return done(true);
  let left = DISCARD_BYTES;
  const stop = (): void => {
    clearTimeout(timer);
    request.off('data', count).off('end', ended).off('close', stop);
  };
  const finish = (arrived: boolean): void => {
    stop();
    done(arrived);
  };
  const ended = (): void => finish(true);
  const count = (part: Buffer): void => {
    left -= part.length;
    if (left < 0) finish(false);
  };
  const timer = setTimeout(() => finish(false), DISCARD_MS);
  request
    .on('data', count)
    .on('end', ended)
    .on('close', stop)
    .on('error', () => {});
  request.resume();
}
