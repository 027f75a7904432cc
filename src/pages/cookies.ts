import type { z } from 'zod';
import type { Sealer } from '../tokens/sealer.ts';

export interface SealedCookieOptions<T> {
  readonly name: string;
  readonly purpose: string;
  readonly schema: z.ZodType<T>;
  /** `Lax` cookies are also sent when another site redirects the browser here. */
  readonly sameSite: 'Strict' | 'Lax';
}

/** A cookie with a sealed JSON value. */
export function createSealedCookie<T>(sealer: Sealer, options: SealedCookieOptions<T>) {
  const { name, purpose, schema, sameSite } = options;
  const formatValue = (value: string, maxAge: number): string => formatCookie(name, value, { maxAge, sameSite });
  return {
    /** Undefined for a missing, repeated, forged or malformed cookie. */
    read(cookies: Cookies): T | undefined {
      const value = readCookie(cookies, name);
      const text = value === undefined ? undefined : sealer.open(purpose, value);
      return text === undefined ? undefined : schema.safeParse(parseJson(text)).data;
    },
    /** The value of `Set-Cookie`. */
    format: (value: T, maxAge: number): string => formatValue(sealer.seal(purpose, JSON.stringify(value)), maxAge),
    formatCleared: (): string => formatValue('', 0),
  };
}

interface CookieAttributes {
  readonly maxAge: number;
  readonly sameSite: 'Strict' | 'Lax';
  readonly path?: string;
}

/** The value of `Set-Cookie`. `__Host-` requires the whole host and TLS. */
export const formatCookie = (name: string, value: string, { maxAge, sameSite, path = '/' }: CookieAttributes): string =>
  `${name}=${value}; Path=${path}; Max-Age=${maxAge}; HttpOnly; SameSite=${sameSite}${name.startsWith('__Host-') ? '; Secure' : ''}`;

/** The value of the cookie; undefined if it is missing, or repeated: one was set by another site of the domain then. */
export function readCookie(cookies: Cookies, name: string): string | undefined {
  const [value, ...others] = cookies.get(name) ?? [];
  return others.length === 0 ? value : undefined;
}

/** The values of each cookie: more than one if another site of the domain has set it too. */
export type Cookies = ReadonlyMap<string, readonly string[]>;

export function parseCookies(header: string | undefined): Cookies {
  const cookies = new Map<string, string[]>();
  for (const field of (header ?? '').split(';')) {
    const pair = field.trim();
    const separator = pair.indexOf('=');
    if (separator === -1) continue;
    const [name, value] = [pair.slice(0, separator), pair.slice(separator + 1)];
    const values = cookies.get(name);
    if (values === undefined) cookies.set(name, [value]);
    else values.push(value);
  }
  return cookies;
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
