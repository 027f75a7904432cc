import type { AccessRule } from '../../domain/access-rule.ts';
import { corsFields, preflightFields } from '../../domain/cors.ts';
import { isForwardableMethod, type RequestTarget } from '../../domain/request-target.ts';
import { normalizeHost } from '../../domain/rule-matcher.ts';
import { getSingleHeader } from '../../http/raw-headers.ts';
import type { HttpRequest } from '../../http/request-context.ts';
import { isServedMethod, type RequestHead } from '../../http/request-head.ts';
import { hasAccessTokenInQuery, type PolicyContext, readTarget } from './authorize.ts';

export interface Preflight {
  readonly rule: AccessRule;
  readonly target: RequestTarget;
  readonly origin: string;
  /** The fields of the response; undefined: the rule does not allow this origin. */
  readonly fields: Readonly<Record<string, string>> | undefined;
}

/**
 * A CORS preflight (Fetch standard §4.8). It has no token, so gatehouse responds to it according to the rule of the announced
 * request. Undefined: an ordinary OPTIONS request.
 */
export function readPreflight(
  policy: Pick<PolicyContext, 'rules' | 'isOwnAuthority' | 'pagesHost'>,
  { method, url, rawHeaders }: Pick<HttpRequest, 'method' | 'url' | 'rawHeaders'>,
  head: Pick<RequestHead, 'host' | 'authorization'>,
): Preflight | undefined {
  if (method !== 'OPTIONS' || head.authorization.length > 0 || hasAccessTokenInQuery(url)) return undefined;
  const origin = getSingleHeader(rawHeaders, 'origin');
  const requestedMethod = getSingleHeader(rawHeaders, 'access-control-request-method');
  if (
    origin === undefined ||
    requestedMethod === undefined ||
    !isForwardableMethod(requestedMethod) ||
    !isServedMethod(requestedMethod)
  )
    return undefined;
  const reading = readTarget(policy, method, url);
  if (reading.kind !== 'target') return undefined;
  const { target } = reading;
  const host = target.authority ?? head.host;
  if (policy.pagesHost !== undefined && normalizeHost(host) === policy.pagesHost) return undefined;
  const rule = policy.rules.match({ method: requestedMethod, host, target });
  if (rule?.cors === undefined) return undefined;
  return { rule, target, origin, fields: preflightFields(rule.cors, origin, requestedMethod) };
}

/** CORS fields of a response under this rule; undefined: the rule has no CORS policy. */
export function getCorsFields(
  rule: AccessRule | undefined,
  rawHeaders: readonly string[],
): Readonly<Record<string, string>> | undefined {
  return rule?.cors && corsFields(rule.cors, getOriginHeader(rawHeaders));
}

export const getOriginHeader = (rawHeaders: readonly string[]): string | undefined =>
  getSingleHeader(rawHeaders, 'origin');

/** Replaces the upstream's CORS fields by those of the rule. */
export function replaceCorsFields(list: readonly string[], fields: Readonly<Record<string, string>>): string[] {
  const kept: string[] = [];
  for (let at = 0; at + 1 < list.length; at += 2) {
    const name = list[at] ?? '';
    if (!name.toLowerCase().startsWith('access-control-')) kept.push(name, list[at + 1] ?? '');
  }
  return [...kept, ...Object.entries(fields).flat()];
}
