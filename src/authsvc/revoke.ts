import { granted, refused } from '../domain/outcome.ts';
import { revokeByToken } from '../grants/revoke.ts';
import { presentedToken } from '../http/bearer.ts';
import { bearerCaller } from './bearer.ts';
import type { Operation } from './service.ts';
import { BEARER_ERRORS } from './wire-errors.ts';

/**
 * GET Revoke/Token: ends the whole grant. An authentic token is enough, whatever has become of it: expired,
 * superseded, revoked already, or shown without its certificate. Ending a grant is the safe direction.
 */
export const revoke: Operation = {
  name: 'revoke',
  method: 'GET',
  head: false,
  path: '/revoke/token',
  errors: BEARER_ERRORS,
  fault: { status: 503, code: 'temporarily_unavailable' },
  caller: bearerCaller,
  async answer(service, call) {
    const { 'sec-purpose': secPurpose = '', purpose: oldPurpose = '' } = call.request.headers;
    if (/prefetch|prerender/i.test(String([secPurpose, oldPurpose])))
      return refused({ reason: 'request_malformed', detail: 'A prefetch revokes nothing.' });
    const token = presentedToken(call.request);
    if (!token.ok) return token;
    const { desk } = service;
    // What the token itself names is enough, so that it can be denied here even while the store is away.
    const named = await desk.mint.openAccess(token.value, desk.now());
    if (named === undefined) return refused({ reason: 'token_invalid', why: 'not_authentic' });
    call.note({ grantId: named.grantId });
    const ended = await revokeByToken(desk, named, { by: 'its access token' });
    if (!ended.ok) return ended;
    if (ended.value !== undefined)
      call.note({ identity: ended.value.identity, clientId: ended.value.clientId });
    return granted({ status: 200, body: {} });
  },
};
