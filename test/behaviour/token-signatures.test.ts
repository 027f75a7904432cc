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
