import type { GrantDesk } from '../grants/desk.ts';
import type { Call } from '../http/call.ts';
import type { RateLimit } from '../http/rate-limit.ts';
import type { ConfirmMemory } from './guess-limit.ts';
import type { Page } from './layout.ts';
import type { Session, Sessions } from './session.ts';
import type { Form } from './views.ts';
import type { Words } from './words.ts';

export interface ConfirmRates {
  /** Every request of an address. */
  readonly page: RateLimit;
  /** Wrong codes of an address, and of all together. */
  readonly codeGuesses: RateLimit;
  readonly allCodeGuesses: RateLimit;
}

/** Where forms go and pages are, below the base path. */
export type Place =
  | ''
  | '/sign-in'
  | '/certificate'
  | '/review'
  | '/approve'
  | '/deny'
  | '/sign-out'
  | '/done';

/** One request on its way through the story. */
export interface Visit {
  readonly call: Call;
  readonly session: Session;
  /** The address, as limits count it. */
  readonly from: string;
}

/** What a step answers: a page, or the way to the next one; and the session, when it is another from now on. */
export type Reply =
  | { readonly page: Page; readonly session?: Session }
  | { readonly go: Place; readonly session?: Session };

/** What every step works with. */
export interface Room {
  readonly desk: GrantDesk;
  readonly memory: ConfirmMemory;
  readonly rates: ConfirmRates;
  readonly sessions: Sessions;
  readonly words: Words;
  readonly certificateOf: (call: Call) => Uint8Array | undefined;
  readonly at: (place: Place) => string;
  readonly form: (session: Session, place: Place) => Form;
}

/** Forms that decide something about a device request are good for that request only. */
const ABOUT_REQUEST: ReadonlySet<Place> = new Set<Place>(['/sign-in', '/certificate', '/approve', '/deny']);

export const aboutRequest = (session: Session, place: Place): string | undefined =>
  ABOUT_REQUEST.has(place) ? session.request?.id : undefined;
