import { createPrivateKey, createPublicKey } from 'node:crypto';
import { compactVerify, SignJWT } from 'jose';
import { expect, test } from 'vitest';
import { openKeyring } from '../../src/tokens/keyring.ts';
import { newKeyring, type SigningAlgorithm } from '../../src/tokens/keyring-file.ts';
import { createMint } from '../../src/tokens/mint.ts';
import { aGrant, NOW } from '../support/store-fixtures.ts';

function mintOf(alg: SigningAlgorithm) {
  const file = newKeyring(alg);
  const [entry] = file.signing;
  if (entry === undefined) throw new Error('a keyring has a signing key');
  const keyring = openKeyring(file);
  const key = createPrivateKey({ key: entry.jwk, format: 'jwk' });
  const mint = createMint({ keyring, publicUrl: 'https://localhost:8443', remembered: 10 });
  const grant = aGrant({ id: 'AbCdEfGhIjKlMnOpQrStUv', keys: mint.keys(NOW), boundTo: 'x'.repeat(43) });
  return { key, entry, mint, grant };
}

for (const alg of ['EdDSA', 'ES256'] as const)
  test(`another library verifies our ${alg} tokens, and we read them`, async () => {
    const { key, entry, mint, grant } = mintOf(alg);
    const { accessToken } = await mint.pair(grant, NOW);
    const { protectedHeader, payload } = await compactVerify(accessToken, createPublicKey(key), {
      algorithms: [alg],
    });
    expect(protectedHeader).toEqual({ alg, typ: 'at+jwt', kid: entry.kid });
    expect(JSON.parse(Buffer.from(payload).toString())).toMatchObject({ gid: grant.id, gen: 1 });
    expect(await mint.readAccess(accessToken, NOW)).toMatchObject({
      grantId: grant.id,
      boundTo: grant.boundTo,
      keyId: entry.kid,
    });
    const tampered = `${accessToken.slice(0, -20)}${'A'.repeat(20)}`;
    expect(await mint.readAccess(tampered, NOW)).toBeUndefined();
  });

test('R01 an EdDSA token made again is the same to the letter, also beside the one another library makes', async () => {
  const { key, entry, mint, grant } = mintOf('EdDSA');
  const { accessToken } = await mint.pair(grant, NOW);
  expect((await mint.pair(grant, NOW + 5)).accessToken).toBe(accessToken);
  const claims = JSON.parse(Buffer.from(accessToken.split('.')[1] ?? '', 'base64url').toString()) as object;
  const theirs = await new SignJWT({ ...claims })
    .setProtectedHeader({ alg: 'EdDSA', typ: 'at+jwt', kid: entry.kid })
    .sign(key);
  expect(accessToken).toBe(theirs);
});

/** Deterministic, so that what fails once fails again. */
function chance(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0;
    return (state >>> 8) % below;
  };
}

for (const alg of ['EdDSA', 'ES256'] as const)
  test(`of 1,500 damaged ${alg} tokens we accept none, and none that another library would refuse`, async () => {
    const { key, mint, grant } = mintOf(alg);
    const publicKey = createPublicKey(key);
    const { accessToken } = await mint.pair(grant, NOW);
    const [header = '', payload = '', signature = ''] = accessToken.split('.');
    const draw = chance(7);
    const flip = (text: string): string => {
      const bytes = Buffer.from(text, 'base64url');
      const at = draw(bytes.length);
      bytes[at] = (bytes[at] ?? 0) ^ (1 << draw(8));
      return bytes.toString('base64url');
    };
    const order = Buffer.from(
      alg === 'EdDSA'
        ? '1000000000000000000000000000000014def9dea2f79cd65812631a5cf5d3ed'
        : 'ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551',
      'hex',
    );
    const WAYS: readonly (() => string)[] = [
      () => [header, payload, flip(signature)].join('.'),
      () => [header, flip(payload), signature].join('.'),
      () => [flip(header), payload, signature].join('.'),
      () =>
        [
          header,
          payload,
          Buffer.from(signature, 'base64url').subarray(0, draw(64)).toString('base64url'),
        ].join('.'),
      () =>
        [
          header,
          payload,
          Buffer.concat([Buffer.from(signature, 'base64url'), Buffer.alloc(1 + draw(4))]).toString(
            'base64url',
          ),
        ].join('.'),
      // CVE-2022-21449: numbers that are zero, or the order of the group, prove nothing.
      () => [header, payload, Buffer.alloc(64).toString('base64url')].join('.'),
      () => [header, payload, Buffer.concat([order, order]).toString('base64url')].join('.'),
      () =>
        [header, payload, Buffer.concat([order.toReversed(), order.toReversed()]).toString('base64url')].join(
          '.',
        ),
      () => `${header}.${payload}.`,
      () => `${header}.${payload}.${signature}.`,
    ];
    for (let count = 0; count < 1_500; count += 1) {
      const damaged = WAYS[count % WAYS.length]?.() ?? '';
      if (damaged === accessToken) continue;
      const ours = await mint.readAccess(damaged, NOW);
      expect([damaged, ours]).toEqual([damaged, undefined]);
      const theirs = await compactVerify(damaged, publicKey, { algorithms: [alg] }).catch(() => undefined);
      // What jose takes and we do not would be a spelling of the same; none of these is one.
      expect([damaged, theirs]).toEqual([damaged, undefined]);
    }
    expect(await mint.readAccess(accessToken, NOW)).toMatchObject({ grantId: grant.id });
  });
