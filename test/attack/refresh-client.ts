import { expect } from 'vitest';
import { splitRefreshToken } from '../support/forged-tokens.ts';
import type { LogLine, Reply, TestGateway, TokenGrant } from '../support/test-gateway.ts';

export const INVALID_GRANT = { status: 400, json: { Error: 'invalid_grant' } };

export interface RefreshClient {
  readonly parseGrant: (reply: Reply) => TokenGrant;
  readonly rotate: (token: string) => Promise<TokenGrant>;
  /** The status of an API request with this access token. */
  readonly requestStatus: (token: string) => Promise<number>;
  /** Audit events about reuse of refresh tokens of this grant. */
  readonly reuseEvents: (grant: TokenGrant) => readonly LogLine[];
  /** Expects that the grant is revoked: no refresh token and no access token of these generations works. */
  readonly expectFamilyEnded: (...generations: readonly TokenGrant[]) => Promise<void>;
}

/** Common steps of refresh tests; the gateway may be started later. */
export function createRefreshClient(gateway: () => TestGateway): RefreshClient {
  const parseGrant: RefreshClient['parseGrant'] = (reply) => {
    expect(reply.status, reply.text).toBe(200);
    return reply.json as unknown as TokenGrant;
  };
  const requestStatus: RefreshClient['requestStatus'] = async (token) =>
    (await gateway().api('/files/1', token)).status;
  return {
    parseGrant,
    rotate: async (token) => parseGrant(await gateway().refresh(token)),
    requestStatus,
    reuseEvents: (grant) =>
      gateway()
        .auditEvents('refresh_reuse')
        .filter((line) => line['grant'] === splitRefreshToken(grant.refresh_token).grantId),
    async expectFamilyEnded(...generations) {
      for (const grant of generations) {
        expect(await gateway().refresh(grant.refresh_token)).toMatchObject(INVALID_GRANT);
        expect(await requestStatus(grant.access_token)).toBe(401);
      }
    },
  };
}
