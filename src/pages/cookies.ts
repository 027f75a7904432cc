import type { z } from 'zod';
import type { Sealer } from '../ports/sealer.ts';

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
  const secure = name.startsWith('__Host-') ? '; Secure' : '';
  const formatValue = (value: string, maxAge: number): string =>
    `${name}=${value}; Path=/; Max-Age=${maxAge}; HttpOnly; SameSite=${sameSite}${secure}`;
  return {
    /** Undefined for a missing, repeated, forged or malformed cookie. */
    read(cookieHeader: string | undefined): T | undefined {
      const [value, ...others] = readCookieValues(cookieHeader, name);
      // With two cookies of this name, one was set by another site of the domain: neither can be trusted.
      if (value === undefined || others.length > 0) return undefined;
      const text = sealer.open(purpose, value);
      return text === undefined ? undefined : schema.safeParse(parseJson(text)).data;
    },
    /** The value of `Set-Cookie`. */
    format: (value: T, maxAge: number): string =>
      formatValue(sealer.seal(purpose, JSON.stringify(value)), maxAge),
    formatCleared: (): string => formatValue('', 0),
  };
}

/** All values of a cookie: more than one if another site of the domain has set it too. */
export function readCookieValues(header: string | undefined, name: string): string[] {
  return (header ?? '')
    .split(';')
    .map((pair) => pair.trim())
    .filter((pair) => pair.startsWith(`${name}=`))
    .map((pair) => pair.slice(name.length + 1));
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
