import { randomBytes, timingSafeEqual } from 'node:crypto';
import { z } from 'zod';
import type { Epoch } from '../domain/epoch.ts';
import { LANGUAGES } from '../domain/language.ts';
import type { RevocationLog } from '../ports/revocation-log.ts';
import type { Sealer } from '../ports/sealer.ts';
import { cookieFlags, cookieValues } from './cookies.ts';

/**
 * One person's walk through the pages, kept whole in a sealed cookie: any worker or replica can go on with it.
 * It tells nothing its holder does not know already.
 */
export const Session = z.strictObject({
  id: z.string().length(22),
  expires: z.number(),
  wrongCodes: z.int().min(0),
  /** Who is signed in. The id is a new one from that moment on. */
  identity: z.string().exactOptional(),
  /** When they signed in. */
  since: z.number().exactOptional(),
  /** What a provider calls them, where the directory knows no name. */
  shownAs: z.string().exactOptional(),
  /** The device request it is about, and the code as it was typed. */
  request: z.strictObject({ id: z.string(), clientId: z.string(), code: z.string() }).exactOptional(),
  /** What was decided about that request. */
  ended: z.enum(['approved', 'denied']).exactOptional(),
  /** Why they sign in, where it is not for a device request: to see what they have approved, or to enter a code. */
  goal: z.enum(['grants', 'code']).exactOptional(),
  /** The code that they typed before they had to sign in. */
  typed: z.string().max(16).exactOptional(),
  /** Whose grant was revoked a moment ago. */
  revoked: z.string().exactOptional(),
  language: z.enum(LANGUAGES).exactOptional(),
});
export type Session = Readonly<z.output<typeof Session>>;

/** Over https the cookie is locked to this host and to TLS by its name; plain http, for development, cannot. */
export const sessionCookie = (publicUrl: string): string =>
  publicUrl.startsWith('https:') ? '__Host-gatehouse' : 'gatehouse';

const COOKIE = 'device page session';
const FORM = 'device page form';

export interface SessionDeps {
  readonly sealer: Sealer;
  readonly now: () => Epoch;
  readonly lifetime: number;
  readonly publicUrl: string;
  /** Where sessions that were signed out are denied, by every worker and replica. */
  readonly revocations: RevocationLog;
}

export interface Sessions {
  begin(wrongCodes?: number): Session;
  /** The same session under a new id and with its whole time ahead. */
  renew(session: Session): Session;
  extend(session: Session): Session;
  /** Undefined too when its owner has signed out, or the identity was revoked since the sign-in. */
  read(cookies: string | undefined): Session | undefined;
  cookie(session: Session): string;
  /** A copy of its cookie is worth nothing from here on. */
  end(session: Session): Promise<void>;
  /** Belongs to one session, one form and, where the form is about one, to one device request or grant. */
  formToken(session: Session, form: string, about?: string): string;
  isFormToken(token: string, session: Session, form: string, about?: string): boolean;
}

export function createSessions({ sealer, now, lifetime, publicUrl, revocations }: SessionDeps): Sessions {
  const name = sessionCookie(publicUrl);
  const newId = (): string => randomBytes(16).toString('base64url');
  const end = (): Epoch => Math.floor(now()) + lifetime;
  const claim = (session: Session, form: string, about = ''): string => [session.id, form, about].join('\n');
  // A session's id has the form of a grant's and is as random: the log that ends grants ends sessions as well.
  const isEnded = ({ id, identity, since, expires }: Session): boolean =>
    identity !== undefined &&
    revocations.isRevoked({
      grantId: id,
      generation: Number.MAX_SAFE_INTEGER,
      clientId: '',
      identity,
      issuedAt: since ?? expires - lifetime,
    });

  return {
    begin: (wrongCodes = 0) => ({ id: newId(), expires: end(), wrongCodes }),
    renew: (session) => ({ ...session, id: newId(), expires: end() }),
    extend: (session) => ({ ...session, expires: end() }),
    read(cookies) {
      const values = cookieValues(cookies, name);
      // Two of one name: somebody else has put one there, and we cannot tell which.
      if (values.length !== 1 || values[0] === undefined) return undefined;
      const text = sealer.open(COOKIE, values[0]);
      if (text === undefined) return undefined;
      const session = Session.safeParse(parsed(text));
      if (!session.success || now() >= session.data.expires) return undefined;
      return isEnded(session.data) ? undefined : session.data;
    },
    cookie(session) {
      const age = Math.max(0, Math.ceil(session.expires - now()));
      return `${name}=${sealer.seal(COOKIE, JSON.stringify(session))}; ${cookieFlags(name, age, 'Strict')}`;
    },
    async end({ id, identity, expires }) {
      if (identity === undefined) return;
      await revocations.announce({
        of: 'grant',
        grantId: id,
        belowGeneration: Number.POSITIVE_INFINITY,
        keepUntil: Math.ceil(expires) + 60,
      });
    },
    formToken: (session, form, about) => sealer.digest(FORM, claim(session, form, about)),
    isFormToken: (token, session, form, about) =>
      sealer.digests(FORM, claim(session, form, about)).some((expected) => sameText(expected, token)),
  };
}

export function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

export function sameText(a: string, b: string): boolean {
  const [one, other] = [Buffer.from(a), Buffer.from(b)];
  return one.length === other.length && timingSafeEqual(one, other);
}
