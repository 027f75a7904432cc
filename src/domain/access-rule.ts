import type { CorsPolicy } from './cors.ts';
import type { PathComparison } from './path-comparison.ts';
import type { RouteLimit } from './route-limit.ts';
import { covers, type Scope } from './scope.ts';

/** A literal, `*` for any segment, or `**` for any number of them. */
export type PatternSegment = { readonly literal: string } | '*' | '**';

type ParsedPattern =
  | { readonly ok: true; readonly segments: readonly PatternSegment[] }
  | { readonly ok: false; readonly problem: string };

export function parsePattern(text: string): ParsedPattern {
  const problem = (message: string): ParsedPattern => ({ ok: false, problem: `${message}: "${text}"` });
  if (!text.startsWith('/')) return problem('a path starts with /');
  if (/[?#%\\;\s]|\/\//.test(text))
    return problem('a path has no query, fragment, %, backslash, semicolon, space or //');
  const parts = text.slice(1).split('/');
  const segments: PatternSegment[] = [];
  for (const [index, part] of parts.entries()) {
    if (part === '.' || part === '..') return problem('a path has no . or .. segment');
    if (part === '**') {
      if (index !== parts.length - 1) return problem('** is allowed only as the last segment');
      segments.push('**');
    } else if (part === '*') segments.push('*');
    else if (part.includes('*')) return problem('* must be a whole segment');
    else segments.push({ literal: part });
  }
  return { ok: true, segments };
}

/** The name of gatehouse's own tokens in `routes[].issuers`. */
export const OWN_ISSUER = 'own';

const OWN_ONLY: ReadonlySet<string> = new Set([OWN_ISSUER]);

/** Whose tokens a rule accepts. */
export const getAcceptedIssuers = ({ issuers }: Pick<AccessRule, 'issuers'>): ReadonlySet<string> =>
  issuers ?? OWN_ONLY;

/** In `audiences` of a rule: the default audience, which own tokens do not name. */
export const DEFAULT_AUDIENCE = '';

const DEFAULT_ONLY: ReadonlySet<string> = new Set([DEFAULT_AUDIENCE]);

export const getAcceptedAudiences = ({ audiences }: Pick<AccessRule, 'audiences'>): ReadonlySet<string> =>
  audiences ?? DEFAULT_ONLY;

/** What a rule requires of requests. */
export type Requirement =
  | { readonly kind: 'public' }
  | { readonly kind: 'any-token' }
  | { readonly kind: 'scope'; readonly scope: Scope };

/** A configured route: the first match wins; requests without a match are denied. */
export interface AccessRule {
  /** Its position in the file and its path, for logs and `explain`. */
  readonly name: string;
  readonly pattern: readonly PatternSegment[];
  readonly host?: string;
  readonly methods?: ReadonlySet<string>;
  readonly requirement: Requirement;
  readonly clients?: ReadonlySet<string>;
  /** Whose tokens are accepted: `own`, and names of trusted issuers. Omitted: only gatehouse's own. */
  readonly issuers?: ReadonlySet<string>;
  /** The audiences that it accepts. Omitted: the default of own tokens, and any that its trusted issuers accept. */
  readonly audiences?: ReadonlySet<string>;
  readonly upstream: string;
  /** How the API compares paths; unknown if omitted. */
  readonly paths?: PathComparison;
  readonly stripPrefix?: string;
  readonly encodedSlash: boolean;
  readonly forwardAuthorization: boolean;
  readonly websocket?: boolean;
  readonly cors?: CorsPolicy;
  /** Log requests without the required token or scope instead of refusing them. */
  readonly reportOnly?: boolean;
  /** On the requests that are forwarded; a request must be within all of them. */
  readonly limits?: readonly RouteLimit[];
}

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
