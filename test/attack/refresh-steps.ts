import { expect } from 'vitest';
import { openRefresh } from '../support/forge.ts';
import type { House, LogLine, Reply, TokenGrant } from '../support/house.ts';

export const INVALID_GRANT = { status: 400, json: { Error: 'invalid_grant' } };

export interface RefreshSteps {
  readonly read: (reply: Reply) => TokenGrant;
  readonly rotated: (token: string) => Promise<TokenGrant>;
  /** The status of an API request with this access token. */
  readonly call: (token: string) => Promise<number>;
  /** What the audit log says of reuse in this grant's family. */
  readonly reuses: (grant: TokenGrant) => readonly LogLine[];
  /** The family is over: no generation refreshes, and no access token works. */
  readonly expectFamilyEnded: (...generations: readonly TokenGrant[]) => Promise<void>;
}

/** What tests about refreshing do over and over; the house may be opened later. */
export function refreshSteps(house: () => House): RefreshSteps {
  const read: RefreshSteps['read'] = (reply) => {
    expect(reply.status, reply.text).toBe(200);
    return reply.json as unknown as TokenGrant;
  };
  const call: RefreshSteps['call'] = async (token) => (await house().api('/files/1', token)).status;
  return {
    read,
    rotated: async (token) => read(await house().refresh(token)),
    call,
    reuses: (grant) =>
      house()
        .audits('refresh_reuse')
        .filter((line) => line['grant'] === openRefresh(grant.refresh_token).grantId),
    async expectFamilyEnded(...generations) {
      for (const grant of generations) {
        expect(await house().refresh(grant.refresh_token)).toMatchObject(INVALID_GRANT);
        expect(await call(grant.access_token)).toBe(401);
      }
    },
  };
}
