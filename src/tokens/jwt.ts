import { CompactSign } from 'jose/jws/compact/sign';
import type { SigningKey } from './keyring.ts';

/** RFC 7515 §3.1. `typ` states the kind of token, so that none passes for another (RFC 8725 §3.11). */
export const signJwt = (
  { alg, kid, privateKey }: SigningKey,
  typ: string,
  claims: Readonly<Record<string, unknown>>,
): Promise<string> =>
  new CompactSign(Buffer.from(JSON.stringify(claims))).setProtectedHeader({ alg, typ, kid }).sign(privateKey);
