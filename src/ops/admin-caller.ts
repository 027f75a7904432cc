import { hash, timingSafeEqual } from 'node:crypto';
import { readFileSync } from 'node:fs';
import type { IncomingMessage } from 'node:http';
import { TLSSocket } from 'node:tls';
import { isReadByOthers } from '../tokens/keyring-file.ts';

/**
 * Who administers: the name for the audit log, or undefined for nobody. The token is read anew each time, so that
 * another one in its file counts at once; an empty file is a token that everybody knows, and opens nothing. Neither does
 * one in a file that other users can read; `onExposed` reports it.
 */
export function adminCaller(
  request: IncomingMessage,
  tokenFile: string,
  onExposed: () => void,
): string | undefined {
  const { socket } = request;
  if (socket instanceof TLSSocket && socket.authorized) {
    const certificate = socket.getPeerX509Certificate();
    if (certificate !== undefined) return `certificate ${certificate.subject.replaceAll('\n', ', ')}`;
  }
  const shown = request.headersDistinct['authorization'] ?? [];
  if (shown.length !== 1) return undefined;
  const token = /^Bearer ([A-Za-z0-9._~+/=-]{1,512})$/i.exec(shown[0] ?? '')?.[1];
  const expected = tokenIn(tokenFile, onExposed);
  if (token === undefined || expected === undefined) return undefined;
  const digest = (text: string): Buffer => hash('sha256', text, 'buffer');
  return timingSafeEqual(digest(token), digest(expected)) ? 'admin token' : undefined;
}

const LEAST_TOKEN = 16;

function tokenIn(file: string, onExposed: () => void): string | undefined {
  try {
    if (process.platform !== 'win32' && isReadByOthers(file)) {
      onExposed();
      return undefined;
    }
    const token = readFileSync(file, 'utf8').trim();
    return token.length >= LEAST_TOKEN ? token : undefined;
  } catch {
    return undefined;
  }
}
