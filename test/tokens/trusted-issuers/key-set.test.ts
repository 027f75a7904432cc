import { generateKeyPair } from 'node:crypto';
import { promisify } from 'node:util';
import { exportJWK } from 'jose';
import { expect, test } from 'vitest';
import { parseKeySet } from '../../../src/tokens/trusted-issuers/key-set.ts';
import { createForeignKey } from '../../support/foreign-issuer.ts';

const { jwk } = await createForeignKey('ES256', 'k1');
const format = (...keys: readonly unknown[]): string => JSON.stringify({ keys });

test('keys that do not verify signatures are ignored', async () => {
  const shortRsa = await promisify(generateKeyPair)('rsa', { modulusLength: 1_024 });
  const unusable = [
    { ...jwk, kid: 'a', use: 'enc' },
    { ...jwk, kid: 'b', key_ops: ['sign'] },
    { ...jwk, kid: 'c', d: 'AAAA' },
    { kty: 'oct', kid: 'd', k: 'c2VjcmV0' },
    { ...jwk, kid: 'e', alg: 'HS256' },
    { ...jwk, kid: 6 },
    { ...(await exportJWK(shortRsa.publicKey)), kid: 'g' },
    { kty: 'EC', kid: 'h' },
    { ...jwk, kid: 'i', x: jwk.y, y: jwk.x },
    'text',
    null,
  ];
  const keys = await parseKeySet(format(...unusable, jwk));
  expect(keys.map((key) => key.matches('k1', 'ES256'))).toEqual([true]);
});

test.each([
  ['HTML', '<html></html>', 'not valid JSON'],
  ['repeated names', `{"keys":[],"keys":[${JSON.stringify(jwk)}]}`, 'not valid JSON'],
  ['a list', JSON.stringify([jwk]), 'no "keys"'],
  ['too many keys', format(...Array.from({ length: 129 }, () => jwk)), 'more than 128 keys'],
])('%s instead of a key set is refused', async (_, text, problem) => {
  await expect(parseKeySet(text)).rejects.toThrow(problem);
});

test('an issuer that has withdrawn its keys has none', async () => {
  expect(await parseKeySet(format())).toEqual([]);
});

test('a key that is listed twice is one key', async () => {
  expect(await parseKeySet(format(jwk, jwk))).toHaveLength(1);
});
