import type { IncomingMessage, ServerResponse } from 'node:http';
import { sendJson } from '../http/answer.ts';
import type { Call } from '../http/call.ts';
import { headerValues } from './caller.ts';
import { hostName } from './client-hello.ts';

/**
 * `100 Continue` is said once, and at the latest when somebody begins to read the body: by then it was decided
 * that the caller may send one. Whoever wants it earlier calls `writeContinue`.
 */
export function continueWhenRead(request: IncomingMessage, response: ServerResponse): void {
  const write = response.writeContinue.bind(response);
  let said = false;
  response.writeContinue = () => {
    if (said || response.headersSent) return;
    said = true;
    write();
  };
  request.once('resume', () => response.writeContinue());
}

export const waitsForContinue = ({ headers }: IncomingMessage): boolean =>
  headers.expect?.toLowerCase() === '100-continue';

/** Does the request speak to one of these hosts, in any of the places where a host can stand? */
export function namesOneOf(request: IncomingMessage, hosts: ReadonlySet<string>): boolean {
  const named = headerValues(request.rawHeaders, 'host');
  const [, authority] = /^[a-z][a-z0-9+.-]*:\/\/(?:[^/?#@]*@)?([^/?#]*)/i.exec(request.url ?? '') ?? [];
  if (authority !== undefined) named.push(authority);
  return named.some((host) => isOneOf(host, hosts));
}

export const isOneOf = (host: string, hosts: ReadonlySet<string>): boolean =>
  hosts.has(hostName(host.trim().replace(/:\d*$/, '')));

/** RFC 9110 §15.5.20: this connection was opened under another name, with another policy. */
export function misdirected({ response, id }: Call): void {
  response.shouldKeepAlive = false;
  sendJson(response, {
    status: 421,
    body: {
      error: 'misdirected_request',
      error_description: 'open a connection of its own for this host',
      request_id: id,
    },
    headers: { connection: 'close' },
  });
}

/** RFC 9110 §15.5.15, RFC 6585 §5: more than anybody needs. */
export function tooLong(call: Call, status: 414 | 431): void {
  const { response, id } = call;
  response.shouldKeepAlive = false;
  call.note({ decision: 'refused', reason: status === 414 ? 'target_too_long' : 'head_too_large' });
  sendJson(response, {
    status,
    body: {
      error: 'invalid_request',
      error_description:
        status === 414 ? 'the target is too long' : 'the header fields are too many or too large',
      request_id: id,
    },
    headers: { connection: 'close' },
  });
}
