import { METHODS as KNOWN_METHODS } from 'node:http';
import type { AccessRule } from '../domain/access-rule.ts';
import type { Integration } from '../domain/integration.ts';
import { isMethod } from '../domain/method.ts';
import { type RequestTarget, readTarget } from '../domain/request-target.ts';
import { type CompiledRules, hostName, type Misfit, type Tried } from '../domain/rule-matcher.ts';
import { excessOf, meet, type Scope, writeScope } from '../domain/scope.ts';
import { type AdmissionDesk, namesAccessToken } from './admission.ts';
import { unmetDemand } from './demand.ts';
import { isServed } from './request-head.ts';

/** By which requests are judged, as far as it does not depend on tokens. */
export interface ExplainDesk extends Pick<AdmissionDesk, 'rules' | 'isOwnAuthority' | 'pagesHost'> {
  /** Does the token service answer this path? */
  readonly isServicePath: (path: string) => boolean;
  /** Is this the path of a confirmation page? */
  readonly isPage?: (path: string) => boolean;
  /** Is this target, as sent, a question of another gateway? */
  readonly isCheck: (url: string) => boolean;
  /** Is this a host that requests may name? */
  readonly isListedHost?: (host: string) => boolean;
  /** What becomes of requests for others. */
  readonly otherHosts?: 'warn' | 'refuse';
}

export interface ExplainQuestion {
  readonly method: string;
  readonly path: string;
  readonly host: string;
  /** The scope of the imagined token. */
  readonly scope?: Scope;
  readonly client?: string;
  /** The integration of that client: its scope of now limits the token's. */
  readonly integration?: Integration;
}

export type Verdict =
  /** The gateway has the answer itself: the token service, or `OPTIONS *`. */
  | 'answered_here'
  | 'bad_path'
  | 'method_not_served'
  | 'misdirected'
  | 'public'
  | 'passes'
  | 'needs_token'
  | 'insufficient'
  | 'no_rule';

export interface Explanation {
  /** What the gateway would do. */
  readonly verdict: Verdict;
  readonly why: string;
  /** The path as rules see it and the upstream gets it. */
  readonly path?: string;
  readonly rule?: AccessRule;
  /** What the rule asks for: `public`, `any-token`, or a scope. */
  readonly asks?: string;
  /** The rule only reports: what it would refuse for want of a token or a scope passes. */
  readonly reportOnly?: true;
  /** The rule takes WebSocket handshakes. */
  readonly websocket?: true;
  /** Pages of these origins may read the answer. */
  readonly corsOrigins?: readonly string[];
  /** Of an OPTIONS: a browser that asks beforehand about one of these methods is answered by the gateway. */
  readonly preflightsFor?: readonly string[];
  /** The host is not listed: a request for it is logged as a warning. */
  readonly unlistedHost?: true;
  /** Over HTTP/1.1 the parser refuses this method (400). */
  readonly onlyHttp2?: true;
  readonly tried: readonly { readonly rule: string; readonly misfit: Misfit | undefined }[];
}

/** Answers with the live matcher and the live checks, in their order: what is said here is what happens. */
export function explain(desk: ExplainDesk, question: ExplainQuestion): Explanation {
  const { method, host, path } = question;
  const isUnlisted = path.startsWith('/') && !desk.isCheck(path) && desk.isListedHost?.(host) === false;
  return {
    ...explainRequest(desk, question, isUnlisted && desk.otherHosts === 'refuse'),
    ...(isUnlisted && { unlistedHost: true }),
    ...(isMethod(method) && !KNOWN_METHODS.includes(method) && { onlyHttp2: true }),
  };
}

function explainRequest(desk: ExplainDesk, question: ExplainQuestion, refusesHost: boolean): Explanation {
  const { rules } = desk;
  const { method, path, host } = question;
  const early = (verdict: Verdict, why: string): Explanation => ({ verdict, why, tried: [] });
  if (!isMethod(method)) return early('bad_path', 'a method has upper-case letters and dashes, at most 32');
  // The HTTP parser comes before everything else.
  if (/[^\x21-\x7e]/.test(path))
    return early('bad_path', 'the target holds a character that must be encoded');
  if (method === 'CONNECT') return early('method_not_served', 'this is no tunnel');
  if (desk.isCheck(path)) return early('answered_here', 'forward-auth answers it');
  if (!isServed(method)) return early('method_not_served', `${method} is not served`);
  if (refusesHost) return early('misdirected', `${host} is not listed in hosts.allowed`);
  const terms = { method, isOwn: desk.isOwnAuthority };
  const lenient = readTarget(path, { ...terms, encodedSlash: true });
  const isPage = lenient.kind === 'target' && desk.isPage?.(lenient.target.path) === true;
  if (lenient.kind === 'target' && desk.pagesHost !== undefined && !isPage) {
    const asked = hostName(lenient.target.authority ?? host);
    if (asked === desk.pagesHost) return early('misdirected', `${asked} serves the confirmation pages alone`);
  }
  if (lenient.kind === 'target' && desk.isServicePath(lenient.target.path))
    return early('answered_here', 'the token service answers it, and never forwards it');
  if (namesAccessToken(path)) return early('bad_path', 'a token in the query');
  const reading = readTarget(path, { ...terms, encodedSlash: rules.encodedSlash });
  if (reading.kind === 'asterisk') return early('answered_here', 'it is a question to the gateway itself');
  if (reading.kind === 'misdirected') return early('misdirected', `${reading.authority} is not served here`);
  if (reading.kind === 'malformed') return early('bad_path', reading.detail);
  const { target } = reading;
  const asked = { host: target.authority ?? host, target };
  const preflightsFor =
    method === 'OPTIONS' ? METHODS.filter((one) => rules.match({ ...asked, method: one })?.cors) : [];
  const judged = judge(rules, target, question);
  return { ...judged, ...(preflightsFor.length > 0 && { preflightsFor }) };
}

const METHODS = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE'] as const;

function judge(rules: CompiledRules, target: RequestTarget, question: ExplainQuestion): Explanation {
  const { method, host, scope, client, integration } = question;
  const trace = rules.trace({ method, host: target.authority ?? host, target });
  const tried = trace.map(({ rule, misfit }) => ({ rule: rule.name, misfit }));
  const last = trace.at(-1);
  const rule = last?.misfit === undefined ? last?.rule : undefined;
  if (rule === undefined) {
    return target.encodedSlash
      ? {
          verdict: 'bad_path',
          why: 'an encoded slash, and no rule that lets it stand',
          path: target.path,
          tried,
        }
      : { verdict: 'no_rule', why: whyNoRule(trace), path: target.path, tried };
  }

  const asks = asksOf(rule);
  const known = { path: target.path, rule, asks, tried, ...extrasOf(rule, method) };
  if (rule.demand.kind === 'public') return { verdict: 'public', why: 'the rule is public', ...known };
  if (scope === undefined && client === undefined)
    return { verdict: 'needs_token', why: `the rule asks for ${asks}`, ...known };

  const held: Scope = scope ?? integration?.scope ?? new Map();
  const effective = integration === undefined ? held : meet(held, integration.scope);
  const unmet = unmetDemand(rule, client ?? '', effective);
  if (unmet === undefined) return { verdict: 'passes', why: `the token gives ${asks}`, ...known };
  if (unmet.reason === 'client_not_admitted')
    return {
      verdict: 'insufficient',
      why: client === undefined ? 'the rule is for named clients only' : `the rule is not open to ${client}`,
      ...known,
    };
  const missing = rule.demand.kind === 'scope' ? excessOf(rule.demand.scope, effective) : undefined;
  return {
    verdict: 'insufficient',
    why: `the token lacks ${missing === undefined ? asks : writeScope(missing)}`,
    ...known,
  };
}

function whyNoRule(trace: readonly Tried[]): string {
  const stricter = trace.find(({ misfit }) => misfit === 'other_spelling')?.rule;
  const weaker = trace.find(({ misfit }) => misfit === 'other_reading')?.rule;
  if (stricter === undefined || weaker === undefined) return 'no rule matches, so it is denied';
  return `the path differs from ${stricter.name} only in letter case or by a trailing slash, and ${weaker.name} asks for less; if the API tells such paths apart, set upstreams.${weaker.upstream}.paths`;
}

function extrasOf({ websocket, cors, reportOnly, demand }: AccessRule, method: string) {
  return {
    ...(reportOnly === true && demand.kind !== 'public' && { reportOnly }),
    ...(websocket === true && method === 'GET' && { websocket }),
    ...(cors !== undefined && { corsOrigins: cors.origins === 'any' ? ['*'] : [...cors.origins] }),
  };
}

function asksOf(rule: AccessRule): string {
  const { demand } = rule;
  const asked = demand.kind === 'scope' ? writeScope(demand.scope) : demand.kind;
  return rule.clients === undefined ? asked : `${asked}, from ${[...rule.clients].join(' or ')}`;
}
