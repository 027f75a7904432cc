import { request as httpRequest } from 'node:http';
import { request as httpsRequest } from 'node:https';
import { connectionTrouble, isLate } from '../client/connection-trouble.ts';
import type { Settings } from '../config/schema.ts';
import { NO_CODING, readText } from '../http/read-response.ts';
import { parseStrictJson } from '../http/strict-json.ts';
import { CommandError, EXIT } from './command.ts';

/** The admin listener of a running gatehouse, and what opens it. */
export interface AdminTarget {
  readonly url: URL;
  readonly token?: string;
  /** Where the token was read, for errors. */
  readonly tokenFile?: string;
  /** It is `admin.tokenFile` of a configuration on this machine, which the listener reads too. */
  readonly isOwnTokenFile?: boolean;
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
        // Named, so that no environment variable can turn it off.
        rejectUnauthorized: true,
        ...(cert !== undefined && { cert, key }),
        ...(ca !== undefined && { ca }),
        headers: {
          ...NO_CODING,
          ...(token !== undefined && { authorization: `Bearer ${token}` }),
          ...(text !== undefined && {
            'content-type': 'application/json',
            'content-length': Buffer.byteLength(text),
          }),
        },
      },
      (response) => {
        const { headers, statusCode: status = 0 } = response;
        readText({ headers, body: response }, MAX_BYTES).then(
          (text) => {
            const json = objectIn(text);
            if (json === undefined) failed(away('is not that of gatehouse'));
            else answered({ status, json });
          },
          (error: unknown) => failed(trouble(error)),
        );
      },
    );
    request.on('error', (error) => failed(trouble(error)));
    request.end(text);
  });
}

/** Nesting has an end: what is printed later is walked recursively. */
function objectIn(text: string): Answer['json'] | undefined {
  try {
    const json = parseStrictJson(text);
    return typeof json === 'object' && json !== null ? (json as Answer['json']) : undefined;
  } catch {
    return undefined;
  }
}
