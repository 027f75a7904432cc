import type { z } from 'zod';
import type { Issued } from '../grants/issue.ts';
import type { TokenGrant } from './wire.ts';

/** The token grant of the specification, section 2.1. */
export const tokenGrant = ({ grant, pair, expiresIn }: Issued): z.output<typeof TokenGrant> => ({
  access_token: pair.accessToken,
  refresh_token: pair.refreshToken,
  expires_in: expiresIn,
  expires: grant.accessExpires,
  token_type: 'Bearer',
  scope: grant.scope,
  refresh_until: grant.refreshUntil,
});
