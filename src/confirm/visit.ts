import type { GrantDesk } from '../grants/desk.ts';
import type { Call } from '../http/call.ts';
import type { RateLimit } from '../http/rate-limit.ts';
import type { OpenIdProvider } from '../identity/openid.ts';
import type { Fields } from './form.ts';
import type { ConfirmMemory } from './guess-limit.ts';
import type { Page } from './layout.ts';
import type { Look } from './look.ts';
import type { Session, Sessions } from './session.ts';
import type { Form } from './views.ts';
import type { Words } from './words.ts';

export interface ConfirmRates {
  /** Every request of an address. */
  readonly page: RateLimit;
  /** Wrong codes of people who are not signed in: of an address, of a network, and of all together. */
  readonly codeGuesses: RateLimit;
  readonly networkCodeGuesses: RateLimit;
  readonly allCodeGuesses: RateLimit;
  /** Wrong codes of one signed-in person. */
  readonly identityCodeGuesses: RateLimit;
}

/** Where forms go and pages are, below the base path. */
export type Place =
  | ''
  | '/sign-in'
  | '/certificate'
  | '/openid'
  | '/review'
  | '/approve'
  | '/deny'
  | '/sign-out'
  | '/done'
  | '/grants'
  | '/grant'
  | '/revoke';

/** One request on its way through the story. */
export interface Visit {
  readonly call: Call;
  readonly session: Session;
  /** The address, as limits count it. */
  readonly from: string;
}

/** What a step answers: a page, or the way to the next one; and the session, when it is another from now on. */
export type Reply = ({ readonly page: Page } | { readonly go: Place }) & {
  readonly session?: Session;
  readonly cookies?: readonly string[];
};

/** What every step works with. */
export interface Room {
  readonly desk: GrantDesk;
  readonly memory: ConfirmMemory;
  readonly rates: ConfirmRates;
  readonly sessions: Sessions;
  readonly words: Words;
  readonly look: Look;
  readonly providers: ReadonlyMap<string, OpenIdProvider>;
  readonly journeyCookie: string;
  readonly certificateOf: (call: Call) => Uint8Array | undefined;
  readonly at: (place: Place) => string;
  /** Where a provider sends people back to. */
  readonly redirectUri: (provider: string) => string;
  /** `about`: the grant it is about; forms about a device request take that from the session. */
  readonly form: (session: Session, place: Place, about?: string) => Form;
}

/** What a form is about: its token is good for nothing else. */
export function aboutOf(session: Session, place: Place, fields?: Fields): string | undefined {
  switch (place) {
    // Forms that lead to a decision, or to the list of grants.
    case '/sign-in':
    case '/certificate':
    case '/openid':
      return session.goal ?? session.request?.id;
    // Forms that decide about one device request.
    case '/approve':
    case '/deny':
      return session.request?.id;
    case '/revoke':
      return fields?.get('grant');
    case '':
    case '/review':
    case '/sign-out':
    case '/done':
    case '/grants':
    case '/grant':
      return undefined;
  }
}
