import type { Refusal, RefusalOf, RefusalReason } from '../domain/refusal.ts';

/** The response for one refusal reason. */
interface WireError<R extends RefusalReason = RefusalReason> {
  readonly status: 400 | 401 | 429 | 503;
  readonly code: string;
  /** What failed and what to do; never secrets or data of other users. */
  readonly description: string | ((refusal: RefusalOf<R>) => string);
}

/** The responses of an API, or of one operation. A missing reason does not compile. */
export type ErrorTable = { readonly [R in RefusalReason]: WireError<R> };

interface ErrorDetails {
  readonly status: number;
  readonly code: string;
  readonly description: string;
}

export function describeRefusal(table: ErrorTable, refusal: Refusal): ErrorDetails {
  // The table is keyed by reason, so this refusal has the type that the row expects.
  const row = table[refusal.reason] as WireError<never> & {
    readonly description: string | ((refusal: Refusal) => string);
  };
  const { status, code, description } = row;
  return { status, code, description: typeof description === 'string' ? description : description(refusal) };
}
