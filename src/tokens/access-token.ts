import { type KeyObject, sign, verify } from 'node:crypto';
import { type Bearer, CLOCK_TOLERANCE } from '../domain/bearer.ts';
import type { Epoch } from '../domain/epoch.ts';
import type { Grant } from '../domain/grant.ts';
import { parseScope, writeScope } from '../domain/scope.ts';
import { boundedCache } from '../http/bounded-cache.ts';
import { isJsonObject, type Json, parseStrictJson } from '../http/strict-json.ts';
import { isCanonicalBase64url } from './canonical.ts';
import type { Keyring, SigningKey } from './keyring.ts';

/** Longer ones are not ours: the longest scope we grant fits. */
const MAX_LENGTH = 8_192;

/**
 * RFC 9068 access token of a grant's current generation. The same record gives the same claims, and with EdDSA
 * the same string. Signed here and now: jose would hand each signature to another thread and back, which costs
 * a third more than the signature itself (docs/performance.md).
 */
export function signAccessToken(key: SigningKey, issuer: string, grant: Grant): string {
  const scope = parseScope(grant.scope, { spaces: true });
  if (!scope.ok) throw new Error(`grant ${grant.id} has a scope that cannot be read`);
  return signCompact(key, key.header, {
    iss: issuer,
    aud: issuer,
    sub: grant.identity,
    client_id: grant.clientId,
    scope: writeScope(scope.value),
    gid: grant.id,
    gen: grant.generation,
    jti: `${grant.id}.${grant.generation}`,
    iat: Math.floor(grant.rotatedAt),
    exp: grant.accessExpires,
    cnf: grant.boundTo === undefined ? undefined : { 'x5t#S256': grant.boundTo },
  });
}

/** RFC 7515 §3.1. `header` is the protected header as it stands in the token; it names the kind of token this is. */
export function signCompact(
  key: SigningKey,
  header: string,
  claims: Readonly<Record<string, unknown>>,
): string {
  const signed = `${header}.${Buffer.from(JSON.stringify(claims)).toString('base64url')}`;
  return `${signed}.${SIGNERS[key.alg](key.privateKey, Buffer.from(signed)).toString('base64url')}`;
}

/** RFC 7518 §3.4 and RFC 8037 §3.1: ES256 signs a digest and writes both numbers side by side, EdDSA signs the text. */
const SIGNERS = {
  EdDSA: (key, text) => sign(null, text, key),
  ES256: (key, text) => sign('sha256', text, { key, dsaEncoding: 'ieee-p1363' }),
} as const satisfies Record<SigningKey['alg'], (key: KeyObject, text: Buffer) => Buffer>;

/** Of both, two numbers of 32 bytes. */
const SIGNATURE_BYTES = 64;

const VERIFIERS = {
  EdDSA: (key, text, signature) => verify(null, text, key, signature),
  ES256: (key, text, signature) => verify('sha256', text, { key, dsaEncoding: 'ieee-p1363' }, signature),
} as const satisfies Record<SigningKey['alg'], (key: KeyObject, text: Buffer, signature: Buffer) => boolean>;

export interface AccessTokenReader {
  read(token: string, now: Epoch): Bearer | undefined;
}

/**
 * Reads access tokens and remembers those it has verified, by their exact canonical string. Whether a
 * remembered token still counts (expiry, revocation, a retired key) is asked anew each time it is seen.
 */
export function accessTokenReader(keyring: Keyring, issuer: string, remembered: number): AccessTokenReader {
  const memory = boundedCache<string, Bearer>(remembered);

  return {
    read(token, now) {
      const known = memory.get(token);
      if (known !== undefined) return keyring.verifies(known.keyId, now) ? known : undefined;
      if (token.length > MAX_LENGTH) return undefined;
      // The header is one of ours to the letter, or the token is not ours: no algorithm, key or type is taken from a stranger.
      const [header = '', payload = '', signature = '', ...rest] = token.split('.', 4);
      const key = keyring.byHeader(header, now);
      if (key === undefined || rest.length > 0) return undefined;
      if (!isCanonicalBase64url(payload) || !isCanonicalBase64url(signature)) return undefined;
      const proof = Buffer.from(signature, 'base64url');
      if (proof.length !== SIGNATURE_BYTES) return undefined;
      // RFC 7515 §5.2: what is signed is the text of both, as it stands in the token.
      const text = Buffer.from(`${header}.${payload}`, 'latin1');
      if (!VERIFIERS[key.alg](key.publicKey, text, proof)) return undefined;
      const bearer = readClaims(Buffer.from(payload, 'base64url'), issuer, key.kid, now);
      // A copy: the text it was cut out of would be kept with it.
      if (bearer !== undefined) memory.set(Buffer.from(token, 'latin1').toString('latin1'), bearer);
      return bearer;
    },
  };
}

function readClaims(payload: Uint8Array, issuer: string, keyId: string, now: Epoch): Bearer | undefined {
  let claims: Json;
  try {
    claims = parseStrictJson(new TextDecoder('utf-8', { fatal: true }).decode(payload));
  } catch {
    return undefined;
  }
  if (!isJsonObject(claims)) return undefined;
  const { iss, aud, sub, client_id, scope, gid, gen, iat, nbf, exp, cnf } = claims;
  if (iss !== issuer || aud !== issuer) return undefined;
  if (typeof sub !== 'string' || typeof client_id !== 'string' || typeof gid !== 'string') return undefined;
  if (!isTime(iat) || !isTime(exp) || !isTime(gen) || typeof scope !== 'string') return undefined;
  if (nbf !== undefined && (!isTime(nbf) || nbf > now + CLOCK_TOLERANCE)) return undefined;
  const parsed = parseScope(scope);
  if (!parsed.ok) return undefined;
  const bound = cnf === undefined ? undefined : boundCertificate(cnf);
  if (cnf !== undefined && bound === undefined) return undefined;
  return {
    grantId: gid,
    generation: gen,
    clientId: client_id,
    identity: sub,
    scope: parsed.value,
    issuedAt: iat,
    expires: exp,
    keyId,
    ...(bound !== undefined && { boundTo: bound }),
  };
}

const isTime = (value: Json | undefined): value is number => Number.isSafeInteger(value);

function boundCertificate(cnf: Json): string | undefined {
  const thumbprint = isJsonObject(cnf) ? cnf['x5t#S256'] : undefined;
  return typeof thumbprint === 'string' ? thumbprint : undefined;
}
