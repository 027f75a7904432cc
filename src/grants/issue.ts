import { randomBytes } from 'node:crypto';
import type { Epoch } from '../domain/epoch.ts';
import { accessExpiry, type Grant } from '../domain/grant.ts';
import type { GrantType, Integration } from '../domain/integration.ts';
import { Fault } from '../ports/fault.ts';
import type { TokenPair } from '../ports/token-mint.ts';
import type { GrantDesk } from './desk.ts';

/** A grant together with the tokens of its current generation. */
export interface Issued {
  readonly grant: Grant;
  readonly pair: TokenPair;
  /** Seconds until the access token ends, rounded down. */
  readonly expiresIn: number;
}

export interface NewGrant {
  readonly id: string;
  readonly integration: Integration;
  readonly identity: string;
  readonly grantType: GrantType;
  readonly scope: string;
  readonly boundTo?: string;
  /** False: nobody is given its refresh token, so the grant ends with its access token. */
  readonly refreshable?: boolean;
  readonly now: Epoch;
}

export const randomGrantId = (): string => randomBytes(17).toString('base64url').slice(0, 22);

/**
 * The time that grants, tokens and sessions carry as their begin: never ahead of the store's clock, by which "everything until
 * now" is revoked, and by which a store that has lost its revocations refuses older tokens.
 */
export const issuingTime = (
  { store }: { readonly store: Pick<GrantDesk['store'], 'time'> },
  now: Epoch,
): Epoch => Math.min(now, store.time?.() ?? now);

export function firstGeneration(
  desk: GrantDesk,
  { integration, now, refreshable = true, ...rest }: NewGrant,
): Grant {
  const lifetime = refreshable
    ? integration.grantLifetime
    : Math.min(integration.accessLifetime, integration.grantLifetime);
  const refreshUntil = Math.floor(now) + lifetime;
  const issuedAt = issuingTime(desk, now);
  return {
    ...rest,
    clientId: integration.clientId,
    issuedAt: Math.floor(issuedAt),
    refreshUntil,
    generation: 1,
    rotatedAt: issuedAt,
    accessExpires: accessExpiry(now, integration.accessLifetime, refreshUntil),
    keys: desk.mint.keys(now),
    format: integration.tokenFormat ?? 'jwt',
  };
}

/** What cannot be recorded is not done, where the settings ask for it. Ending a grant goes on: that is never wrong. */
export function mustBeRecordable({ mayRecord }: Pick<GrantDesk, 'mayRecord'>): void {
  if (mayRecord?.() === false)
    throw new Fault('audit_unavailable', 'the audit log takes nothing at the moment', { retryAfter: 5 });
}

export async function issue(desk: GrantDesk, grant: Grant, now: Epoch): Promise<Issued> {
  return {
    grant,
    pair: await desk.mint.pair(grant, now),
    expiresIn: Math.max(0, Math.floor(grant.accessExpires - now)),
  };
}

/** The facts about a grant that audit lines carry. */
export const grantFields = (grant: Grant) => ({
  grant: grant.id,
  client: grant.clientId,
  identity: grant.identity,
  scope: grant.scope,
  grantType: grant.grantType,
  generation: grant.generation,
});
