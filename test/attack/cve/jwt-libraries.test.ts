import { createHmac, createPublicKey, generateKeyPairSync, type KeyObject } from 'node:crypto';
import { CompactEncrypt } from 'jose';
import { expect, test } from 'vitest';
import { base64url, decodeJwt, loadKeyring } from '../../support/forged-tokens.ts';
import { useAttackGateway } from '../attack-gateway.ts';

/** Attacks that worked against JWT libraries. */
const attack = useAttackGateway();

const expectRefused = async (token: string): Promise<void> => {
  const reply = await attack.gateway.api('/files/1', token);
  expect([token, reply.status]).toEqual([token, 401]);
  expect(reply.headers['www-authenticate']).toContain('error="invalid_token"');
};
const getSigningKey = () => {
  const [key] = loadKeyring(attack.gateway).signing;
  if (key === undefined) throw new Error('no signing key');
  return { kid: key.kid, publicKey: createPublicKey({ key: key.jwk, format: 'jwk' }) };
};
/** The public key in every form that could be mistaken for an HMAC secret. */
const exportAsSecrets = (key: KeyObject): (string | Buffer)[] => {
  const pem = key.export({ type: 'spki', format: 'pem' });
  const jwk = key.export({ format: 'jwk' });
  return [
    pem,
    pem.trim(),
    `\n${pem}`,
    ` ${pem}`,
    pem.replace('PUBLIC', 'RSA PUBLIC'),
    key.export({ type: 'spki', format: 'der' }),
    JSON.stringify(jwk),
    Buffer.from(String(jwk.x), 'base64url'),
  ];
};
const payload = (): string => decodeJwt(attack.token).parts[1];

test('CVE-2023-48223 and its regression CVE-2026-34950, fast-jwt: the public key is not accepted as an HMAC secret in any form', async () => {
  const { kid, publicKey } = getSigningKey();
  for (const secret of exportAsSecrets(publicKey))
    for (const [alg, digest] of [
      ['HS256', 'sha256'],
      ['HS512', 'sha512'],
    ] as const) {
      const input = `${base64url({ alg, typ: 'at+jwt', kid })}.${payload()}`;
      await expectRefused(`${input}.${createHmac(digest, secret).update(input).digest('base64url')}`);
    }
  await attack.expectHealthy();
});

test('CVE-2026-22817 Hono: the algorithm is that of the key, not that of the token header', async () => {
  const { kid, publicKey } = getSigningKey();
  const [secret = ''] = exportAsSecrets(publicKey);
  for (const alg of ['HS256', 'RS256', 'ES256', 'PS256', 'none', 'EdDSA', 'Ed25519', ['EdDSA'], null]) {
    const input = `${base64url({ alg, typ: 'at+jwt', kid })}.${payload()}`;
    await expectRefused(`${input}.${createHmac('sha256', secret).update(input).digest('base64url')}`);
    await expectRefused(`${input}.`);
  }
  await attack.expectHealthy();
});

test('CVE-2026-29000 pac4j: an unsigned token inside an encrypted one is refused', async () => {
  const plain = `${base64url({ alg: 'none' })}.${payload()}.`;
  const { publicKey } = generateKeyPairSync('rsa', { modulusLength: 2_048 });
  const { kid } = getSigningKey();
  for (const header of [
    { alg: 'RSA-OAEP', enc: 'A128GCM' },
    { alg: 'RSA-OAEP', enc: 'A128GCM', cty: 'JWT', kid, typ: 'at+jwt' },
  ])
    await expectRefused(await new CompactEncrypt(Buffer.from(plain)).setProtectedHeader(header).encrypt(publicKey));
  await expectRefused(plain);
  await attack.expectHealthy();
});
