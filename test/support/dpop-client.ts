import { hash, randomUUID } from 'node:crypto';
import { calculateJwkThumbprint, exportJWK, generateKeyPair, type JWK, SignJWT } from 'jose';

/** A key of a DPoP client (RFC 9449). */
export interface DpopKey {
  readonly alg: string;
  readonly privateKey: CryptoKey;
  readonly jwk: JWK;
  readonly privateJwk: JWK;
  /** RFC 7638, `cnf.jkt`. */
  readonly thumbprint: string;
}

export async function createDpopKey(alg = 'ES256'): Promise<DpopKey> {
  const { privateKey, publicKey } = await generateKeyPair(alg, { extractable: true });
  const jwk = await exportJWK(publicKey);
  return {
    alg,
    privateKey,
    jwk,
    privateJwk: await exportJWK(privateKey),
    thumbprint: await calculateJwkThumbprint(jwk),
  };
}

export interface ProofInput {
  readonly method?: string;
  readonly url: string;
  /** For `ath`. */
  readonly token?: string | undefined;
  /** Seconds since the epoch. */
  readonly now: number;
  readonly claims?: Readonly<Record<string, unknown>>;
  readonly header?: Readonly<Record<string, unknown>>;
}

/** Members that are undefined are omitted. */
export function signProof(
  key: DpopKey,
  { method = 'GET', url, token, now, claims, header }: ProofInput,
): Promise<string> {
  return new SignJWT({
    jti: randomUUID(),
    htm: method,
    htu: url,
    iat: Math.floor(now),
    ...(token !== undefined && { ath: hash('sha256', token, 'base64url') }),
    ...claims,
  })
    .setProtectedHeader({ typ: 'dpop+jwt', alg: key.alg, jwk: key.jwk, ...header })
    .sign(key.privateKey);
}
