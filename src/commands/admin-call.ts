import { request as httpRequest } from 'node:http';
import { request as httpsRequest } from 'node:https';
import { connectionTrouble, isLate } from '../client/connection-trouble.ts';
import type { Settings } from '../config/schema.ts';
import { CommandError, EXIT } from './command.ts';

/** The admin listener of a running gatehouse, and what opens it. */
export interface AdminTarget {
  readonly url: URL;
  readonly token?: string;
  /** Where the token was read, for errors. */
  readonly tokenFile?: string;
  readonly cert?: Buffer | undefined;
  readonly key?: Buffer | undefined;
  readonly ca?: Buffer;
  /** Milliseconds for one answer. */
  readonly withinMs?: number;
}

export interface Answer {
  readonly status: number;
  readonly json: Readonly<Record<string, unknown>>;
}

const LIMIT_MS = 60_000;
const MAX_BYTES = 16 * 1_048_576;

/** A listener on every address is reached on the loopback. */
export function adminUrl({ host, port, tls }: Settings['admin']): string {
  const name = host === '0.0.0.0' ? '127.0.0.1' : host === '::' ? '::1' : host;
  return `${tls === undefined ? 'http' : 'https'}://${name.includes(':') ? `[${name}]` : name}:${port}`;
}

export function askAdmin(
  { url, token, cert, key, ca, withinMs = LIMIT_MS }: AdminTarget,
  method: 'GET' | 'POST',
  path: string,
  body?: Readonly<Record<string, string>>,
): Promise<Answer> {
  const text = body === undefined ? undefined : JSON.stringify(body);
  const away = (why: string): CommandError =>
    new CommandError(`the admin listener ${url.origin} ${why}`, EXIT.unavailable);
  const trouble = (error: unknown): CommandError => {
    if (!isLate(error))
      return away(connectionTrouble(error, { url, caBy: '--cacert FILE', caGiven: ca !== undefined }).words);
    const unsure =
      method === 'POST' ? ' What was asked for may have been done; it can be asked for again.' : '';
    return away(
      `did not answer within ${withinMs / 1_000} s. Is this its address? \`gatehouse health --url ${url.origin}\` tells how it is.${unsure}`,
    );
  };
  return new Promise((answered, failed) => {
    const send = url.protocol === 'https:' ? httpsRequest : httpRequest;
    const request = send(
      new URL(`/admin/v1${path}`, url),
      {
        method,
        agent: false,
        signal: AbortSignal.timeout(withinMs),
        ...(cert !== undefined && { cert, key }),
        ...(ca !== undefined && { ca }),
        headers: {
          ...(token !== undefined && { authorization: `Bearer ${token}` }),
          ...(text !== undefined && {
            'content-type': 'application/json',
            'content-length': Buffer.byteLength(text),
          }),
        },
      },
      (response) => {
        const parts: Buffer[] = [];
        let length = 0;
        response.on('data', (part: Buffer) => {
          length += part.length;
          if (length > MAX_BYTES) response.destroy(new Error('its answer is too long'));
          else parts.push(part);
        });
        response.on('error', (error) => failed(isLate(error) ? trouble(error) : away(error.message)));
        response.on('end', () => {
          try {
            const json: unknown = JSON.parse(Buffer.concat(parts).toString('utf8'));
            if (typeof json !== 'object' || json === null) throw new TypeError('not an object');
            answered({ status: response.statusCode ?? 0, json: json as Answer['json'] });
          } catch {
            failed(away('is not that of gatehouse'));
          }
        });
      },
    );
    request.on('error', (error) => failed(trouble(error)));
    request.end(text);
  });
}
