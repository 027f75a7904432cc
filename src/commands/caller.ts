import type { Client } from '../client/client.ts';

/** Who is signed in. The names are known only if the token contains them (`tokens.claims`). */
export interface Caller {
  readonly username?: string;
  readonly email?: string;
  readonly identity?: string;
  readonly audience?: string;
}

/** From the introspection endpoint: Authorize/Verify has no names. */
export async function fetchCaller(client: Client): Promise<Caller> {
  const { username, email, sub, aud } = await client.introspect();
  return {
    ...(isText(username) && { username }),
    ...(isText(email) && { email }),
    ...(isText(sub) && { identity: sub }),
    ...(isText(aud) && { audience: aud }),
  };
}

const isText = (value: unknown): value is string => typeof value === 'string' && value !== '';

export const formatTime = (seconds: number): string => new Date(seconds * 1_000).toISOString().replace(/\.\d+Z$/, 'Z');
