import { exportJWK, generateKeyPair, type JWK, SignJWT } from 'jose';
import type { SignatureAlgorithm } from '../../src/tokens/jwt.ts';
import { IssuerKeys } from '../../src/tokens/trusted-issuers/issuer-keys.ts';
import { parseKeySet } from '../../src/tokens/trusted-issuers/key-set.ts';

export interface ForeignKey {
  readonly kid: string;
  readonly alg: SignatureAlgorithm;
  readonly privateKey: CryptoKey;
  /** The public key. */
  readonly jwk: JWK;
}

export async function createForeignKey(alg: SignatureAlgorithm = 'ES256', kid = 'k1'): Promise<ForeignKey> {
  const { privateKey, publicKey } = await generateKeyPair(alg, { extractable: true });
  return { kid, alg, privateKey, jwk: { ...(await exportJWK(publicKey)), kid, alg, use: 'sig' } };
}

export const formatKeySet = (...keys: readonly ForeignKey[]): string =>
  JSON.stringify({ keys: keys.map(({ jwk }) => jwk) });

/** The keys of an issuer that were fetched once and do not change. */
export async function createFixedKeys(...keys: readonly ForeignKey[]): Promise<IssuerKeys> {
  const issuerKeys = new IssuerKeys({
    name: 'corp',
    fetch: () => parseKeySet(formatKeySet(...keys)),
    refreshInterval: 600,
    cooldown: 30,
    maxStaleness: 3_600,
  });
  await issuerKeys.start();
  issuerKeys.close();
  return issuerKeys;
}

export const signForeign = (
  { privateKey, kid, alg }: ForeignKey,
  claims: Readonly<Record<string, unknown>>,
  header: Readonly<Record<string, unknown>> = {},
): Promise<string> => new SignJWT(claims).setProtectedHeader({ alg, kid, typ: 'JWT', ...header }).sign(privateKey);
