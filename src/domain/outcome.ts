import type { Refusal } from './refusal.ts';

/** A result, or the reason of a refusal. */
export type Outcome<T> = { readonly ok: true; readonly value: T } | { readonly ok: false; readonly refusal: Refusal };

export const ok = <T>(value: T): Outcome<T> => ({ ok: true, value });

export const refused = (refusal: Refusal): Outcome<never> => ({ ok: false, refusal });

export const refuseMalformed = (detail: string): Outcome<never> => refused({ reason: 'request_malformed', detail });
