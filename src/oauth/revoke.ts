import { granted, refused } from '../domain/outcome.ts';
import { accessTokenCaller, refreshTokenCaller } from '../grants/caller.ts';
import type { GrantDesk } from '../grants/desk.ts';
import { revokeByToken } from '../grants/revoke.ts';
import { namesOf } from '../http/wire-fields.ts';
import type { Operation } from './service.ts';
import { RevocationRequest } from './wire.ts';
import { REVOCATION_ERRORS } from './wire-errors.ts';

/**
 * RFC 7009: ends the whole grant of a refresh or access token, whatever has become of the token. What is not ours is
 * answered in the same way (§2.2), because the client has what it wanted: the token does not work. Who holds a token
 * may end it; a client that names itself ends only its own.
 */
export const revoke: Operation = {
  name: 'revoke',
  path: '/oauth2/revoke',
  // token_type_hint helps those who must search. A token of ours tells by itself what it is.
  known: namesOf(RevocationRequest),
  errors: () => REVOCATION_ERRORS,
  async caller({ desk }, { clientAddress }, parameters) {
    const token = parameters.get('token');
    if (token === undefined) return undefined;
    return (
      refreshTokenCaller(desk, token, clientAddress) ?? (await accessTokenCaller(desk, token, clientAddress))
    );
  },
  async answer({ desk }, call, parameters) {
    const token = parameters.get('token');
    if (token === undefined) return refused({ reason: 'token_missing' });
    const clientId = parameters.get('client_id');
    const now = desk.now();
    const refreshToken = desk.mint.openRefresh(token, now);
    const named =
      refreshToken === undefined
        ? await desk.mint.openAccess(token, now)
        : { ...refreshToken, expires: now + longestGrant(desk) };
    if (named === undefined) {
      call.note({ reason: 'unknown_token' });
      return granted({ status: 200, body: {} });
    }
    call.note({ grantId: named.grantId });
    const ended = await revokeByToken(desk, named, {
      by: refreshToken === undefined ? 'its access token' : 'its refresh token',
      ...(clientId !== undefined && { clientId }),
    });
    if (!ended.ok) return ended;
    if (ended.value !== undefined)
      call.note({ identity: ended.value.identity, clientId: ended.value.clientId });
    return granted({ status: 200, body: {} });
  },
};

/** A refresh token does not tell when the last access token of its grant ends; no grant lasts longer than this. */
const longestGrant = ({ integrations }: GrantDesk): number =>
  integrations.values().reduce((longest, { grantLifetime }) => Math.max(longest, grantLifetime), 0);
