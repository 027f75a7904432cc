import type { Refusal } from './refusal.ts';

/** What a decision returns: the thing asked for, or the reason it was refused. */
export type Outcome<T> =
  | { readonly ok: true; readonly value: T }
  | { readonly ok: false; readonly refusal: Refusal };

export const granted = <T>(value: T): Outcome<T> => ({ ok: true, value });

export const refused = (refusal: Refusal): Outcome<never> => ({ ok: false, refusal });
