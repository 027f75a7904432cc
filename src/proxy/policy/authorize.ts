import { type AccessRule, DEFAULT_AUDIENCE, OWN_ISSUER } from '../../domain/access-rule.ts';
import { type Epoch, findTokenFault, type PresentedCertificate, type VerifiedToken } from '../../domain/grant.ts';
import type { Integration } from '../../domain/integration.ts';
import { parseTarget, type RequestTarget } from '../../domain/request-target.ts';
import { type CompiledRules, normalizeHost } from '../../domain/rule-matcher.ts';
import { covers, intersectScopes, type Scope } from '../../domain/scope.ts';
import { DISCLOSED_FAULTS, formatRejection, type RejectedToken, reject } from '../../domain/token-rejection.ts';
import type { RequestNotes } from '../../http/request-context.ts';
import { createHiddenProperty } from '../../lib/hidden-property.ts';
import type { RevocationLog } from '../../ports/store.ts';
import type { ProofVerifier } from '../../tokens/proof-verifier.ts';
import type { Credentials } from './credentials.ts';
import type { IdentityValues } from './headers.ts';
import type { ProxyRefusal } from './refusals.ts';

/** It is undefined if the token was rejected without a reason to log. */
type TokenReading = VerifiedToken | RejectedToken | undefined;

/** What decisions depend on. Everything is in memory: no network, no disk. */
export interface PolicyContext {
  readonly rules: CompiledRules;
  /** Synchronous for a cached token, asynchronous for a new one, whose signature is verified. */
  readonly readAccessToken: (
    token: string,
    now: Epoch,
    /** Taken from the rule: an opaque token is only sent to an issuer that the rule accepts. */
    issuers: AccessRule['issuers'],
    getClientAddress: AccessRequest['clientAddress'],
  ) => TokenReading | Promise<TokenReading>;
  readonly revocations: Pick<RevocationLog, 'isRevoked'>;
  readonly getIntegration: (clientId: string) => Integration | undefined;
  readonly isOwnAuthority: (authority: string) => boolean;
  /** Verifies DPoP proofs; omitted: the DPoP scheme is not accepted. */
  readonly proofs?: ProofPolicy | undefined;
  /** The host of the confirmation pages, where they have their own: nothing is forwarded from it. */
  readonly pagesHost?: string | undefined;
  /** The assertion about the caller for the upstream of the rule, if it requires one; a cached one synchronously. */
  readonly signAssertion?: (rule: AccessRule, caller: Caller) => string | Promise<string> | undefined;
}

interface ProofPolicy {
  readonly verifier: ProofVerifier;
  /** Scheme and authority of the URL that clients of this host use. */
  readonly getOrigin: (host: string) => string;
  /** Proofs are judged after the token was verified, which may take time. */
  readonly now: () => Epoch;
}

/** The DPoP proof of a request. */
export interface PresentedProof {
  /** The values of all DPoP fields. */
  readonly values: readonly string[];
  /** The host that a trusted proxy forwards. */
  readonly forwardedHost?: string | undefined;
  /** It forwards several, of which the client may have sent the first: the proof is refused. */
  readonly isHostAmbiguous?: true;
}

export const AMBIGUOUS_HOST = 'X-Forwarded-Host has several values';

export interface AccessRequest {
  readonly method: string;
  readonly url: string;
  readonly host: string;
  readonly credentials: Credentials;
  /** The client certificate of the request; read only for bound tokens. Asynchronous if its OCSP status is not cached. */
  readonly certificate: () => PresentedCertificate | undefined | Promise<PresentedCertificate | undefined>;
  /** Called only for the DPoP scheme. Omitted: the request has no proof. */
  readonly proof?: () => PresentedProof;
  /** Called only for unknown opaque tokens, which are limited by address. Omitted: they are not. */
  readonly clientAddress?: () => string;
  readonly now: Epoch;
}

/** The caller of a request. */
export interface Caller {
  readonly bearer: VerifiedToken;
  /** Undefined for the clients of trusted issuers. */
  readonly integration: Integration | undefined;
  /** The token's scope; for gatehouse's own tokens limited by the present scope of the integration. */
  readonly scope: Scope;
  /** The rule whose requirements it met last. Neither of them changes. */
  lastSatisfiedRule: AccessRule | undefined;
  /** For the upstream; computed when a header section is first built. */
  identityValues: IdentityValues | undefined;
}

export type AccessDecision =
  | {
      readonly kind: 'allowed';
      readonly rule: AccessRule;
      readonly target: RequestTarget;
      readonly caller: Caller | undefined;
      /** The decision took time: a signature was verified or made. */
      readonly isDelayed?: true;
      /** The rule only reports; otherwise it would refuse the request for this reason. */
      readonly wouldRefuse?: ProxyRefusal;
      readonly invalidToken?: VerifiedToken;
      readonly assertion?: string;
    }
  | { readonly kind: 'asterisk' }
  | {
      readonly kind: 'refused';
      readonly refusal: ProxyRefusal;
      /** It is undefined if the target cannot be read, or is not served here. */
      readonly target?: RequestTarget;
      readonly rule?: AccessRule;
      readonly caller?: Caller;
      /** For the log: the authentic token that is not valid, or not valid here. */
      readonly invalidToken?: VerifiedToken;
      /** For the log if no rule matches an authentic token: rules that almost matched, and why they did not. */
      readonly nearMisses?: string;
    };

const refuseWith = (refusal: ProxyRefusal): AccessDecision => ({ kind: 'refused', refusal });

export function authorize(policy: PolicyContext, request: AccessRequest): AccessDecision | Promise<AccessDecision> {
  const { method, credentials, url, now } = request;
  // On public routes too: an upstream may read the token.
  if (credentials.kind === 'ambiguous') return refuseWith({ reason: 'malformed', detail: credentials.detail });
  if (hasAccessTokenInQuery(url)) return refuseWith({ reason: 'malformed', detail: 'a token in the query' });

  const reading = readTarget(policy, method, url);
  if (reading.kind === 'asterisk') return reading;
  if (reading.kind === 'misdirected') return refuseWith({ reason: 'misdirected' });
  if (reading.kind === 'malformed') return refuseWith({ reason: 'malformed', detail: reading.detail });
  const { target } = reading;
  const host = target.authority ?? request.host;
  if (policy.pagesHost !== undefined && normalizeHost(host) === policy.pagesHost)
    return { kind: 'refused', refusal: { reason: 'misdirected' }, target };
  const rule = policy.rules.match({ method, host, target });
  if (rule === undefined && target.encodedSlash)
    return refuseWith({ reason: 'malformed', detail: 'an encoded slash in the path' });
  if (rule?.requirement.kind === 'public') return { kind: 'allowed', rule, target, caller: undefined };

  if (credentials.kind === 'none' || (credentials.kind === 'dpop' && policy.proofs === undefined))
    return refuseOrReport(rule, target, { reason: 'token_missing' });
  if (credentials.kind === 'malformed')
    return refuseOrReport(rule, target, { reason: 'token_invalid', fault: 'malformed' });
  if (credentials.kind === 'dpop') return decideWithProof(policy, request, target, rule, credentials.token);
  const read = policy.readAccessToken(credentials.token, now, rule?.issuers, request.clientAddress);
  const certificate = read instanceof Promise ? undefined : readBoundCertificate(request, read);
  return read instanceof Promise || certificate instanceof Promise
    ? decideLater(policy, request, target, rule, read, certificate)
    : addAssertion(policy, decide(policy, request, target, rule, read, certificate));
}

/** The target of a request, as rules and upstreams see it. */
export const readTarget = (
  { rules, isOwnAuthority }: Pick<PolicyContext, 'rules' | 'isOwnAuthority'>,
  method: string,
  url: string,
) => parseTarget(url, { method, isServedAuthority: isOwnAuthority, encodedSlash: rules.encodedSlash });

type PendingCertificate = ReturnType<AccessRequest['certificate']>;

/** The token must be verified first, or the status of its certificate requested. */
async function decideLater(
  policy: PolicyContext,
  request: AccessRequest,
  target: RequestTarget,
  rule: AccessRule | undefined,
  read: ReturnType<PolicyContext['readAccessToken']>,
  certificate: PendingCertificate,
): Promise<AccessDecision> {
  const bearer = await read;
  const pending = read instanceof Promise ? readBoundCertificate(request, bearer) : certificate;
  const presented = pending instanceof Promise ? await pending : pending;
  const decided = addAssertion(policy, decide(policy, request, target, rule, bearer, presented));
  return markDelayed(decided instanceof Promise ? await decided : decided);
}

/** RFC 9449 §7: a token that is bound to a key, with a proof of that key. */
async function decideWithProof(
  policy: PolicyContext,
  request: AccessRequest,
  target: RequestTarget,
  rule: AccessRule | undefined,
  accessToken: string,
): Promise<AccessDecision> {
  const { method, now } = request;
  const bearer = await policy.readAccessToken(accessToken, now, rule?.issuers, request.clientAddress);
  const certificate = await readBoundCertificate(request, bearer);
  const verified = getVerified(bearer);
  const refuse = (refusal: ProxyRefusal): AccessDecision => refuseToken(policy, request, target, rule, bearer, refusal);
  const proofKey = verified?.proofKey;
  // The proof of a token that is not valid is not verified: that costs more.
  const caller = validateBearer(policy, rule, bearer, now, certificate, proofKey);
  if ('reason' in caller) return refuse({ ...caller, scheme: 'dpop' });
  if (proofKey === undefined || policy.proofs === undefined)
    return refuse({ reason: 'token_invalid', fault: 'not_proof_bound', scheme: 'dpop' });
  const { values, forwardedHost, isHostAmbiguous } = request.proof?.() ?? NO_PROOF;
  if (isHostAmbiguous) return refuse({ reason: 'proof_invalid', detail: AMBIGUOUS_HOST });
  const checked = await policy.proofs.verifier.verify({
    proofs: values,
    method,
    origin: policy.proofs.getOrigin(forwardedHost ?? target.authority ?? request.host),
    path: target.path,
    bound: { accessToken, proofKey },
    now: policy.proofs.now(),
  });
  if (!checked.ok)
    return refuse(
      'nonce' in checked
        ? { reason: 'proof_nonce_required', nonce: checked.nonce }
        : { reason: 'proof_invalid', detail: checked.detail },
    );
  const decision = decide(policy, request, target, rule, bearer, certificate, proofKey);
  return markDelayed(await addAssertion(policy, decision));
}

const NO_PROOF: PresentedProof = { values: [] };

const readBoundCertificate = ({ certificate }: AccessRequest, bearer: TokenReading): PendingCertificate =>
  getVerified(bearer)?.boundTo === undefined ? undefined : certificate();

const getVerified = (bearer: TokenReading): VerifiedToken | undefined =>
  bearer === undefined || bearer.rejection !== undefined ? undefined : bearer;

/** The token is checked again before the request is forwarded: it may have expired or been revoked meanwhile. */
const markDelayed = (decision: AccessDecision): AccessDecision =>
  decision.kind === 'allowed' ? { ...decision, isDelayed: true } : decision;

function addAssertion(
  { signAssertion }: PolicyContext,
  decision: AccessDecision,
): AccessDecision | Promise<AccessDecision> {
  if (signAssertion === undefined || decision.kind !== 'allowed' || decision.caller === undefined) return decision;
  const assertion = signAssertion(decision.rule, decision.caller);
  if (assertion === undefined) return decision;
  return assertion instanceof Promise
    ? assertion.then((jwt) => markDelayed({ ...decision, assertion: jwt }))
    : { ...decision, assertion };
}

function refuseOrReport(
  rule: AccessRule | undefined,
  target: RequestTarget,
  refusal: ProxyRefusal,
  { caller, invalidToken }: { readonly caller?: Caller; readonly invalidToken?: VerifiedToken | undefined } = {},
): AccessDecision {
  const noted = invalidToken && { invalidToken };
  return rule?.reportOnly === true
    ? { kind: 'allowed', rule, target, caller, wouldRefuse: refusal, ...noted }
    : { kind: 'refused', refusal, target, ...(rule && { rule }), ...(caller && { caller }), ...noted };
}

function refuseToken(
  { rules }: PolicyContext,
  request: AccessRequest,
  target: RequestTarget,
  rule: AccessRule | undefined,
  bearer: TokenReading,
  refusal: ProxyRefusal,
): AccessDecision {
  const invalidToken = getVerified(bearer);
  const decision = refuseOrReport(rule, target, refusal, { invalidToken });
  // The response is that for a token which is not authentic, but the cause is that no rule matches.
  return rule === undefined && invalidToken?.issuer !== undefined && decision.kind === 'refused'
    ? { ...decision, nearMisses: describeNearMisses(rules, request, target) }
    : decision;
}

function decide(
  policy: PolicyContext,
  request: AccessRequest,
  target: RequestTarget,
  rule: AccessRule | undefined,
  bearer: TokenReading,
  certificate: PresentedCertificate | undefined,
  proofKey?: string,
): AccessDecision {
  const caller = validateBearer(policy, rule, bearer, request.now, certificate, proofKey);
  if ('reason' in caller) return refuseToken(policy, request, target, rule, bearer, caller);
  if (rule === undefined) {
    const nearMisses = describeNearMisses(policy.rules, request, target);
    return { kind: 'refused', refusal: { reason: 'no_rule' }, caller, nearMisses };
  }
  if (caller.lastSatisfiedRule !== rule) {
    if (!acceptsAudience(rule, caller.bearer))
      return refuseOrReport(rule, target, WRONG_AUDIENCE, { invalidToken: caller.bearer });
    const unmet = findUnmetRequirement(rule, caller.bearer.clientId, caller.scope);
    if (unmet !== undefined) return refuseOrReport(rule, target, unmet, { caller });
    caller.lastSatisfiedRule = rule;
  }
  return { kind: 'allowed', rule, target, caller };
}

const WRONG_AUDIENCE = { reason: 'token_invalid', fault: 'wrong_audience' } as const satisfies ProxyRefusal;

/** Checked for every request: each of these can change while a token is cached. */
function validateBearer(
  policy: PolicyContext,
  rule: AccessRule | undefined,
  bearer: TokenReading,
  now: Epoch,
  certificate: PresentedCertificate | undefined,
  proofKey: string | undefined,
): Caller | InvalidToken {
  if (bearer === undefined || bearer.rejection !== undefined) return refuseRejected(rule, bearer);
  if (!acceptsIssuer(rule, bearer.issuer))
    return refuseRejected(rule, reject('issuer_not_accepted', bearer.issuer ?? OWN_ISSUER));
  // The clients of a trusted issuer are registered there.
  const integration = bearer.issuer === undefined ? policy.getIntegration(bearer.clientId) : undefined;
  const fault = findTokenFault(bearer, {
    now,
    revoked: policy.revocations.isRevoked(bearer),
    clientKnown: integration !== undefined || bearer.issuer !== undefined,
    proofKey,
    certificate: () => certificate,
  });
  if (fault !== undefined) return { reason: 'token_invalid', fault };
  if (certificate?.der !== undefined && presentedCertificates.get(bearer) === undefined)
    presentedCertificates.set(bearer, certificate.der);
  return getCaller(bearer, integration);
}

type InvalidToken = Extract<ProxyRefusal, { reason: 'token_invalid' }>;

/**
 * The client does not learn why, so that it cannot probe which issuers are trusted where with forged tokens. Only the holder of
 * an authentic token learns why it is not valid, and only where a valid one of the same issuer would be accepted.
 */
function refuseRejected(rule: AccessRule | undefined, rejected: RejectedToken | undefined): InvalidToken {
  if (rejected === undefined) return { reason: 'token_invalid', fault: 'not_authentic' };
  const { rejection } = rejected;
  const { issuer, isAuthentic } = rejection;
  const isDisclosed = isAuthentic === true && acceptsIssuer(rule, issuer);
  const disclosed = isDisclosed ? DISCLOSED_FAULTS.find((fault) => fault === rejection.fault) : undefined;
  return {
    reason: 'token_invalid',
    fault: disclosed ?? 'not_authentic',
    detail: `${formatRejection(rejection)}${issuer === undefined ? '' : ` (issuer ${issuer})`}`,
  };
}

/** A token of a trusted issuer is not authentic where the rule does not list the issuer. */
const acceptsIssuer = (rule: AccessRule | undefined, issuer: string | undefined): boolean =>
  rule?.issuers === undefined ? issuer === undefined : rule.issuers.has(issuer ?? OWN_ISSUER);

/** RFC 9068 §4: a token for another API is refused. The audience of a foreign token was compared with that of its issuer. */
function acceptsAudience({ audiences }: AccessRule, { issuer, audience }: VerifiedToken): boolean {
  if (audiences === undefined) return issuer !== undefined || audience === undefined;
  return audience?.some((name) => audiences.has(name)) ?? audiences.has(DEFAULT_AUDIENCE);
}

/** The certificate (DER) that was presented with a bound token. */
const presentedCertificates = createHiddenProperty<VerifiedToken, Uint8Array>();
export const getPresentedCertificate = (bearer: VerifiedToken): Uint8Array | undefined =>
  presentedCertificates.get(bearer);

/** A cached token is the same object each time, so its caller is computed once. */
const callers = createHiddenProperty<VerifiedToken, Caller>();

function getCaller(bearer: VerifiedToken, integration: Integration | undefined): Caller {
  const known = callers.get(bearer);
  if (known !== undefined && known.integration === integration) return known;
  const caller: Caller = {
    bearer,
    integration,
    scope: integration === undefined ? bearer.scope : intersectScopes(bearer.scope, integration.scope),
    lastSatisfiedRule: undefined,
    identityValues: undefined,
  };
  callers.set(bearer, caller);
  return caller;
}

/** RFC 6750 §5.3: tokens in URLs end up in logs and histories. Percent-encoded names are found too. */
export function hasAccessTokenInQuery(url: string): boolean {
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

interface NotedDecision {
  readonly rule?: AccessRule;
  readonly caller?: Caller | undefined;
  readonly invalidToken?: VerifiedToken | undefined;
}

/** What the log line of the request says about the decision. The identity is that of a caller, who has proved it. */
export function noteDecision(notes: RequestNotes, { rule, caller, invalidToken }: NotedDecision): void {
  if (rule !== undefined) {
    notes.rule = rule.name;
    notes.upstream = rule.upstream;
  }
  const bearer = caller?.bearer ?? invalidToken;
  if (bearer === undefined) return;
  notes.clientId = bearer.clientId;
  notes.grantId = bearer.grantId;
  if (caller === undefined) return;
  const { profile } = bearer;
  notes.identity = bearer.identity;
  if (profile?.name !== undefined) notes.name = profile.name;
}

/** The rule of a request that could not be decided, for its log line. */
export function findRule(
  policy: PolicyContext,
  { method, url, host }: Pick<AccessRequest, 'method' | 'url' | 'host'>,
): { readonly rule?: AccessRule } {
  const reading = readTarget(policy, method, url);
  if (reading.kind !== 'target') return {};
  const { target } = reading;
  const rule = policy.rules.match({ method, host: target.authority ?? host, target });
  return rule === undefined ? {} : { rule };
}

const MAX_NEAR_MISSES = 8;

function describeNearMisses(rules: CompiledRules, { method, host }: AccessRequest, target: RequestTarget): string {
  const trace = rules.trace({ method, host: target.authority ?? host, target });
  const near = trace.filter(({ mismatch }) => mismatch !== 'path');
  if (near.length === 0) return `none of ${rules.rules.length} rules has this path`;
  return near
    .slice(0, MAX_NEAR_MISSES)
    .map(({ rule, mismatch }) => `${rule.name}: ${mismatch}`)
    .join('; ');
}

type UnmetRequirement = Extract<ProxyRefusal, { reason: 'client_not_allowed' | 'insufficient_scope' }>;

/** The requirement of a rule that the caller does not meet; undefined: all are met. */
export function findUnmetRequirement(rule: AccessRule, clientId: string, scope: Scope): UnmetRequirement | undefined {
  const requiredScope = rule.requirement.kind === 'scope' ? rule.requirement.scope : undefined;
  if (rule.clients !== undefined && !rule.clients.has(clientId))
    return {
      reason: 'client_not_allowed',
      ...(requiredScope !== undefined && { scope: requiredScope }),
    };
  if (requiredScope !== undefined && !covers(scope, requiredScope))
    return { reason: 'insufficient_scope', scope: requiredScope };
  return undefined;
}
