import type { AccessRule } from '../domain/access-rule.ts';
import { corsFields, preflightFields } from '../domain/cors.ts';
import { isMethod } from '../domain/method.ts';
import { type RequestTarget, readTarget } from '../domain/request-target.ts';
import { hostName } from '../domain/rule-matcher.ts';
import { type AdmissionDesk, namesAccessToken } from './admission.ts';
import { isServed, type RequestHead } from './request-head.ts';

export interface Preflight {
  readonly rule: AccessRule;
  readonly target: RequestTarget;
  readonly origin: string;
  /** What the answer says; undefined when this origin is not one of the rule's. */
  readonly fields: Readonly<Record<string, string>> | undefined;
}

/**
 * A browser's question whether a page may send a request (Fetch standard §4.8). It carries no token, so it is answered
 * here, by the rule the request itself would meet. Undefined: an OPTIONS like any other request.
 */
export function readPreflight(
  desk: Pick<AdmissionDesk, 'rules' | 'isOwnAuthority' | 'pagesHost'>,
  request: {
    readonly method?: string | undefined;
    readonly url?: string | undefined;
    readonly rawHeaders: readonly string[];
  },
  head: Pick<RequestHead, 'host' | 'authorization'>,
): Preflight | undefined {
  const { method, url = '', rawHeaders } = request;
  if (method !== 'OPTIONS' || head.authorization.length > 0 || namesAccessToken(url)) return undefined;
  const origin = onlyValue(rawHeaders, 'origin');
  const asked = onlyValue(rawHeaders, 'access-control-request-method');
  if (origin === undefined || asked === undefined || !isMethod(asked) || !isServed(asked)) return undefined;
  const { rules, isOwnAuthority } = desk;
  const reading = readTarget(url, { method, isOwn: isOwnAuthority, encodedSlash: rules.encodedSlash });
  if (reading.kind !== 'target') return undefined;
  const { target } = reading;
  const host = target.authority ?? head.host;
  if (desk.pagesHost !== undefined && hostName(host) === desk.pagesHost) return undefined;
  const rule = rules.match({ method: asked, host, target });
  if (rule?.cors === undefined) return undefined;
  return { rule, target, origin, fields: preflightFields(rule.cors, origin, asked) };
}

/** Fields for an answer to this request under this rule; none where the rule says nothing about other origins. */
export function corsOf(
  rule: AccessRule | undefined,
  rawHeaders: readonly string[],
): Readonly<Record<string, string>> | undefined {
  return rule?.cors && corsFields(rule.cors, originOf(rawHeaders));
}

export const originOf = (rawHeaders: readonly string[]): string | undefined =>
  onlyValue(rawHeaders, 'origin');

/** On such a route the upstream's own word about origins does not count, and ours stands behind the rest. */
export function withCors(list: readonly string[], fields: Readonly<Record<string, string>>): string[] {
  const kept: string[] = [];
  for (let at = 0; at + 1 < list.length; at += 2) {
    const name = list[at] ?? '';
    if (!name.toLowerCase().startsWith('access-control-')) kept.push(name, list[at + 1] ?? '');
  }
  return [...kept, ...Object.entries(fields).flat()];
}

/** The value of a field that stands there once. */
function onlyValue(rawHeaders: readonly string[], wanted: string): string | undefined {
  let found: string | undefined;
  for (let at = 0; at + 1 < rawHeaders.length; at += 2) {
    const name = rawHeaders[at] ?? '';
    if (name.length !== wanted.length || name.toLowerCase() !== wanted) continue;
    if (found !== undefined) return undefined;
    found = rawHeaders[at + 1] ?? '';
  }
  return found;
}
