import { randomBytes } from 'node:crypto';
import { createCa, der, derName, type IssuedCertificate, issue } from './pki.ts';

const SHA256_WITH_RSA = Buffer.from('300d06092a864886f70d01010b0500', 'hex');
const RSA_ENCRYPTION = Buffer.from('300d06092a864886f70d0101010500', 'hex');
/** `basicConstraints`, critical: a certificate authority. */
const CA_EXTENSIONS = Buffer.from('a3133011300f0603551d130101ff040530030101ff', 'hex');
/** The longest exponent that OpenSSL accepts for a long modulus: the most expensive one. */
const EXPONENT = Buffer.from('00ffffffffffffffff', 'hex');

const nameJunk = (index: number): Buffer => derName([0x0c, Buffer.from(`junk ${index}`)]);

/** No private key exists: modulus and signature are random. */
function createJunkCertificate(index: number, bits: number): string {
  const bytes = bits / 8;
  const modulus = randomBytes(bytes);
  modulus[0] = 0xff;
  modulus[bytes - 1] = (modulus[bytes - 1] ?? 0) | 1;
  const signature = randomBytes(bytes);
  signature[0] = 0x01;
  const key = der(0x30, der(0x02, Buffer.from([0]), modulus), der(0x02, EXPONENT));
  const body = der(
    0x30,
    Buffer.from('a003020102', 'hex'),
    der(0x02, Buffer.from([index + 1])),
    SHA256_WITH_RSA,
    nameJunk(index + 1),
    der(0x30, der(0x17, Buffer.from('250101000000Z')), der(0x17, Buffer.from('450101000000Z'))),
    nameJunk(index),
    der(0x30, RSA_ENCRYPTION, der(0x03, Buffer.from([0]), key)),
    CA_EXTENSIONS,
  );
  const certificate = der(0x30, body, SHA256_WITH_RSA, der(0x03, Buffer.from([0]), signature));
  const lines = certificate.toString('base64').match(/.{1,64}/g) ?? [];
  return `-----BEGIN CERTIFICATE-----\n${lines.join('\n')}\n-----END CERTIFICATE-----\n`;
}

export interface JunkChain {
  /** For `cert` and `key` of a TLS client. */
  readonly pem: string;
  readonly keyPem: string;
}

/** A client certificate of an unknown issuer, followed by certificates that a server has to verify and that are worthless. */
export async function createJunkChain(length = 22, bits = 16_384): Promise<JunkChain> {
  const ca: IssuedCertificate = await createCa({ name: 'CN=junk 0', key: 'rsa2048' });
  const leaf = await issue(ca, { commonName: 'mallory' });
  const chain = Array.from({ length }, (_, index) => createJunkCertificate(index, bits));
  return { pem: leaf.pem + chain.join(''), keyPem: leaf.keyPem };
}
