import { randomBytes, randomInt } from 'node:crypto';
import * as z from 'zod';
import { addResponseParameters } from '../domain/redirect-uri.ts';
import { AuthorizationRequest, isStillRegistered } from '../grants/authorization-request.ts';
import type { GrantDeps } from '../grants/deps.ts';
import { getQuery } from '../http/query.ts';
import type { RequestContext } from '../http/request-context.ts';
import type { Sealer } from '../tokens/sealer.ts';
import { createSealedCookie, parseCookies } from './cookies.ts';
import type { PagePath } from './page-handler.ts';
import type { Session } from './session.ts';

/**
 * An authorization request that is being handled by the pages, encrypted in their URLs. It is not in the session, so that each tab can
 * have its own, and it is bound to the browser in which it began.
 */
export const Transaction = z.strictObject({
  request: AuthorizationRequest,
  browser: z.string().length(22),
  /** `iss` of the response (RFC 9207). */
  issuer: z.string(),
});
export type Transaction = Readonly<z.output<typeof Transaction>>;

/** The query parameter of the pages. */
const PARAMETER = 'request';
const PURPOSE = 'authorization transaction';

/** The pages that belong to a transaction if the request has one. */
const TRANSACTION_PATHS: ReadonlySet<PagePath> = new Set<PagePath>([
  '/sign-in',
  '/certificate',
  '/openid',
  '/review',
  '/approve',
  '/deny',
  '/sign-out',
]);

const BROWSER_LIFETIME = 86_400;

const BROWSER_COOKIES = 16;

/**
 * Identifies a browser across transactions. `Lax`: other sites redirect to the authorization endpoint. Apps may open several tabs at
 * once, before the browser has the cookie of the first response. With one name, the last response would replace the ids of the
 * others, so the name of a new cookie is one of several.
 */
export function createBrowserCookie(sealer: Sealer, sessionCookieName: string) {
  const cookies = Array.from({ length: BROWSER_COOKIES }, (_, index) =>
    createSealedCookie(sealer, {
      name: `${sessionCookieName}-browser-${index}`,
      purpose: 'browser of authorization requests',
      schema: z.strictObject({ id: z.string().length(22) }),
      sameSite: 'Lax',
    }),
  );
  const format = (index: number, id: string): string => cookies[index]?.format({ id }, BROWSER_LIFETIME) ?? '';
  return {
    /** Is this an id of the browser? */
    includes(cookieHeader: string | undefined, id: string): boolean {
      const received = parseCookies(cookieHeader);
      return cookies.some((cookie) => cookie.read(received)?.id === id);
    },
    /** An id of the browser, or a new one, and the value of `Set-Cookie`. */
    renew(cookieHeader: string | undefined): { readonly id: string; readonly cookie: string } {
      const received = parseCookies(cookieHeader);
      for (const [index, cookie] of cookies.entries()) {
        const known = cookie.read(received);
        if (known !== undefined) return { id: known.id, cookie: format(index, known.id) };
      }
      const id = randomBytes(16).toString('base64url');
      return { id, cookie: format(randomInt(BROWSER_COOKIES), id) };
    },
  };
}

export type BrowserCookie = ReturnType<typeof createBrowserCookie>;

const encryptTransaction = (sealer: Sealer, transaction: Transaction): string =>
  sealer.encrypt(PURPOSE, JSON.stringify(transaction));

export const isTransactionPath = (path: unknown): boolean => TRANSACTION_PATHS.has(path as PagePath);

/** `expired`: there is one, but it is forged, too old, of another browser, or its client was changed. */
export function readTransaction(
  deps: Pick<GrantDeps, 'sealer' | 'now' | 'integrations'>,
  { request }: RequestContext,
  browserCookie: BrowserCookie,
): Transaction | 'expired' | undefined {
  const [encrypted, ...others] = new URLSearchParams(getQuery(request)).getAll(PARAMETER);
  if (encrypted === undefined) return undefined;
  const text = deps.sealer.decrypt(PURPOSE, encrypted);
  const transaction = text === undefined ? undefined : Transaction.safeParse(JSON.parse(text)).data;
  if (transaction === undefined || others.length > 0) return 'expired';
  const isUsable =
    deps.now() < transaction.request.expires &&
    browserCookie.includes(request.headers['cookie'], transaction.browser) &&
    isStillRegistered(deps, transaction.request);
  return isUsable ? transaction : 'expired';
}

/** Is the user signed in, and recently enough for the request? */
export function isSignInSufficient(
  transaction: Transaction | undefined,
  { identity, since = 0, signedInFor, authenticatedAt = since }: Session,
): boolean {
  if (transaction === undefined || identity === undefined) return identity !== undefined;
  const { id, signedInAfter = -1, authenticatedSince = 0 } = transaction.request;
  return (since > signedInAfter || signedInFor === id) && authenticatedAt >= authenticatedSince;
}

/** Page URLs that continue the transaction. */
export function createTransactionUrls(
  sealer: Sealer,
  urlFor: (path: PagePath) => string,
  transaction: Transaction,
): (path: PagePath) => string {
  const query = `?${PARAMETER}=${encryptTransaction(sealer, transaction)}`;
  return (path) => (TRANSACTION_PATHS.has(path) ? `${urlFor(path)}${query}` : urlFor(path));
}

/** RFC 6749 §4.1.2 and §4.1.2.1, with `iss` (RFC 9207 §2). */
export const formatAuthorizationResponse = (
  { redirectUri, state }: { readonly redirectUri: string; readonly state?: string | undefined },
  issuer: string,
  parameters: Readonly<Record<string, string>>,
): string => addResponseParameters(redirectUri, { ...parameters, ...(state !== undefined && { state }), iss: issuer });
