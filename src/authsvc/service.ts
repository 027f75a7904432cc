import type { ShownCertificate } from '../domain/bearer.ts';
import type { Outcome } from '../domain/outcome.ts';
import type { Caller } from '../grants/caller.ts';
import type { GrantDesk } from '../grants/desk.ts';
import type { Answer } from '../http/answer.ts';
import type { Call } from '../http/call.ts';
import type { Encoding, Parameters } from '../http/parameters.ts';
import type { RateLimit } from '../http/rate-limit.ts';
import type { ErrorTable } from '../http/wire-error.ts';

/** What the token service's own face works with: the grant core and a few facts of this configuration generation. */
export interface Service {
  readonly desk: GrantDesk;
  readonly publicUrl: string;
  /** Origin of the confirmation pages. */
  readonly pagesUrl: string;
  /** The first service path: the one we name in answers. */
  readonly path: string;
  /** Seconds in which a request body must arrive. */
  readonly bodyTimeout: number;
  readonly rates: Rates;
  /** The client certificate of this call: from its TLS connection, or from a front proxy that is believed. */
  readonly certificateOf: (call: Call) => CallCertificate | undefined;
  /** The same, judged now: for tokens that are bound to it. */
  readonly shownCertificate: (call: Call) => ShownCertificate | undefined;
  /** Is it ambiguous which client certificate a front proxy forwards? */
  readonly isAmbiguous: (call: Call) => boolean;
  /** This process does not keep up: what can wait is told to come again. Left out: it always does. */
  readonly isPressed?: () => boolean;
}

export interface CallCertificate {
  readonly der: Uint8Array;
  /** SHA-256, base64url. */
  readonly fingerprint: string;
}

/** They outlive a configuration generation, so that a reload does not reset anybody's count. */
export interface Rates {
  readonly token: RateLimit;
  readonly certificate: RateLimit;
  readonly device: RateLimit;
  readonly revoke: RateLimit;
  readonly verify: RateLimit;
}

/** One operation of it. */
export interface Operation {
  readonly name: 'token' | 'certificate' | 'device' | 'revoke' | 'verify';
  readonly method: 'POST' | 'GET';
  /** HEAD is answered like GET, without a body; not where a GET has an effect. */
  readonly head: boolean;
  readonly path: string;
  readonly errors: ErrorTable;
  /** How our own failure is told: the specification knows only 400 on some routes. */
  readonly fault: { readonly status: 400 | 503; readonly code: string };
  readonly body?: { readonly known: readonly string[]; readonly accepted: readonly Encoding[] };
  /** Who makes the call, as far as its credential proves it. Omitted: always counted by address. */
  caller?(service: Service, call: Call, parameters: Parameters): Caller | Promise<Caller>;
  answer(service: Service, call: Call, parameters: Parameters): Promise<Outcome<Answer>>;
}
