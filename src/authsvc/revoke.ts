import { granted, refused } from '../domain/outcome.ts';
import { revokeByBearer } from '../grants/revoke.ts';
import { bearerOf } from './bearer.ts';
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
  async answer(service, call) {
    const { 'sec-purpose': secPurpose = '', purpose: oldPurpose = '' } = call.request.headers;
    if (/prefetch|prerender/i.test(String([secPurpose, oldPurpose])))
      return refused({ reason: 'request_malformed', detail: 'A prefetch revokes nothing.' });
    const bearer = await bearerOf(service, call);
    if (!bearer.ok) return bearer;
    await revokeByBearer(service.desk, bearer.value);
    return granted({ status: 200, body: {} });
  },
};
