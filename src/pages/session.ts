import { randomBytes } from 'node:crypto';
import * as z from 'zod';
import type { Epoch } from '../domain/grant.ts';
import { LANGUAGES } from '../domain/language.ts';
import type { GrantDeps } from '../grants/deps.ts';
import { isEqualConstantTime } from '../lib/constant-time.ts';
import { createSealedCookie, parseCookies } from './cookies.ts';

/** The state of one browser on the pages. It is kept in a sealed cookie, so that any worker or replica can continue. */
export const Session = z.strictObject({
  id: z.string().length(22),
  expires: z.number(),
  wrongCodes: z.int().min(0),
  /** The signed-in user. Signing in changes the id of the session. */
  identity: z.string().exactOptional(),
  /** Time of the sign-in. */
  since: z.number().exactOptional(),
  /** The authorization request on whose pages the user signed in. */
  signedInFor: z.string().exactOptional(),
  /** The last revocation that was known before the sign-in, as of a grant. */
  issuedAfter: z.number().exactOptional(),
  /** When the user authenticated at the OpenID provider, which may be long before; 0: unknown. Omitted: at the sign-in. */
  authenticatedAt: z.number().exactOptional(),
  /** Display name from the OpenID provider, for users without one in the directory. */
  shownAs: z.string().exactOptional(),
  /** As of the sign-in. */
  profile: z.strictObject({ name: z.string().exactOptional(), email: z.string().exactOptional() }).exactOptional(),
  /** Names the OpenID provider that the user signed in with. */
  assertedGroups: z.strictObject({ provider: z.string(), groups: z.array(z.string()).readonly() }).exactOptional(),
  /** The device request and its code as typed. */
  request: z.strictObject({ id: z.string(), clientId: z.string(), code: z.string() }).exactOptional(),
  /** The decision about that request. */
  ended: z.enum(['approved', 'denied']).exactOptional(),
  /** Purpose of the sign-in if it is not to decide a device request: to list grants or to enter a code. */
  goal: z.enum(['grants', 'code']).exactOptional(),
  /** A code typed before the sign-in. */
  typed: z.string().max(16).exactOptional(),
  /** Integration of a grant that was just revoked. */
  revoked: z.string().exactOptional(),
  language: z.enum(LANGUAGES).exactOptional(),
});
export type Session = Readonly<z.output<typeof Session>>;

/** Without what belongs to the signed-in user. */
export function withoutSignIn(session: Session): Session {
  const {
    identity: _identity,
    since: _since,
    signedInFor: _signedInFor,
    issuedAfter: _issuedAfter,
    authenticatedAt: _authenticatedAt,
    shownAs: _shownAs,
    profile: _profile,
    assertedGroups: _assertedGroups,
    ...rest
  } = session;
  return rest;
}

/** `__Host-` binds the cookie to this host and to TLS; browsers reject it over plain HTTP (development). */
export const sessionCookieName = (publicUrl: string): string =>
  publicUrl.startsWith('https:') ? '__Host-gatehouse' : 'gatehouse';

const FORM_TOKEN_PURPOSE = 'device page form';

export type Sessions = ReturnType<typeof createSessions>;

/** Signed-out sessions are revoked for all workers and replicas. `lifetime`: in seconds. */
export function createSessions(
  { sealer, now, store: { revocations } }: Pick<GrantDeps, 'sealer' | 'now' | 'store'>,
  publicUrl: string,
  lifetime: number,
) {
  const cookie = createSealedCookie(sealer, {
    name: sessionCookieName(publicUrl),
    purpose: 'device page session',
    schema: Session,
    sameSite: 'Strict',
  });
  const newId = (): string => randomBytes(16).toString('base64url');
  const getExpiry = (): Epoch => Math.floor(now()) + lifetime;
  const formTokenPayload = (session: Session, form: string, subject = ''): string =>
    [session.id, form, subject].join('\n');
  // Session ids have the form and the entropy of grant ids: the revocation log of grants serves sessions as well.
  const isRevoked = ({ id, identity, since, issuedAfter = 0, expires }: Session): boolean =>
    identity !== undefined &&
    revocations.isRevoked({
      grantId: id,
      generation: Number.MAX_SAFE_INTEGER,
      clientId: '',
      identity,
      issuedAt: since ?? expires - lifetime,
      issuedAfter,
    });

  return {
    create: (wrongCodes = 0): Session => ({ id: newId(), expires: getExpiry(), wrongCodes }),
    /** The same session with a new id and a full lifetime. */
    renew: (session: Session): Session => ({ ...session, id: newId(), expires: getExpiry() }),
    extend: (session: Session): Session => ({ ...session, expires: getExpiry() }),
    /** Undefined also for a signed-out session, and if the identity was revoked after the sign-in. */
    read(cookieHeader: string | undefined): Session | undefined {
      const session = cookie.read(parseCookies(cookieHeader));
      if (session === undefined || now() >= session.expires || isRevoked(session)) return undefined;
      return session;
    },
    formatCookie: (session: Session): string => cookie.format(session, Math.max(0, Math.ceil(session.expires - now()))),
    /** Invalidates all copies of the cookie. */
    async revoke({ id, identity, expires }: Session): Promise<void> {
      if (identity === undefined) return;
      await revocations.announce({
        of: 'grant',
        grantId: id,
        belowGeneration: Number.POSITIVE_INFINITY,
        keepUntil: Math.ceil(expires) + 60,
      });
    },
    /** A CSRF token for one session, one form and, where given, one device request or grant. */
    createFormToken: (session: Session, form: string, subject?: string): string =>
      sealer.digest(FORM_TOKEN_PURPOSE, formTokenPayload(session, form, subject)),
    isValidFormToken: (token: string, session: Session, form: string, subject?: string): boolean =>
      sealer
        .digests(FORM_TOKEN_PURPOSE, formTokenPayload(session, form, subject))
        .some((expected) => isEqualConstantTime(expected, token)),
  };
}
