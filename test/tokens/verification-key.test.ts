import { createHook } from 'node:async_hooks';
import { constants, createPrivateKey, type KeyObject, type SignKeyObjectInput, sign } from 'node:crypto';
import { CompactSign, exportJWK, generateKeyPair, generateSecret, importJWK, type JWK } from 'jose';
import { describe, expect, test } from 'vitest';
import { SIGNATURE_ALGORITHMS, type SignatureAlgorithm, VerificationKey } from '../../src/tokens/jwt.ts';
import { createScopeMapping } from '../../src/tokens/trusted-issuers/claim-mapping.ts';
import { TrustedIssuer } from '../../src/tokens/trusted-issuers/trusted-issuer.ts';
import { TrustedIssuers } from '../../src/tokens/trusted-issuers/trusted-issuers.ts';
import { createFixedKeys, createForeignKey, type ForeignKey, signForeign } from '../support/foreign-issuer.ts';

const keysByAlgorithm = new Map(
  await Promise.all(SIGNATURE_ALGORITHMS.map(async (alg) => [alg, await createForeignKey(alg, 'k1')] as const)),
);
const getKey = (alg: SignatureAlgorithm): ForeignKey => keysByAlgorithm.get(alg) as ForeignKey;
const importFor = async (alg: SignatureAlgorithm, { jwk }: Pick<ForeignKey, 'jwk'>): Promise<VerificationKey> =>
  new VerificationKey(alg, (await importJWK(withoutAlg(jwk), alg)) as CryptoKey);
const withoutAlg = ({ alg: _alg, ...jwk }: JWK): JWK => jwk;

/** Signed by jose, independently of the code under test. */
const signWith = ({ alg, privateKey }: ForeignKey, payload = '{"sub":"x"}'): Promise<string> =>
  new CompactSign(Buffer.from(payload)).setProtectedHeader({ alg }).sign(privateKey);

const encode = (value: unknown): string => Buffer.from(JSON.stringify(value)).toString('base64url');

/** A token with a signature that was made in another way than the algorithm says. */
function signOtherwise(
  alg: SignatureAlgorithm,
  digest: string | null,
  options: Omit<SignKeyObjectInput, 'key'>,
  key: KeyObject,
): string {
  const input = `${encode({ alg })}.${encode({ sub: 'x' })}`;
  return `${input}.${sign(digest, Buffer.from(input), { ...options, key }).toString('base64url')}`;
}

const exportPrivate = async ({ privateKey }: ForeignKey): Promise<KeyObject> =>
  createPrivateKey({ key: await exportJWK(privateKey), format: 'jwk' });

describe.each(SIGNATURE_ALGORITHMS)('%s', (alg) => {
  test('a signature of jose is valid; changed anywhere, or of another key, it is not', async () => {
    const key = await importFor(alg, getKey(alg));
    const token = await signWith(getKey(alg));
    expect(await key.verify(token)).toBe(true);
    const [header = '', payload = '', signature = ''] = token.split('.');
    const bytes = Buffer.from(signature, 'base64url');
    for (const at of [0, bytes.length >> 1, bytes.length - 1]) {
      const changed = Buffer.from(bytes);
      changed[at] = (changed[at] ?? 0) ^ 1;
      expect(await key.verify(`${header}.${payload}.${changed.toString('base64url')}`)).toBe(false);
    }
    for (const other of [
      bytes.subarray(1),
      bytes.subarray(0, -1),
      Buffer.concat([bytes, Buffer.alloc(1)]),
      Buffer.alloc(0),
      Buffer.alloc(bytes.length),
    ])
      expect(await key.verify(`${header}.${payload}.${other.toString('base64url')}`)).toBe(false);
    expect(await key.verify(`${header}.${encode({ sub: 'admin' })}.${signature}`)).toBe(false);
    expect(await key.verify(`${encode({ alg: 'none' })}.${payload}.${signature}`)).toBe(false);
    expect(await key.verify(await signWith(await createForeignKey(alg, 'k1')))).toBe(false);
  });

  test('a signature of another algorithm is not valid', async () => {
    const key = await importFor(alg, getKey(alg));
    for (const other of SIGNATURE_ALGORITHMS.filter((name) => !isSame(name, alg)))
      expect([other, await key.verify(await signWith(getKey(other)))]).toEqual([other, false]);
  });

  test('a key of another type, a private key and a symmetric key are refused', async () => {
    for (const other of SIGNATURE_ALGORITHMS.filter((name) => !hasSameKeys(name, alg))) {
      const imported = (await importJWK(withoutAlg(getKey(other).jwk), other)) as CryptoKey;
      expect(() => new VerificationKey(alg, imported), other).toThrow(TypeError);
    }
    expect(() => new VerificationKey(alg, getKey(alg).privateKey)).toThrow(TypeError);
    const secret = await generateSecret('HS256', { extractable: true });
    expect(() => new VerificationKey(alg, secret)).toThrow(TypeError);
  });

  test('a token of a trusted issuer is accepted, and a tampered one or one of another key is not', async () => {
    const now = 1_900_000_000;
    const issuers = new TrustedIssuers([await createIssuer(alg)]);
    const claims = { iss: ISSUER, aud: 'files', sub: 'x', iat: now, exp: now + 60 };
    const read = async (token: string): Promise<unknown> => {
      const prepared = issuers.prepare(token, now);
      const found = typeof prepared === 'function' ? await prepared() : prepared;
      return found?.rejection === undefined ? found?.identity : found.rejection.fault;
    };
    const token = await signForeign(getKey(alg), claims);
    expect(await read(token)).toBe('corp:x');
    const [header, , signature] = token.split('.');
    expect(await read(`${header}.${encode({ ...claims, sub: 'admin' })}.${signature}`)).toBe('invalid_signature');
    expect(await read(await signForeign(await createForeignKey(alg, 'k1'), claims))).toBe('invalid_signature');
    // The header is known by now.
    expect(await read(token)).toBe('corp:x');
    expect(await read(`${header}.${encode(claims)}`)).toBeUndefined();
  });
});

const ISSUER = 'https://id.example.com';

const createIssuer = async (alg: SignatureAlgorithm): Promise<TrustedIssuer> =>
  new TrustedIssuer({
    name: 'corp',
    issuer: ISSUER,
    audience: ['files'],
    algorithms: SIGNATURE_ALGORITHMS,
    tokenTypes: new Set(['jwt']),
    clockTolerance: 0,
    requiredClaims: new Map(),
    label: 'corp',
    claims: {
      identity: 'sub',
      name: 'name',
      email: 'email',
      trustsEmail: false,
      groups: 'groups',
      clientId: [],
      scope: [],
    },
    scope: createScopeMapping({}),
    keys: await createFixedKeys(getKey(alg)),
  });

/** EdDSA and Ed25519 are two names of one algorithm (RFC 9864). */
const isSame = (a: SignatureAlgorithm, b: SignatureAlgorithm): boolean =>
  a === b || (hasSameKeys(a, b) && a.startsWith('Ed'));
const hasSameKeys = (a: SignatureAlgorithm, b: SignatureAlgorithm): boolean =>
  getKey(a).jwk.kty === getKey(b).jwk.kty && getKey(a).jwk.crv === getKey(b).jwk.crv;

test.each(['ES256', 'ES384', 'ES512'] as const)(
  '%s: both numbers have their full length; DER and other lengths are not valid',
  async (alg) => {
    const key = await importFor(alg, getKey(alg));
    const privateKey = await exportPrivate(getKey(alg));
    const digest = `sha${alg.slice(2)}`;
    expect(await key.verify(signOtherwise(alg, digest, { dsaEncoding: 'ieee-p1363' }, privateKey))).toBe(true);
    expect(await key.verify(signOtherwise(alg, digest, { dsaEncoding: 'der' }, privateKey))).toBe(false);
    const token = await signWith(getKey(alg));
    const end = token.lastIndexOf('.') + 1;
    const bytes = Buffer.from(token.slice(end), 'base64url');
    expect(bytes).toHaveLength({ ES256: 64, ES384: 96, ES512: 132 }[alg]);
    const half = bytes.length / 2;
    const zero = Buffer.alloc(1);
    const padded = Buffer.concat([zero, bytes.subarray(0, half), zero, bytes.subarray(half)]);
    expect(await key.verify(token.slice(0, end) + padded.toString('base64url'))).toBe(false);
  },
);

test.each(['PS256', 'PS384', 'PS512'] as const)('%s: the salt is as long as the digest', async (alg) => {
  const key = await importFor(alg, getKey(alg));
  const privateKey = await exportPrivate(getKey(alg));
  const bits = Number(alg.slice(2));
  const signWithSalt = (saltLength: number): string =>
    signOtherwise(alg, `sha${bits}`, { padding: constants.RSA_PKCS1_PSS_PADDING, saltLength }, privateKey);
  expect(await key.verify(signWithSalt(bits / 8))).toBe(true);
  for (const saltLength of [0, 20, bits / 8 - 1, bits / 8 + 1, constants.RSA_PSS_SALTLEN_MAX_SIGN])
    expect([saltLength, await key.verify(signWithSalt(saltLength))]).toEqual([saltLength, false]);
});

test.each(['RS256', 'PS256'] as const)('%s: an RSA key of less than 2048 bits is refused', async (alg) => {
  const { publicKey } = await generateKeyPair(alg, { modulusLength: 2_048 });
  expect(new VerificationKey(alg, publicKey)).toBeDefined();
  const weak = await crypto.subtle.generateKey(
    {
      name: alg === 'RS256' ? 'RSASSA-PKCS1-v1_5' : 'RSA-PSS',
      hash: 'SHA-256',
      modulusLength: 1_024,
      publicExponent: new Uint8Array([1, 0, 1]),
    },
    true,
    ['sign', 'verify'],
  );
  expect(() => new VerificationKey(alg, weak.publicKey)).toThrow(TypeError);
});

test('signatures are verified in the thread pool: the result is delivered by a later callback', async () => {
  const verifications = new Set<number>();
  let delivered = 0;
  const hook = createHook({
    init(id, type) {
      if (type === 'SIGNREQUEST') verifications.add(id);
    },
    before(id) {
      if (verifications.has(id)) delivered += 1;
    },
  }).enable();
  const token = await signWith(getKey('ES256'));
  const key = await importFor('ES256', getKey('ES256'));
  verifications.clear();
  delivered = 0;
  const results = Array.from({ length: 5 }, () => key.verify(token));
  expect(verifications.size).toBe(5);
  expect(await Promise.all(results)).toEqual([true, true, true, true, true]);
  hook.disable();
  expect(delivered).toBe(5);
});
