import type { Bearer } from '../domain/bearer.ts';
import { granted, type Outcome, refused } from '../domain/outcome.ts';
import type { Call } from '../http/call.ts';
import type { Service } from './service.ts';

const BEARER = /^bearer ([A-Za-z0-9._~+/-]+=*)$/i;

/** The authentic access token of a call. Whether it still counts is the operation's question. */
export async function bearerOf(service: Service, call: Call): Promise<Outcome<Bearer>> {
  const query = call.request.url?.split('?', 2)[1] ?? '';
  // RFC 6750 §5.3: tokens do not belong in URLs.
  if (/(?:^|&)(?:access_token|token)=/i.test(decodeLoosely(query)))
    return refused({
      reason: 'request_malformed',
      detail: 'Send the access token in the Authorization header, not in the URL.',
    });
  const sent = call.request.headersDistinct['authorization'] ?? [];
  if (sent.length === 0) return refused({ reason: 'token_missing' });
  if (sent.length > 1)
    return refused({ reason: 'request_malformed', detail: 'Send one Authorization header.' });
  const token = BEARER.exec(sent[0] ?? '')?.[1];
  if (token === undefined) return refused({ reason: 'token_invalid', why: 'malformed' });
  const bearer = await service.desk.mint.readAccess(token, service.desk.now());
  if (bearer === undefined) return refused({ reason: 'token_invalid', why: 'not_authentic' });
  call.note({ identity: bearer.identity, clientId: bearer.clientId, grantId: bearer.grantId });
  return granted(bearer);
}

const decodeLoosely = (query: string): string =>
  query.replace(/%([0-9a-f]{2})/gi, (_, hex: string) => String.fromCharCode(Number.parseInt(hex, 16)));
