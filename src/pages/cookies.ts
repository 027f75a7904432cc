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
  const secure = name.startsWith('__Host-') ? '; Secure' : '';
  const formatValue = (value: string, maxAge: number): string =>
    `${name}=${value}; Path=/; Max-Age=${maxAge}; HttpOnly; SameSite=${sameSite}${secure}`;
  return {
    /** Undefined for a missing, repeated, forged or malformed cookie. */
    read(cookies: Cookies): T | undefined {
      const [value, ...others] = cookies.get(name) ?? [];
      // With two cookies of this name, one was set by another site of the domain: neither can be trusted.
      if (value === undefined || others.length > 0) return undefined;
      const text = sealer.open(purpose, value);
      return text === undefined ? undefined : schema.safeParse(parseJson(text)).data;
    },
    /** The value of `Set-Cookie`. */
    format: (value: T, maxAge: number): string => formatValue(sealer.seal(purpose, JSON.stringify(value)), maxAge),
    formatCleared: (): string => formatValue('', 0),
  };
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
