import type { AccessRule } from '../domain/access-rule.ts';
import { type Bearer, bearerFault, type ShownCertificate } from '../domain/bearer.ts';
import type { Epoch } from '../domain/epoch.ts';
import type { Integration } from '../domain/integration.ts';
import type { TokenFault } from '../domain/refusal.ts';
import { type RequestTarget, readTarget } from '../domain/request-target.ts';
import { type CompiledRules, hostName } from '../domain/rule-matcher.ts';
import { meet, type Scope } from '../domain/scope.ts';
import type { RevocationLog } from '../ports/revocation-log.ts';
import type { Credentials } from './credentials.ts';
import { unmetDemand } from './demand.ts';
import type { ProxyRefusal } from './refuse.ts';

/** May this request pass, and as whom? Answered from memory: no network, no disk. */
export interface AdmissionDesk {
  readonly rules: CompiledRules;
  /** A remembered token is answered at once, a new one after its signature was checked. */
  readonly readAccess: (token: string, now: Epoch) => Bearer | undefined | Promise<Bearer | undefined>;
  readonly revocations: Pick<RevocationLog, 'isRevoked'>;
  readonly integrationOf: (clientId: string) => Integration | undefined;
  readonly isOwnAuthority: (authority: string) => boolean;
  /** The host of the confirmation pages, where it is theirs alone: nothing is forwarded from it. */
  readonly pagesHost?: string | undefined;
}

export interface AdmissionQuestion {
  readonly method: string;
  readonly url: string;
  readonly host: string;
  readonly credentials: Credentials;
  /** The client certificate of the request; read only for bound tokens. */
  readonly certificate: () => ShownCertificate | undefined;
  readonly now: Epoch;
}

/** Who is calling, as far as it counts now. */
export interface Caller {
  readonly bearer: Bearer;
  /** The token's scope within the integration's scope of now. */
  readonly scope: Scope;
  /** The rule that was last found content with it. Neither of them changes. */
  satisfies: AccessRule | undefined;
}

export type Admission =
  | {
      readonly kind: 'admitted';
      readonly rule: AccessRule;
      readonly target: RequestTarget;
      readonly caller: Caller | undefined;
      /** A rule that only reports let it pass in spite of this. */
      readonly wouldRefuse?: ProxyRefusal;
    }
  | { readonly kind: 'asterisk' }
  | {
      readonly kind: 'refused';
      readonly refusal: ProxyRefusal;
      readonly rule?: AccessRule;
      readonly caller?: Caller;
      /** For the log of a 404: rules that came near, and why they did not match. */
      readonly tried?: string;
    };

const refused = (refusal: ProxyRefusal): Admission => ({ kind: 'refused', refusal });

export function admit(desk: AdmissionDesk, question: AdmissionQuestion): Admission | Promise<Admission> {
  const { method, credentials, url, now } = question;
  // On public routes too: an upstream may look where we did not.
  if (credentials.kind === 'ambiguous') return refused({ reason: 'malformed', detail: credentials.detail });
  if (namesAccessToken(url)) return refused({ reason: 'malformed', detail: 'a token in the query' });

  const { rules } = desk;
  const reading = readTarget(url, { method, isOwn: desk.isOwnAuthority, encodedSlash: rules.encodedSlash });
  if (reading.kind === 'asterisk') return reading;
  if (reading.kind === 'misdirected') return refused({ reason: 'misdirected' });
  if (reading.kind === 'malformed') return refused({ reason: 'malformed', detail: reading.detail });
  const { target } = reading;
  const host = target.authority ?? question.host;
  if (desk.pagesHost !== undefined && hostName(host) === desk.pagesHost)
    return refused({ reason: 'misdirected' });
  const rule = rules.match({ method, host, target });
  if (rule === undefined && target.encodedSlash)
    return refused({ reason: 'malformed', detail: 'an encoded slash in the path' });
  if (rule?.demand.kind === 'public') return { kind: 'admitted', rule, target, caller: undefined };

  if (credentials.kind === 'none') return turnedAway(rule, target, { reason: 'token_missing' });
  if (credentials.kind === 'malformed')
    return turnedAway(rule, target, { reason: 'token_invalid', why: 'malformed' });
  const read = desk.readAccess(credentials.token, now);
  return read instanceof Promise
    ? read.then((bearer) => decide(desk, question, host, target, rule, bearer))
    : decide(desk, question, host, target, rule, read);
}

function turnedAway(
  rule: AccessRule | undefined,
  target: RequestTarget,
  refusal: ProxyRefusal,
  caller?: Caller,
): Admission {
  return rule?.reportOnly === true
    ? { kind: 'admitted', rule, target, caller, wouldRefuse: refusal }
    : { kind: 'refused', refusal, ...(rule && { rule }), ...(caller && { caller }) };
}

function decide(
  desk: AdmissionDesk,
  { method, now, certificate }: AdmissionQuestion,
  host: string,
  target: RequestTarget,
  rule: AccessRule | undefined,
  bearer: Bearer | undefined,
): Admission {
  const caller = judgeBearer(desk, bearer, now, certificate);
  if (typeof caller === 'string') return turnedAway(rule, target, { reason: 'token_invalid', why: caller });
  if (rule === undefined)
    return {
      kind: 'refused',
      refusal: { reason: 'no_rule' },
      caller,
      tried: nearMisses(desk.rules, { method, host, target }),
    };
  if (caller.satisfies !== rule) {
    const unmet = unmetDemand(rule, caller.bearer.clientId, caller.scope);
    if (unmet !== undefined) return turnedAway(rule, target, unmet, caller);
    caller.satisfies = rule;
  }
  return { kind: 'admitted', rule, target, caller };
}

/** Asked on every use, of remembered tokens too: each of these can change while a token is remembered. */
function judgeBearer(
  desk: AdmissionDesk,
  bearer: Bearer | undefined,
  now: Epoch,
  certificate: () => ShownCertificate | undefined,
): Caller | TokenFault {
  if (bearer === undefined) return 'not_authentic';
  const integration = desk.integrationOf(bearer.clientId);
  const fault = bearerFault(bearer, {
    now,
    revoked: desk.revocations.isRevoked(bearer),
    clientKnown: integration !== undefined,
    certificate,
  });
  if (fault !== undefined) return fault;
  if (bearer.boundTo !== undefined && !shownWith.has(bearer)) {
    const der = certificate()?.der;
    if (der !== undefined) shownWith.set(bearer, der);
  }
  return integration === undefined ? 'client_removed' : callerOf(bearer, integration);
}

/** The certificate (DER) that a bound token was admitted with. */
const shownWith = new WeakMap<Bearer, Uint8Array>();
export const certificateShownWith = (bearer: Bearer): Uint8Array | undefined => shownWith.get(bearer);

/** A remembered token comes as the same object each time, so what follows from it is worked out once. */
const callers = new WeakMap<Bearer, { readonly of: Integration; readonly caller: Caller }>();

function callerOf(bearer: Bearer, integration: Integration): Caller {
  const known = callers.get(bearer);
  if (known?.of === integration) return known.caller;
  const caller: Caller = { bearer, scope: meet(bearer.scope, integration.scope), satisfies: undefined };
  callers.set(bearer, { of: integration, caller });
  return caller;
}

/** RFC 6750 §5.3: a token in a URL ends up in logs and histories. Encoded names count as well. */
export function namesAccessToken(url: string): boolean {
  const mark = url.indexOf('?');
  if (mark < 0) return false;
  const query = url.slice(mark + 1);
  if (!query.includes('%')) return /(?:^|[&;])access_token(?:[=&;]|$)/.test(query);
  return query.split(/[&;]/).some((pair) => {
    const name = (pair.split('=', 1)[0] ?? '').replace(/%([0-9A-Fa-f]{2})/g, (_, hex: string) =>
      String.fromCharCode(Number.parseInt(hex, 16)),
    );
    return name === 'access_token';
  });
}

const NEAR_MISSES = 8;

function nearMisses(rules: CompiledRules, question: Parameters<CompiledRules['trace']>[0]): string {
  const near = rules.trace(question).filter(({ misfit }) => misfit !== 'path');
  if (near.length === 0) return `none of ${rules.rules.length} rules has this path`;
  return near
    .slice(0, NEAR_MISSES)
    .map(({ rule, misfit }) => `${rule.name}: ${misfit}`)
    .join('; ');
}
