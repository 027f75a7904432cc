import type { z } from 'zod';
import type { IssuedTokens } from '../grants/issue.ts';
import type { TokenGrant } from './schemas.ts';

/** Section 2.1 of the specification. */
export const formatTokenGrant = ({ grant, pair, expiresIn }: IssuedTokens): z.output<typeof TokenGrant> => ({
  access_token: pair.accessToken,
  refresh_token: pair.refreshToken,
  expires_in: expiresIn,
  expires: grant.accessExpires,
  token_type: 'Bearer',
  scope: grant.scope,
  refresh_until: grant.refreshUntil,
});
