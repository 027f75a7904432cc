import { hash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import type { IncomingMessage } from 'node:http';
import { TLSSocket } from 'node:tls';
import { parseBearerToken } from '../http/bearer-token.ts';
import { getSingleHeader } from '../http/raw-headers.ts';
import { isEqualConstantTime } from '../lib/constant-time.ts';
import { isReadableByOthers } from '../tokens/keyring-file.ts';

/**
 * The operator's name for the audit log; undefined for an unauthenticated client. The token file is read for each request, so
 * that a new token applies at once. A file that is empty, or that other users can read (`onExposed`), authenticates no one.
 */
export function authenticateAdmin(
  request: IncomingMessage,
  tokenFile: string,
  onExposed: () => void,
): string | undefined {
  const { socket } = request;
  if (socket instanceof TLSSocket && socket.authorized) {
    const certificate = socket.getPeerX509Certificate();
    if (certificate !== undefined) return `certificate ${certificate.subject.replaceAll('\n', ', ')}`;
  }
  const token = parseBearerToken(getSingleHeader(request.rawHeaders, 'authorization') ?? '');
  const expected = readToken(tokenFile, onExposed);
  if (token === undefined || expected === undefined) return undefined;
  // Digests, so that the time does not depend on the length of the token either.
  return isEqualConstantTime(hash('sha256', token), hash('sha256', expected)) ? 'admin token' : undefined;
}

const MIN_TOKEN_LENGTH = 16;

function readToken(file: string, onExposed: () => void): string | undefined {
  try {
    if (process.platform !== 'win32' && isReadableByOthers(file)) {
      onExposed();
      return undefined;
    }
    const token = readFileSync(file, 'utf8').trim();
    return token.length >= MIN_TOKEN_LENGTH ? token : undefined;
  } catch {
    return undefined;
  }
}
