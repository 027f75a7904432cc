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
    ...(typeof username === 'string' && { username }),
    ...(typeof email === 'string' && { email }),
    ...(typeof sub === 'string' && { identity: sub }),
    ...(typeof aud === 'string' && { audience: aud }),
  };
}

export const formatTime = (seconds: number): string =>
  new Date(seconds * 1_000).toISOString().replace(/\.\d+Z$/, 'Z');
