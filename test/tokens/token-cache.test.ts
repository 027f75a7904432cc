import { randomBytes } from 'node:crypto';
import { expect, test } from 'vitest';
import type { VerifiedToken } from '../../src/domain/grant.ts';
import { createTokenIssuer } from '../../src/tokens/issuer.ts';
import { openKeyring } from '../../src/tokens/keyring.ts';
import { createKeyringFile } from '../../src/tokens/keyring-file.ts';
import { createTokenCache } from '../../src/tokens/token-cache.ts';
import { NOW, testGrant } from '../support/store-fixtures.ts';

const MAX_VERIFICATIONS = 10_000;

test('a token can be opened for its revocation while forged tokens exhaust the limit on verifications', async () => {
  const keyring = await openKeyring(createKeyringFile('EdDSA'));
  const issuer = createTokenIssuer({
    keyring,
    publicUrl: 'https://localhost:8443',
    cacheSize: 10,
    grants: { read: async () => undefined },
  });
  const grant = testGrant({ id: 'AbCdEfGhIjKlMnOpQrStUv', keys: issuer.getCurrentKeyIds(NOW) });
  const { accessToken } = issuer.issueTokens(grant, NOW);
  const [header, payload] = accessToken.split('.');
  const forgeToken = (): string => `${header}.${payload}.${randomBytes(64).toString('base64url')}`;

  const flood = Array.from({ length: MAX_VERIFICATIONS }, async () => issuer.readAccessToken(forgeToken(), NOW));
  expect(() => issuer.readAccessToken(accessToken, NOW)).toThrow('too many access tokens');
  const opened = issuer.openAccessToken(accessToken, NOW);
  expect(await opened).toMatchObject({ grantId: grant.id, generation: 1 });

  expect(new Set(await Promise.all(flood))).toEqual(new Set([undefined]));
  expect(issuer.readAccessToken(accessToken, NOW), 'cached').toMatchObject({ grantId: grant.id });
});

test('tokens presented for revocation do not count against the limit on verifications', async () => {
  const stalled = Promise.withResolvers<undefined>();
  const cache = createTokenCache({
    cacheSize: 10,
    isAcceptedKey: () => true,
    prepare: () => () => stalled.promise,
  });
  const opened = Array.from({ length: MAX_VERIFICATIONS }, async (_, at) => cache.readUnlimited(`open ${at}`, NOW));
  const read = cache.read('read', NOW);
  stalled.resolve(undefined);
  expect(await read).toBeUndefined();
  expect(new Set(await Promise.all(opened))).toEqual(new Set([undefined]));
});

test('a verification that fails is not kept, whether it throws or rejects', async () => {
  const verified = { grantId: 'g', keyId: 'k' } as VerifiedToken;
  const verifications = [
    () => {
      throw new Error('thrown');
    },
    () => Promise.reject(new Error('rejected')),
    () => Promise.resolve(verified),
  ];
  const cache = createTokenCache({
    cacheSize: 10,
    isAcceptedKey: () => true,
    prepare: () => verifications.shift(),
  });
  await expect(cache.read('token', NOW)).rejects.toThrow('thrown');
  await expect(cache.read('token', NOW)).rejects.toThrow('rejected');
  expect(await cache.read('token', NOW)).toBe(verified);
});
