import { type AccessRule, getAcceptedAudiences, getAcceptedIssuers, OWN_ISSUER } from './access-rule.ts';
import type { RouteLimit } from './route-limit.ts';
import { covers } from './scope.ts';

/** Whether `other` allows everything that `rule` allows. Path, host and method are not compared. */
export function isAtLeastAsStrict(rule: AccessRule, other: AccessRule): boolean {
  if (rule.websocket === true && other.websocket !== true) return false;
  const limits = getEnforcedLimits(rule);
  if (!getEnforcedLimits(other).every((limit) => limits.some((own) => isAtLeastAsLow(own, limit)))) return false;
  if (allowsAll(other)) return true;
  if (allowsAll(rule)) return false;
  if (other.requirement.kind === 'scope') {
    if (rule.requirement.kind !== 'scope' || !covers(rule.requirement.scope, other.requirement.scope)) return false;
  }
  if (!getAcceptedIssuers(rule).isSubsetOf(getAcceptedIssuers(other))) return false;
  if (!acceptsAudiencesOf(rule, other)) return false;
  const { clients } = other;
  return clients === undefined || (rule.clients !== undefined && rule.clients.isSubsetOf(clients));
}

/** A rule without audiences accepts own tokens for the default audience, and tokens of other issuers for any. */
function acceptsAudiencesOf(rule: AccessRule, other: AccessRule): boolean {
  const issuers = getAcceptedIssuers(rule);
  const acceptsOwn = issuers.has(OWN_ISSUER);
  if (acceptsOwn && !getAcceptedAudiences(rule).isSubsetOf(getAcceptedAudiences(other))) return false;
  const acceptsForeign = issuers.size > (acceptsOwn ? 1 : 0);
  if (!acceptsForeign || other.audiences === undefined) return true;
  return rule.audiences !== undefined && rule.audiences.isSubsetOf(other.audiences);
}

const allowsAll = ({ requirement, reportOnly }: AccessRule): boolean =>
  requirement.kind === 'public' || reportOnly === true;

const getEnforcedLimits = ({ limits = [], reportOnly }: AccessRule): readonly RouteLimit[] =>
  reportOnly === true ? [] : limits;

/**
 * A limit for the whole route also limits each of its callers. A limit by address is for callers without a token;
 * callers of a rule that counts by identity or client have one.
 */
const isAtLeastAsLow = ({ per, rate }: RouteLimit, other: RouteLimit): boolean =>
  (per === other.per || per === 'route' || other.per === 'address') &&
  rate.perSecond <= other.rate.perSecond &&
  rate.burst <= other.rate.burst;
