import type { Refusal, RefusalOf, RefusalReason } from '../domain/refusal.ts';

/** What a stranger is told for one reason. */
export interface WireError<R extends RefusalReason = RefusalReason> {
  readonly status: 400 | 401 | 429 | 503;
  readonly code: string;
  /** Names the rule that failed, and what to do next; never another person's data, never a secret. */
  readonly description: string | ((refusal: RefusalOf<R>) => string);
}

/** One face's answers, or one operation's. Adding a reason without deciding its answer does not compile. */
export type ErrorTable = { readonly [R in RefusalReason]: WireError<R> };

/** A row that differs a little. */
export const as = <R extends RefusalReason>(
  row: WireError<R>,
  changed: Partial<WireError<R>>,
): WireError<R> => ({ ...row, ...changed });

export interface Told {
  readonly status: number;
  readonly code: string;
  readonly description: string;
}

export function describe(table: ErrorTable, refusal: Refusal): Told {
  // The table is keyed by reason, so a row's function takes exactly the refusal it is looked up by.
  const row = table[refusal.reason] as WireError<never> & {
    readonly description: string | ((refusal: Refusal) => string);
  };
  const { status, code, description } = row;
  return { status, code, description: typeof description === 'string' ? description : description(refusal) };
}
