import type { Epoch } from '../domain/epoch.ts';
import { type Grant, judgeRefresh, keepGrantUntil, revoked } from '../domain/grant.ts';
import { type Integration, mayHold } from '../domain/integration.ts';
import { granted, type Outcome, refused } from '../domain/outcome.ts';
import { excessOf, parseScope, writeScope } from '../domain/scope.ts';
import { Fault } from '../ports/fault.ts';
import type { GrantDesk } from './desk.ts';
import { grantFields, type Issued, issue, mustBeRecordable } from './issue.ts';
import { endGrant, isEnded } from './revoke.ts';

export interface RefreshAsk {
  readonly clientId: string;
  readonly refreshToken: string;
  /** The certificate on this connection, where there is one: its SHA-256, and its DER. */
  readonly certificate?: { readonly fingerprint: string; readonly der: Uint8Array };
  readonly arrivedAt: Epoch;
  /** RFC 6749 §6: no more than the grant has. The next token carries the grant's scope, whatever part of it is asked for. */
  readonly scope?: string;
}

/** A race is lost to another refresh of the same grant, so it is soon over; this many losses mean something else is wrong. */
const MAX_RACES = 64;

/**
 * Moves a grant on by one refresh: one read, one compare-and-swap. Safe on many workers and replicas at once:
 * whoever writes second reads again, and the same rules then give the right answer.
 */
export async function refresh(desk: GrantDesk, ask: RefreshAsk): Promise<Outcome<Issued>> {
  mustBeRecordable(desk);
  const integration = desk.integrations.get(ask.clientId);
  if (integration === undefined) return refused({ reason: 'client_unknown', clientId: ask.clientId });
  const token = desk.mint.openRefresh(ask.refreshToken, desk.now());
  if (token === undefined) return refused({ reason: 'refresh_token_forged' });

  for (let races = 0; races < MAX_RACES; races += 1) {
    const found = await desk.store.grants.read(token.grantId);
    if (found === undefined) return refused({ reason: 'grant_unknown' });
    const { record, version, now } = found;

    const verdict = judgeRefresh(record, {
      clientId: ask.clientId,
      generation: token.generation,
      now,
      arrivedAt: ask.arrivedAt,
      retryWindow: desk.policy.retryWindow,
      outages: () => desk.outages(now, record.rotatedAt),
      accessLifetime: integration.accessLifetime,
      keys: desk.mint.keys(now),
      format: integration.tokenFormat ?? 'jwt',
      ...(ask.certificate !== undefined && { certificate: ask.certificate.fingerprint }),
    });

    switch (verdict.kind) {
      case 'refused':
        return refused(verdict.refusal);
      case 'reused':
        return reused(desk, record, now);
      case 'repeated':
      case 'rotated':
        break;
    }
    // A revocation is announced before the record is sealed; a crash in between must not let the grant go on.
    if (isEnded(desk, record)) return refused({ reason: 'grant_revoked' });
    const within = withinGrant(record, ask.scope);
    if (!within.ok) return within;
    const allowed = await stillAllowed(desk, integration, record);
    if (!allowed.ok) return allowed;
    // A grant bound to a certificate lasts as long as the certificate does: revoked or run out, it buys nothing.
    if (record.boundTo !== undefined && ask.certificate !== undefined) {
      const sound = desk.certificates.judge(ask.certificate.der, now);
      if (!sound.ok) return sound;
    }

    const { grant } = verdict;
    if (verdict.kind === 'repeated') {
      // The first answer may have been withheld because its write was not confirmed: this one must be.
      await desk.store.settled();
      const issued = await issue(desk, grant, now);
      desk.log.audit('refresh_repeated', grantFields(grant));
      return granted(issued);
    }

    if (desk.policy.supersede)
      await desk.store.revocations.announce({
        of: 'grant',
        grantId: grant.id,
        belowGeneration: grant.generation,
        keepUntil: keepGrantUntil(grant),
      });
    const written = await desk.store.grants.replace(grant.id, version, grant, keepGrantUntil(grant));
    if (written === 'stale') continue;

    const issued = await issue(desk, grant, now);
    desk.log.audit(verdict.rolledForward ? 'refresh_rolled_forward' : 'grant_refreshed', grantFields(grant));
    return granted(issued);
  }
  throw new Fault('overloaded', `grant ${token.grantId} is being refreshed too often at once`);
}

function withinGrant(grant: Grant, asked: string | undefined): Outcome<unknown> {
  if (asked === undefined || asked === grant.scope) return granted(undefined);
  const scope = parseScope(asked, { spaces: true });
  if (!scope.ok) return scope;
  const given = parseScope(grant.scope, { spaces: true });
  if (!given.ok) return given;
  const excess = excessOf(scope.value, given.value);
  return excess ? refused({ reason: 'scope_exceeds_grant', excess: writeScope(excess) }) : given;
}

/** Asked at every refresh: the person, the integration and the access list may have changed since. */
async function stillAllowed(
  desk: GrantDesk,
  integration: Integration,
  grant: Grant,
): Promise<Outcome<unknown>> {
  const person = await desk.people.byIdentity(grant.identity);
  if (person === undefined) return refused({ reason: 'identity_unknown', who: grant.identity });
  if (person.disabled) return refused({ reason: 'identity_disabled', identity: person.identity });
  const scope = parseScope(grant.scope, { spaces: true });
  return scope.ok ? mayHold(integration, person, grant.grantType, scope.value) : scope;
}

/** A spent refresh token came back: two parties hold this grant, and we cannot know which is the thief (RFC 9700 §4.14). */
async function reused(desk: GrantDesk, grant: Grant, now: Epoch): Promise<Outcome<never>> {
  if (desk.policy.reuse === 'reject') {
    desk.log.audit('refresh_reuse', { ...grantFields(grant), action: 'refused' });
    return refused({ reason: 'refresh_token_spent', grantId: grant.id });
  }
  await endGrant(desk, revoked(grant, now));
  desk.log.audit('refresh_reuse', { ...grantFields(grant), action: 'grant ended' });
  return refused({ reason: 'refresh_token_reused', grantId: grant.id });
}
