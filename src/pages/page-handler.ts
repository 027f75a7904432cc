import type { GrantDeps } from '../grants/deps.ts';
import type { RequestContext } from '../http/request-context.ts';
import type { OpenIdProvider } from '../identity/openid-provider.ts';
import type { RateLimiter } from '../lib/rate-limiter.ts';
import type { AttemptLimits } from './attempt-limits.ts';
import type { FormFields } from './form.ts';
import type { createPendingSignInCookie } from './handlers/openid-sign-in.ts';
import type { Session, Sessions } from './session.ts';
import type { BrowserCookie, Transaction } from './transaction.ts';
import type { Page } from './views/layout.ts';
import type { Messages } from './views/messages/languages.ts';
import type { Theme } from './views/theme.ts';

export interface PageRateLimits {
  /** All requests of an address. */
  readonly page: RateLimiter;
  /** Wrong codes of users who are not signed in: by address, by network and in total. */
  readonly codeGuesses: RateLimiter;
  readonly networkCodeGuesses: RateLimiter;
  readonly allCodeGuesses: RateLimiter;
  /** Wrong codes of a signed-in user. */
  readonly identityCodeGuesses: RateLimiter;
}

/** Paths of pages and form actions, relative to the base path. */
export type PagePath =
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

export interface PageRequest {
  readonly context: RequestContext;
  readonly session: Session;
  /** Rate-limit key of the client address. */
  readonly clientKey: string;
}

/** `session` replaces the session of the request. `location`: the redirect URI of a client. */
export type PageResponse = (
  | { readonly page: Page }
  | { readonly redirect: PagePath }
  | { readonly location: string }
) & {
  readonly session?: Session;
  readonly cookies?: readonly string[];
};

export type PageHandler = (deps: PageDeps, pageRequest: PageRequest) => Promise<PageResponse>;
export type FormHandler = (deps: PageDeps, pageRequest: PageRequest, fields: FormFields) => Promise<PageResponse>;

export interface PageDeps {
  readonly grantDeps: GrantDeps;
  readonly attemptLimits: AttemptLimits;
  readonly rateLimits: PageRateLimits;
  readonly sessions: Sessions;
  readonly messages: Messages;
  readonly theme: Theme;
  /** Whether any client can use the device flow. */
  readonly offersDevice: boolean;
  readonly providers: ReadonlyMap<string, OpenIdProvider>;
  readonly pendingSignInCookie: ReturnType<typeof createPendingSignInCookie>;
  /** The client certificate (DER), of the connection or forwarded by a front proxy. */
  readonly getCertificate: (context: RequestContext) => Uint8Array | undefined;
  /** Continues the transaction, if there is one. */
  readonly urlFor: (path: PagePath) => string;
  /** The authorization request that the page is about; undefined: a device, or the grants of the user. */
  readonly transaction?: Transaction | undefined;
  readonly browserCookie: BrowserCookie;
  /** The same for the pages of a transaction. */
  readonly withTransaction: (transaction: Transaction | undefined) => PageDeps;
  /** Redirect URI registered with the OpenID provider. */
  readonly redirectUri: (provider: string) => string;
}

/** The scope and the audience that an approval form displays. */
export const SCOPE_FIELD = 'scope';
export const AUDIENCE_FIELD = 'audience';

/** What the token of an approval form is bound to. */
export const formatApprovalSubject = (
  requestId: string,
  scope: string | undefined,
  audience: string | undefined,
): string => JSON.stringify([requestId, scope ?? '', audience ?? '']);

/** The request or grant that a form token is bound to, in addition to the session and the path. */
export function getFormSubject(
  { transaction }: Pick<PageDeps, 'transaction'>,
  session: Session,
  path: PagePath,
  fields?: FormFields,
): string | undefined {
  // The user approves what was displayed, whatever the configuration allows by then.
  if (transaction !== undefined)
    return path === '/approve'
      ? formatApprovalSubject(transaction.request.id, fields?.get(SCOPE_FIELD), fields?.get(AUDIENCE_FIELD))
      : transaction.request.id;
  if (path === '/approve' || path === '/deny') return session.request?.id;
  if (path === '/revoke') return fields?.get('grant');
  const isSignIn = path === '/sign-in' || path === '/certificate' || path === '/openid';
  return isSignIn ? (session.goal ?? session.request?.id) : undefined;
}
