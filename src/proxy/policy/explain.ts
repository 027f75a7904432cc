import { METHODS as KNOWN_METHODS } from 'node:http';
import {
  type AccessRule,
  DEFAULT_AUDIENCE,
  getAcceptedAudiences,
  getAcceptedIssuers,
  OWN_ISSUER,
} from '../../domain/access-rule.ts';
import type { Integration } from '../../domain/integration.ts';
import { isForwardableMethod, parseTarget, type RequestTarget } from '../../domain/request-target.ts';
import { formatRouteLimit } from '../../domain/route-limit.ts';
import { type Mismatch, normalizeHost, type TraceEntry } from '../../domain/rule-matcher.ts';
import { findExcess, formatScope, intersectScopes, type Scope } from '../../domain/scope.ts';
import { isServedMethod } from '../../http/request-head.ts';
import { findUnmetRequirement, hasAccessTokenInQuery, type PolicyContext } from './authorize.ts';

/** What the decision depends on, apart from tokens. */
export interface ExplainContext extends Pick<PolicyContext, 'rules' | 'isOwnAuthority' | 'pagesHost'> {
  /** Does the token service handle this path? */
  readonly isServicePath: (path: string) => boolean;
  /** Is this the path of a confirmation page? */
  readonly isPagePath?: (path: string) => boolean;
  /** Is this request target a forward-auth request? */
  readonly isForwardAuthPath: (url: string) => boolean;
  /** The issuer and audience of own tokens. */
  readonly publicUrl: string;
  /** By name. */
  readonly trustedIssuers: ReadonlyMap<string, { readonly issuer: string; readonly audience: readonly string[] }>;
  /** May requests name this host? */
  readonly isListedHost?: (host: string) => boolean;
  /** What happens to requests for other hosts. */
  readonly unlistedHosts?: 'warn' | 'refuse';
}

export interface ExplainRequest {
  readonly method: string;
  readonly path: string;
  readonly host: string;
  /** The scope of the assumed token. */
  readonly scope?: Scope;
  readonly client?: string;
  /** The integration of that client; its present scope limits the token's. */
  readonly integration?: Integration;
}

export type Verdict =
  /** Gatehouse handles it: the token service, or `OPTIONS *`. */
  | 'handled_by_gatehouse'
  | 'invalid_request'
  | 'method_not_allowed'
  | 'misdirected'
  | 'public'
  | 'allowed'
  | 'token_required'
  | 'forbidden'
  | 'no_rule';

/** Tokens of one issuer that a rule accepts. */
export interface AcceptedTokens {
  /** `own`, or the name of a trusted issuer. */
  readonly issuer: string;
  /** The `iss` claim. */
  readonly url: string;
  /** One of these must be in `aud`. */
  readonly audiences: readonly string[];
  /** A token of a trusted issuer needs one of these too. If omitted, the rule does not restrict them. */
  readonly routeAudiences?: readonly string[];
}

export interface Explanation {
  /** What the gateway would do. */
  readonly verdict: Verdict;
  readonly reason: string;
  /** The path that rules match and the upstream gets. */
  readonly path?: string;
  readonly rule?: AccessRule;
  /** `public`, `any-token`, or a scope. */
  readonly requirement?: string;
  /** The rule only reports: requests without a token or scope are forwarded. */
  readonly reportOnly?: true;
  /** The rule allows WebSockets. */
  readonly websocket?: true;
  /** Whose tokens the rule accepts, and for which APIs. Omitted for a public rule. */
  readonly accepts?: readonly AcceptedTokens[];
  /** Limits on its forwarded requests: `100/s per identity, burst 200`. */
  readonly limits?: readonly string[];
  /** Pages of these origins may read the response. */
  readonly corsOrigins?: readonly string[];
  /** For OPTIONS, gatehouse responds to preflights for these methods. */
  readonly preflightsFor?: readonly string[];
  /** The host is not listed: requests for it are logged as a warning. */
  readonly unlistedHost?: true;
  /** Over HTTP/1.1 the parser refuses this method (400). */
  readonly http2Only?: true;
  readonly tried: readonly { readonly rule: string; readonly misfit: Mismatch | undefined }[];
}

/** Uses the matcher and the checks of the proxy in the same order. */
export function explain(context: ExplainContext, request: ExplainRequest): Explanation {
  const { method, host, path } = request;
  const isUnlisted = path.startsWith('/') && !context.isForwardAuthPath(path) && context.isListedHost?.(host) === false;
  return {
    ...explainRequest(context, request, isUnlisted && context.unlistedHosts === 'refuse'),
    ...(isUnlisted && { unlistedHost: true }),
    ...(isForwardableMethod(method) && !KNOWN_METHODS.includes(method) && { http2Only: true }),
  };
}

function explainRequest(context: ExplainContext, request: ExplainRequest, isHostRefused: boolean): Explanation {
  const { rules } = context;
  const { method, path, host } = request;
  const withoutRule = (verdict: Verdict, reason: string): Explanation => ({ verdict, reason, tried: [] });
  if (!isForwardableMethod(method))
    return withoutRule('invalid_request', 'a method has at most 32 upper-case letters and dashes');
  // The HTTP parser comes before everything else.
  if (/[^\x21-\x7e]/.test(path))
    return withoutRule('invalid_request', 'the target contains a character that must be percent-encoded');
  if (method === 'CONNECT') return withoutRule('method_not_allowed', 'CONNECT is not supported');
  if (context.isForwardAuthPath(path)) return withoutRule('handled_by_gatehouse', 'handled by forward-auth');
  if (!isServedMethod(method)) return withoutRule('method_not_allowed', `${method} is not served`);
  if (isHostRefused) return withoutRule('misdirected', `${host} is not listed in hosts.allowed`);
  const options = { method, isServedAuthority: context.isOwnAuthority };
  const lenient = parseTarget(path, { ...options, encodedSlash: true });
  const isPagePath = lenient.kind === 'target' && context.isPagePath?.(lenient.target.path) === true;
  if (lenient.kind === 'target' && context.pagesHost !== undefined && !isPagePath) {
    const requestedHost = normalizeHost(lenient.target.authority ?? host);
    if (requestedHost === context.pagesHost)
      return withoutRule('misdirected', `${requestedHost} serves only the confirmation pages`);
  }
  if (lenient.kind === 'target' && context.isServicePath(lenient.target.path))
    return withoutRule('handled_by_gatehouse', 'handled by the token service, never forwarded');
  if (hasAccessTokenInQuery(path)) return withoutRule('invalid_request', 'a token in the query');
  const reading = parseTarget(path, { ...options, encodedSlash: rules.encodedSlash });
  if (reading.kind === 'asterisk') return withoutRule('handled_by_gatehouse', 'OPTIONS * is handled by the gateway');
  if (reading.kind === 'misdirected') return withoutRule('misdirected', `${reading.authority} is not served here`);
  if (reading.kind === 'malformed') return withoutRule('invalid_request', reading.detail);
  const { target } = reading;
  const matched = { host: target.authority ?? host, target };
  const preflightsFor =
    method === 'OPTIONS' ? PREFLIGHT_METHODS.filter((one) => rules.match({ ...matched, method: one })?.cors) : [];
  const explanation = evaluateRule(context, target, request);
  return { ...explanation, ...(preflightsFor.length > 0 && { preflightsFor }) };
}

const PREFLIGHT_METHODS = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE'] as const;

function evaluateRule(context: ExplainContext, target: RequestTarget, request: ExplainRequest): Explanation {
  const { rules } = context;
  const { method, host, scope, client, integration } = request;
  const trace = rules.trace({ method, host: target.authority ?? host, target });
  const tried = trace.map(({ rule, mismatch }) => ({ rule: rule.name, misfit: mismatch }));
  const last = trace.at(-1);
  const rule = last?.mismatch === undefined ? last?.rule : undefined;
  const { path, encodedSlash } = target;
  if (rule === undefined && encodedSlash)
    return { verdict: 'invalid_request', reason: 'an encoded slash, and no route allows it', path, tried };
  if (rule === undefined) return { verdict: 'no_rule', reason: explainNoRule(trace), path, tried };

  const requirement = describeRequirement(rule);
  const common = { path, rule, requirement, tried, ...getRuleFlags(rule, method) };
  if (rule.requirement.kind === 'public') return { verdict: 'public', reason: 'the rule is public', ...common };
  const accepted = { ...common, accepts: listAcceptedTokens(context, rule) };
  if (scope === undefined && client === undefined)
    return { verdict: 'token_required', reason: `the rule requires ${requirement}`, ...accepted };

  const tokenScope: Scope = scope ?? integration?.scope ?? new Map();
  const effective = integration === undefined ? tokenScope : intersectScopes(tokenScope, integration.scope);
  const unmet = findUnmetRequirement(rule, client ?? '', effective);
  if (unmet === undefined)
    return { verdict: 'allowed', reason: `the token meets the requirement ${requirement}`, ...accepted };
  const forbid = (reason: string): Explanation => ({ verdict: 'forbidden', reason, ...accepted });
  if (unmet.reason === 'client_not_allowed')
    return forbid(client === undefined ? 'the rule is for named clients only' : `the rule is not open to ${client}`);
  const missing = rule.requirement.kind === 'scope' ? findExcess(rule.requirement.scope, effective) : undefined;
  return forbid(`the token lacks ${missing === undefined ? requirement : formatScope(missing)}`);
}

/** As `acceptsIssuer` and `acceptsAudience` of the policy decide. */
function listAcceptedTokens(
  { publicUrl, trustedIssuers }: ExplainContext,
  rule: AccessRule,
): readonly AcceptedTokens[] {
  return [...getAcceptedIssuers(rule)].flatMap((name) => {
    if (name === OWN_ISSUER) {
      const audiences = [...getAcceptedAudiences(rule)].map((one) => (one === DEFAULT_AUDIENCE ? publicUrl : one));
      return [{ issuer: name, url: publicUrl, audiences: [...new Set(audiences)] }];
    }
    const trusted = trustedIssuers.get(name);
    if (trusted === undefined) return [];
    const { issuer: url, audience: audiences } = trusted;
    const routeAudiences = rule.audiences && [...rule.audiences].filter((one) => one !== DEFAULT_AUDIENCE);
    return [{ issuer: name, url, audiences, ...(routeAudiences && { routeAudiences }) }];
  });
}

function explainNoRule(trace: readonly TraceEntry[]): string {
  const stricter = trace.find(({ mismatch }) => mismatch === 'equivalent_path')?.rule;
  const weaker = trace.find(({ mismatch }) => mismatch === 'ambiguous_path')?.rule;
  if (stricter === undefined || weaker === undefined) return 'no rule matches';
  return `the path differs from ${stricter.name} only in letter case or by a trailing slash, and ${weaker.name} asks for less; if the API distinguishes such paths, set upstreams.${weaker.upstream}.paths`;
}

function getRuleFlags({ websocket, cors, reportOnly, requirement, limits }: AccessRule, method: string) {
  return {
    ...(reportOnly === true && requirement.kind !== 'public' && { reportOnly }),
    ...(limits !== undefined && { limits: limits.map(formatRouteLimit) }),
    ...(websocket === true && method === 'GET' && { websocket }),
    ...(cors !== undefined && { corsOrigins: cors.origins === 'any' ? ['*'] : [...cors.origins] }),
  };
}

function describeRequirement(rule: AccessRule): string {
  const { requirement } = rule;
  const required = requirement.kind === 'scope' ? formatScope(requirement.scope) : requirement.kind;
  const clients = rule.clients === undefined ? '' : `, from ${[...rule.clients].join(' or ')}`;
  const issuers = rule.issuers === undefined ? '' : `, issued by ${[...rule.issuers].join(' or ')}`;
  return `${required}${clients}${issuers}`;
}
