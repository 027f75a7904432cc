import { createHmac, generateKeyPairSync, type KeyObject, randomBytes, sign } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';

/** Tokens for the servers gatehouse is compared with: claims of the same size, in the algorithms they support. */
export const ALGORITHMS = ['HS256', 'RS256', 'ES256'] as const;
export type Algorithm = (typeof ALGORITHMS)[number];

export interface ThirdPartyTokens {
  readonly issuer: string;
  readonly audience: string;
  readonly secret: string;
  /** File with one token per line. */
  tokens(algorithm: Algorithm): string;
  /** Writes further tokens to this file, one per line. */
  writeTokens(algorithm: Algorithm, file: string, count: number): void;
  /** PEM of the public key. */
  publicKey(algorithm: 'RS256' | 'ES256'): string;
  /** The public key of ES256 as a JWK Set. */
  readonly jwksFile: string;
}

const base64url = (value: unknown): string => Buffer.from(JSON.stringify(value)).toString('base64url');

/** Writes the public RSA key to `jwksFile` as a JWK Set, for servers that read one. */
export function createThirdPartyTokens(
  folder: string,
  { issuer, count, jwksFile }: { readonly issuer: string; readonly count: number; readonly jwksFile: string },
): ThirdPartyTokens {
  const secret = randomBytes(32).toString('hex');
  const audience = 'bench';
  const rsa = generateKeyPairSync('rsa', { modulusLength: 2_048 });
  const ec = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  const signers = {
    HS256: (text: string) => createHmac('sha256', secret).update(text).digest('base64url'),
    RS256: (text: string) => sign('sha256', Buffer.from(text), rsa.privateKey).toString('base64url'),
    ES256: (text: string) =>
      sign('sha256', Buffer.from(text), { key: ec.privateKey, dsaEncoding: 'ieee-p1363' }).toString('base64url'),
  } as const satisfies Record<Algorithm, (text: string) => string>;

  const now = Math.floor(Date.now() / 1_000);
  const writeTokens: ThirdPartyTokens['writeTokens'] = (alg, file, number) => {
    const tokens = Array.from({ length: number }, (_, index) => {
      const id = randomBytes(16).toString('base64url');
      const text = `${base64url({ alg, typ: 'JWT', kid: 'bench' })}.${base64url({
        iss: issuer,
        aud: audience,
        sub: 'local:{5f0c2a52-6d0e-4d0c-9c3e-0d5a3c1f2b11}',
        email: 'alice@example.test',
        email_verified: true,
        scope: 'files:read',
        jti: `${id}.${index}`,
        iat: now,
        exp: now + 86_400,
      })}`;
      return `${text}.${signers[alg](text)}`;
    });
    writeFileSync(file, `${tokens.join('\n')}\n`);
  };
  for (const algorithm of ALGORITHMS) writeTokens(algorithm, join(folder, `${algorithm}.tokens`), count);
  const pem = (name: string, key: KeyObject): void =>
    writeFileSync(join(folder, `${name}.pem`), key.export({ type: 'spki', format: 'pem' }));
  pem('RS256', rsa.publicKey);
  pem('ES256', ec.publicKey);
  const writeJwks = (file: string, alg: Algorithm, key: KeyObject): void =>
    writeFileSync(
      file,
      JSON.stringify({ keys: [{ ...key.export({ format: 'jwk' }), alg, use: 'sig', kid: 'bench' }] }),
    );
  writeJwks(jwksFile, 'RS256', rsa.publicKey);
  const es256JwksFile = join(folder, 'ES256.jwks.json');
  writeJwks(es256JwksFile, 'ES256', ec.publicKey);
  return {
    issuer,
    audience,
    secret,
    tokens: (algorithm) => join(folder, `${algorithm}.tokens`),
    writeTokens,
    publicKey: (algorithm) => join(folder, `${algorithm}.pem`),
    jwksFile: es256JwksFile,
  };
}
