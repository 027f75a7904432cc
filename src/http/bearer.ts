import type { IncomingMessage } from 'node:http';
import { granted, type Outcome, refused } from '../domain/outcome.ts';
import { queryOf } from './query.ts';

/** RFC 6750 §2.1: the scheme in any case, one space, b64token. An opaque token uses all of it: `+`, `/` and `==`. */
const BEARER = /^bearer ([A-Za-z0-9._~+/-]+=*)$/i;

/** The one token a request shows, in its Authorization header and nowhere else. Whether it is one of ours is another question. */
export function presentedToken(request: IncomingMessage): Outcome<string> {
  // RFC 6750 §5.3: tokens do not belong in URLs.
  if (/(?:^|&)(?:access_token|token)=/i.test(decodeLoosely(queryOf(request))))
    return refused({
      reason: 'request_malformed',
      detail: 'Send the access token in the Authorization header, not in the URL.',
    });
  const sent = request.headersDistinct['authorization'] ?? [];
  if (sent.length === 0) return refused({ reason: 'token_missing' });
  if (sent.length > 1)
    return refused({ reason: 'request_malformed', detail: 'Send one Authorization header.' });
  const token = BEARER.exec(sent[0] ?? '')?.[1];
  return token === undefined ? refused({ reason: 'token_invalid', why: 'malformed' }) : granted(token);
}

const decodeLoosely = (query: string): string =>
  query.replace(/%([0-9a-f]{2})/gi, (_, hex: string) => String.fromCharCode(Number.parseInt(hex, 16)));
