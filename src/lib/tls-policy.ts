import { constants } from 'node:crypto';
import type { SecureContextOptions } from 'node:tls';

/** TLS 1.2 with forward secrecy and AEAD only (RFC 9325 §4.2), which are also the suites of HTTP/2 (RFC 9113 §9.2.2). */
const CIPHER_SUITES = [
  'TLS_AES_256_GCM_SHA384',
  'TLS_CHACHA20_POLY1305_SHA256',
  'TLS_AES_128_GCM_SHA256',
  'ECDHE-ECDSA-AES128-GCM-SHA256',
  'ECDHE-RSA-AES128-GCM-SHA256',
  'ECDHE-ECDSA-AES256-GCM-SHA384',
  'ECDHE-RSA-AES256-GCM-SHA384',
  'ECDHE-ECDSA-CHACHA20-POLY1305',
  'ECDHE-RSA-CHACHA20-POLY1305',
];

/** `/` separates levels of preference: a client that supports the first group is asked for it if it has sent another. */
const GROUPS = 'X25519MLKEM768/X25519:P-256/P-384';

/** For the server's key and for client certificates. ML-DSA is for the server's key. */
const SIGNATURE_ALGORITHMS = [
  'mldsa65',
  'mldsa87',
  'mldsa44',
  'ecdsa_secp256r1_sha256',
  'ecdsa_secp384r1_sha384',
  'ecdsa_secp521r1_sha512',
  'ed25519',
  'ed448',
  'rsa_pss_pss_sha256',
  'rsa_pss_pss_sha384',
  'rsa_pss_pss_sha512',
  'rsa_pss_rsae_sha256',
  'rsa_pss_rsae_sha384',
  'rsa_pss_rsae_sha512',
  'rsa_pkcs1_sha256',
  'rsa_pkcs1_sha384',
  'rsa_pkcs1_sha512',
];

/** For every listener; listed in docs/security.md. */
export const SERVER_TLS_POLICY = {
  minVersion: 'TLSv1.2',
  ciphers: CIPHER_SUITES.join(':'),
  honorCipherOrder: true,
  ecdhCurve: GROUPS,
  sigalgs: SIGNATURE_ALGORITHMS.join(':'),
  // CVE-2009-3555 and CVE-2011-1473.
  secureOptions: constants.SSL_OP_NO_RENEGOTIATION,
} as const satisfies SecureContextOptions;
