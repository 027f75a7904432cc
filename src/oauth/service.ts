import type { ShownCertificate } from '../domain/bearer.ts';
import type { AccessEntry } from '../domain/integration.ts';
import type { Outcome } from '../domain/outcome.ts';
import type { Scope } from '../domain/scope.ts';
import type { Caller } from '../grants/caller.ts';
import type { GrantDesk } from '../grants/desk.ts';
import type { Answer } from '../http/answer.ts';
import type { Call } from '../http/call.ts';
import type { Parameters } from '../http/parameters.ts';
import type { RateLimit } from '../http/rate-limit.ts';
import type { ErrorTable } from '../http/wire-error.ts';

/** What the standard face works with: the grant core and a few facts of this configuration generation. */
export interface OAuthService {
  readonly desk: GrantDesk;
  /** The issuer of our tokens. */
  readonly publicUrl: string;
  /** Origin of the confirmation pages. */
  readonly pagesUrl: string;
  /** The first service path: the one we name in answers. */
  readonly path: string;
  /** Seconds in which a request body must arrive. */
  readonly bodyTimeout: number;
  /** `certificate`: for what is given for a certificate, on this face as on the other. */
  readonly rates: Readonly<Record<OperationName | 'certificate', RateLimit>>;
  readonly certificateOf: (
    call: Call,
  ) => { readonly der: Uint8Array; readonly fingerprint: string } | undefined;
  /** The same, judged now: for tokens that are bound to it. */
  readonly shownCertificate: (call: Call) => ShownCertificate | undefined;
  /** Is it ambiguous which client certificate a front proxy forwards? */
  readonly isAmbiguous: (call: Call) => boolean;
  /** Who may ask about tokens: whoever shows a token with this scope, or a certificate of somebody named here. */
  readonly introspection: { readonly requires?: Scope; readonly access: readonly AccessEntry[] };
  /** Client certificates can be presented at all. */
  readonly certificates: boolean;
  readonly isPressed?: () => boolean;
}

export type OperationName = 'token' | 'device' | 'revoke' | 'introspect';

/** One operation of the standard face. All are POST with a form. */
export interface Operation {
  readonly name: OperationName;
  /** Below the service path. */
  readonly path: string;
  readonly known: readonly string[];
  readonly errors: (parameters: Parameters) => ErrorTable;
  /** Who makes the call, as far as its credential proves it. Omitted: always counted by address. */
  caller?(service: OAuthService, call: Call, parameters: Parameters): Caller | Promise<Caller>;
  answer(service: OAuthService, call: Call, parameters: Parameters): Promise<Outcome<Answer>>;
}
