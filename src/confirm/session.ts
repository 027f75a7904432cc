import { randomBytes, timingSafeEqual } from 'node:crypto';
import { z } from 'zod';
import type { Epoch } from '../domain/epoch.ts';
import type { Sealer } from '../ports/sealer.ts';

/**
 * One person's walk through the pages, kept whole in a sealed cookie: any worker or replica can go on with it.
 * It tells nothing its holder does not know already.
 */
const Session = z.strictObject({
  id: z.string().length(22),
  expires: z.number(),
  wrongCodes: z.int().min(0),
  /** Who is signed in. The id is a new one from that moment on. */
  identity: z.string().exactOptional(),
  /** The device request it is about, and the code as it was typed. */
  request: z.strictObject({ id: z.string(), clientId: z.string(), code: z.string() }).exactOptional(),
  /** What was decided about that request. */
  ended: z.enum(['approved', 'denied']).exactOptional(),
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
}

export interface Sessions {
  begin(wrongCodes?: number): Session;
  /** The same session under a new id and with its whole time ahead. */
  renew(session: Session): Session;
  extend(session: Session): Session;
  read(cookies: string | undefined): Session | undefined;
  cookie(session: Session): string;
  /** Belongs to one session, one form and, where the form is about one, to one device request. */
  formToken(session: Session, form: string, requestId?: string): string;
  isFormToken(token: string, session: Session, form: string, requestId?: string): boolean;
}

export function createSessions({ sealer, now, lifetime, publicUrl }: SessionDeps): Sessions {
  const name = sessionCookie(publicUrl);
  const secure = name.startsWith('__Host-') ? '; Secure' : '';
  const newId = (): string => randomBytes(16).toString('base64url');
  const end = (): Epoch => Math.floor(now()) + lifetime;
  const claim = (session: Session, form: string, requestId = ''): string =>
    [session.id, form, requestId].join('\n');

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
      return session.success && now() < session.data.expires ? session.data : undefined;
    },
    cookie(session) {
      const age = Math.max(0, Math.ceil(session.expires - now()));
      const flags = `Path=/; Max-Age=${age}; HttpOnly; SameSite=Strict${secure}`;
      return `${name}=${sealer.seal(COOKIE, JSON.stringify(session))}; ${flags}`;
    },
    formToken: (session, form, requestId) => sealer.digest(FORM, claim(session, form, requestId)),
    isFormToken: (token, session, form, requestId) =>
      sealer.digests(FORM, claim(session, form, requestId)).some((expected) => sameText(expected, token)),
  };
}

function cookieValues(header: string | undefined, name: string): string[] {
  return (header ?? '')
    .split(';')
    .map((pair) => pair.trim())
    .filter((pair) => pair.startsWith(`${name}=`))
    .map((pair) => pair.slice(name.length + 1));
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function sameText(a: string, b: string): boolean {
  const [one, other] = [Buffer.from(a), Buffer.from(b)];
  return one.length === other.length && timingSafeEqual(one, other);
}
