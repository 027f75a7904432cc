import { hash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { parseBearerToken } from '../http/bearer-token.ts';
import { getSingleHeader } from '../http/raw-headers.ts';
import { isEqualConstantTime } from '../lib/constant-time.ts';
import { isReadableByOthers } from '../tokens/keyring-file.ts';
import type { AdminMessage } from './node-request.ts';

/** A `viewer` may not revoke. */
type AdminRole = 'operator' | 'viewer';

export interface AdminIdentity {
  /** The operator's name for the audit log. */
  readonly name: string;
  readonly role: AdminRole;
  /** A digest of the token or the certificate: it changes when the credential is replaced. */
  readonly credential: string;
}

export interface AdminCredentials {
  readonly tokenFile: string;
  readonly readOnlyTokenFile?: string | undefined;
  /** Subjects of certificates with the role `operator`, RFC 4514. Without it, all certificates have it. */
  readonly operators?: readonly string[] | undefined;
}

/**
 * Authenticates a client by its certificate or its bearer token. The token decides if the certificate may only view.
 * `onExposed` is called if other users can read a token file.
 */
export function authenticateAdmin(
  request: AdminMessage,
  credentials: AdminCredentials,
  onExposed: (file: string) => void,
): AdminIdentity | undefined {
  const certificate = authenticateCertificate(request, credentials);
  if (certificate?.role === 'operator') return certificate;
  const token = parseBearerToken(getSingleHeader(request.rawHeaders, 'authorization') ?? '');
  const identity = token === undefined ? undefined : authenticateToken(token, credentials, onExposed);
  return identity ?? certificate;
}

/** Accepts the client certificate of the connection, if `clientCa` has issued it. */
export function authenticateCertificate(
  { getCertificate }: Pick<AdminMessage, 'getCertificate'>,
  { operators }: Pick<AdminCredentials, 'operators'>,
): AdminIdentity | undefined {
  const certificate = getCertificate();
  // It was valid at the handshake, which may be long ago.
  if (certificate === undefined || certificate.validToDate.getTime() <= Date.now()) return undefined;
  // A certificate may have no subject.
  const attributes = ((certificate.subject as string | undefined) ?? '').split('\n');
  // RFC 4514 §2.1: the last attribute first. OpenSSL has escaped the values.
  const subject = attributes.toReversed().join(',');
  return {
    name: `certificate ${attributes.join(', ')}`,
    role: operators === undefined || operators.includes(subject) ? 'operator' : 'viewer',
    credential: `certificate ${certificate.fingerprint256}`,
  };
}

/**
 * The token files are read for each request, so that a new token applies at once. A file that is empty, or that other
 * users can read, authenticates no one.
 */
export const authenticateToken = (
  token: string,
  credentials: AdminCredentials,
  onExposed: (file: string) => void,
): AdminIdentity | undefined =>
  // Digests are compared, so that the time does not depend on the length of the token either.
  findToken(`token ${hash('sha256', token)}`, credentials, onExposed);

/** Finds the token with this digest, as in `AdminIdentity.credential`, if it is still in its file. */
export function findToken(
  credential: string,
  { tokenFile, readOnlyTokenFile }: AdminCredentials,
  onExposed: (file: string) => void,
): AdminIdentity | undefined {
  const matches = (file: string): boolean => {
    const expected = readToken(file, onExposed);
    return expected !== undefined && isEqualConstantTime(credential, `token ${hash('sha256', expected)}`);
  };
  // This file is first: if both files contain the same token, it may not revoke.
  if (readOnlyTokenFile !== undefined && matches(readOnlyTokenFile))
    return { name: 'read-only admin token', role: 'viewer', credential };
  return matches(tokenFile) ? { name: 'admin token', role: 'operator', credential } : undefined;
}

const MIN_TOKEN_LENGTH = 16;

function readToken(file: string, onExposed: (file: string) => void): string | undefined {
  try {
    if (process.platform !== 'win32' && isReadableByOthers(file)) {
      onExposed(file);
      return undefined;
    }
    const token = readFileSync(file, 'utf8').trim();
    return token.length >= MIN_TOKEN_LENGTH ? token : undefined;
  } catch {
    return undefined;
  }
}
