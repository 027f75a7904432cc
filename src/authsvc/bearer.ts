import type { Bearer } from '../domain/bearer.ts';
import { granted, type Outcome, refused } from '../domain/outcome.ts';
import { accessTokenCaller, type Caller } from '../grants/caller.ts';
import { presentedToken } from '../http/bearer.ts';
import type { Call } from '../http/call.ts';
import type { Service } from './service.ts';

/** The authentic access token of a call. Whether it still counts is the operation's question. */
export async function bearerOf(service: Service, call: Call): Promise<Outcome<Bearer>> {
  const token = presentedToken(call.request);
  if (!token.ok) return token;
  const bearer = await service.desk.mint.readAccess(token.value, service.desk.now());
  if (bearer === undefined) return refused({ reason: 'token_invalid', why: 'not_authentic' });
  call.note({ identity: bearer.identity, clientId: bearer.clientId, grantId: bearer.grantId });
  return granted(bearer);
}

/** For the rate limits: the grant of an authentic access token, also of one that has expired. */
export async function bearerCaller({ desk }: Service, { request, clientAddress }: Call): Promise<Caller> {
  const token = presentedToken(request);
  return token.ok ? accessTokenCaller(desk, token.value, clientAddress) : undefined;
}
