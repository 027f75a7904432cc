import { CompactSign } from 'jose/jws/compact/sign';
import { compactVerify } from 'jose/jws/compact/verify';
import type { SigningKey } from './keyring.ts';

/** RFC 7515 §3.1. `typ` states the kind of token, so that none passes for another (RFC 8725 §3.11). */
export const signJwt = (
  { alg, kid, privateKey }: SigningKey,
  typ: string,
  claims: Readonly<Record<string, unknown>>,
): Promise<string> =>
  new CompactSign(Buffer.from(JSON.stringify(claims))).setProtectedHeader({ alg, typ, kid }).sign(privateKey);

/** The payload of a JWS whose signature is valid. The caller has already checked its header. */
export async function verifyJws(
  jws: string,
  { alg, publicKey }: SigningKey,
): Promise<Uint8Array | undefined> {
  try {
    return (await compactVerify(jws, publicKey, { algorithms: [alg] })).payload;
  } catch {
    return undefined;
  }
}
