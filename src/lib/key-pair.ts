import { createPrivateKey, X509Certificate } from 'node:crypto';

/** A client certificate and its private key that cannot be used together. */
export class KeyPairError extends Error {}

type Pem = string | Buffer;

/** Throws a `KeyPairError`. With a key of another type, TLS would connect without the client certificate. */
export function checkKeyPair({ cert, key }: { readonly cert: Pem; readonly key: Pem }): void {
  const leaf = parsePem(() => new X509Certificate(cert), 'the certificate is not PEM');
  const privateKey = parsePem(
    () => createPrivateKey(key),
    key.includes('ENCRYPTED')
      ? 'the private key is encrypted; use one without a passphrase'
      : 'the private key is not PEM',
  );
  if (!leaf.checkPrivateKey(privateKey)) throw new KeyPairError('the private key does not belong to the certificate');
}

function parsePem<T>(parse: () => T, problem: string): T {
  try {
    return parse();
  } catch {
    throw new KeyPairError(problem);
  }
}
