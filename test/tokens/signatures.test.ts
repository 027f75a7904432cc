import { createPrivateKey, createPublicKey, type KeyObject, sign, verify } from 'node:crypto';
import { expect, test } from 'vitest';
import { createTokenIssuer } from '../../src/tokens/issuer.ts';
import { openKeyring } from '../../src/tokens/keyring.ts';
import { createKeyringFile, type SigningAlgorithm } from '../../src/tokens/keyring-file.ts';
import { NOW, testGrant } from '../support/store-fixtures.ts';

async function createTestIssuer(alg: SigningAlgorithm) {
  const file = createKeyringFile(alg);
  const [entry] = file.signing;
  if (entry === undefined) throw new Error('no signing key');
  const keyring = await openKeyring(file);
  const key = createPrivateKey({ key: entry.jwk, format: 'jwk' });
  const issuer = createTokenIssuer({
    keyring,
    publicUrl: 'https://localhost:8443',
    cacheSize: 10,
    grants: { read: async () => undefined },
  });
  const grant = testGrant({
    id: 'AbCdEfGhIjKlMnOpQrStUv',
    keys: issuer.getCurrentKeyIds(NOW),
    boundTo: 'x'.repeat(43),
  });
  return { key, entry, issuer, grant };
}

const decode = (part: string): unknown => JSON.parse(Buffer.from(part, 'base64url').toString());

/** Verifies independently of jose, which the issuer uses. */
function verifyWithNode(alg: SigningAlgorithm, token: string, key: KeyObject): boolean {
  const [header = '', payload = '', signature = '', ...rest] = token.split('.');
  return (
    rest.length === 0 &&
    verify(
      alg === 'EdDSA' ? null : 'sha256',
      Buffer.from(`${header}.${payload}`),
      { key, dsaEncoding: 'ieee-p1363' },
      Buffer.from(signature, 'base64url'),
    )
  );
}

for (const alg of ['EdDSA', 'ES256'] as const)
  test(`${alg} tokens can be verified with node:crypto, and the issuer reads them`, async () => {
    const { key, entry, issuer, grant } = await createTestIssuer(alg);
    const { accessToken } = issuer.issueTokens(grant, NOW);
    expect(verifyWithNode(alg, accessToken, createPublicKey(key))).toBe(true);
    const [header = '', payload = ''] = accessToken.split('.');
    expect(decode(header)).toEqual({ alg, typ: 'at+jwt', kid: entry.kid });
    expect(decode(payload)).toMatchObject({ gid: grant.id, gen: 1 });
    expect(await issuer.readAccessToken(accessToken, NOW)).toMatchObject({
      grantId: grant.id,
      boundTo: grant.boundTo,
      keyId: entry.kid,
    });
    const tampered = `${accessToken.slice(0, -20)}${'A'.repeat(20)}`;
    expect(await issuer.readAccessToken(tampered, NOW)).toBeUndefined();
  });

test('R01 an EdDSA token signed again is identical, and equals one signed with node:crypto', async () => {
  const { key, entry, issuer, grant } = await createTestIssuer('EdDSA');
  const { accessToken } = issuer.issueTokens(grant, NOW);
  expect(issuer.issueTokens(grant, NOW + 5).accessToken).toBe(accessToken);
  const signingInput = accessToken.slice(0, accessToken.lastIndexOf('.'));
  expect(decode(signingInput.split('.')[0] ?? '')).toEqual({ alg: 'EdDSA', typ: 'at+jwt', kid: entry.kid });
  expect(accessToken).toBe(`${signingInput}.${sign(null, Buffer.from(signingInput), key).toString('base64url')}`);
});

/** A deterministic generator, so that failures are reproducible. */
function createRandom(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0;
    return (state >>> 8) % below;
  };
}

for (const alg of ['EdDSA', 'ES256'] as const)
  test(`of 1,500 damaged ${alg} tokens none is accepted, neither by the issuer nor by node:crypto`, async () => {
    const { key, issuer, grant } = await createTestIssuer(alg);
    const publicKey = createPublicKey(key);
    const { accessToken } = issuer.issueTokens(grant, NOW);
    const [header = '', payload = '', signature = ''] = accessToken.split('.');
    const random = createRandom(7);
    const flip = (text: string): string => {
      const bytes = Buffer.from(text, 'base64url');
      const at = random(bytes.length);
      bytes[at] = (bytes[at] ?? 0) ^ (1 << random(8));
      return bytes.toString('base64url');
    };
    const order = Buffer.from(
      alg === 'EdDSA'
        ? '1000000000000000000000000000000014def9dea2f79cd65812631a5cf5d3ed'
        : 'ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551',
      'hex',
    );
    const damages: readonly (() => string)[] = [
      () => [header, payload, flip(signature)].join('.'),
      () => [header, flip(payload), signature].join('.'),
      () => [flip(header), payload, signature].join('.'),
      () =>
        [header, payload, Buffer.from(signature, 'base64url').subarray(0, random(64)).toString('base64url')].join('.'),
      () =>
        [
          header,
          payload,
          Buffer.concat([Buffer.from(signature, 'base64url'), Buffer.alloc(1 + random(4))]).toString('base64url'),
        ].join('.'),
      // CVE-2022-21449: signature values of zero or the group order are invalid.
      () => [header, payload, Buffer.alloc(64).toString('base64url')].join('.'),
      () => [header, payload, Buffer.concat([order, order]).toString('base64url')].join('.'),
      () => [header, payload, Buffer.concat([order.toReversed(), order.toReversed()]).toString('base64url')].join('.'),
      () => `${header}.${payload}.`,
      () => `${header}.${payload}.${signature}.`,
    ];
    for (let count = 0; count < 1_500; count += 1) {
      const damaged = damages[count % damages.length]?.() ?? '';
      if (damaged === accessToken) continue;
      expect([damaged, await issuer.readAccessToken(damaged, NOW)]).toEqual([damaged, undefined]);
      expect([damaged, verifyWithNode(alg, damaged, publicKey)]).toEqual([damaged, false]);
    }
    expect(await issuer.readAccessToken(accessToken, NOW)).toMatchObject({ grantId: grant.id });
  });
