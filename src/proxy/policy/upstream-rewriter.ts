import type { AccessRule } from '../../domain/access-rule.ts';
import type { VerifiedToken } from '../../domain/grant.ts';
import { normalizeAuthority, type RequestTarget } from '../../domain/request-target.ts';
import type { UpstreamSettings } from '../upstream/targets.ts';
import type { AccessDecision } from './authorize.ts';

export type AllowedRequest = AccessDecision & { readonly kind: 'allowed' };

interface UpstreamRewriterDeps {
  readonly upstreams: Readonly<Record<string, UpstreamSettings>>;
  /** `{base_url}`. */
  readonly publicUrl: string;
}

const NO_FIELDS: readonly string[] = [];

export class UpstreamRewriter {
  readonly #deps: UpstreamRewriterDeps;
  readonly #upstreamOrigins: ReadonlyMap<string, ReadonlySet<string>>;
  readonly #protocol: string;

  constructor(deps: UpstreamRewriterDeps) {
    this.#deps = deps;
    this.#upstreamOrigins = new Map(
      Object.entries(deps.upstreams).map(([name, { targets }]) => [name, getOrigins(targets)]),
    );
    this.#protocol = new URL(deps.publicUrl).protocol;
  }

  /** How redirects of this upstream are rewritten; undefined: not at all. */
  getLocationRewrite({ rule, target }: AllowedRequest, host: string): LocationRewrite | undefined {
    const { upstreams, publicUrl } = this.#deps;
    const upstreamOrigins = this.#upstreamOrigins.get(rule.upstream);
    if (upstreamOrigins === undefined || upstreams[rule.upstream]?.rewriteLocation === false) return undefined;
    // A rule with its own host is not reachable under the host of `publicUrl`.
    const publicOrigin = rule.host === undefined ? publicUrl : `${this.#protocol}//${host}`;
    return { upstreamOrigins, publicOrigin, strippedPrefix: getStrippedPrefix(rule, target) };
  }

  /** Name and value of the assertion field; empty: the upstream gets none. */
  getAssertionField({ rule, assertion }: AllowedRequest): readonly string[] {
    const settings = this.#deps.upstreams[rule.upstream]?.assertion;
    return settings === undefined || assertion === undefined ? NO_FIELDS : [settings.header, assertion];
  }
}

/** The token that a response depends on; none under a rule that only reports. */
export const getEnforcedBearer = ({ rule, caller }: AllowedRequest): VerifiedToken | undefined =>
  rule.reportOnly === true ? undefined : caller?.bearer;

export function isEventStream(rawHeaders: readonly string[]): boolean {
  for (let at = 0; at + 1 < rawHeaders.length; at += 2)
    if (rawHeaders[at]?.length === 12 && rawHeaders[at]?.toLowerCase() === 'content-type')
      return /^\s*text\/event-stream\s*(?:;|$)/i.test(rawHeaders[at + 1] ?? '');
  return false;
}

/** The part of the path that the rule removes: as many segments as its prefix has. */
function getStrippedPrefix({ stripPrefix }: AccessRule, { path }: RequestTarget): string {
  if (stripPrefix === undefined) return '';
  let at = 0;
  for (let segments = stripPrefix.split('/').length - 1; segments > 0 && at >= 0; segments -= 1)
    at = path.indexOf('/', at + 1);
  return at < 0 ? path : path.slice(0, at);
}

/** The matched path without the prefix that its rule removes, and the query unchanged. */
export function getUpstreamPath(rule: AccessRule, target: RequestTarget): string {
  const path = target.path.slice(getStrippedPrefix(rule, target).length);
  return (path === '' ? '/' : path) + target.query;
}

/** How `Location` fields of an upstream are rewritten: clients know only the public URL. */
export interface LocationRewrite {
  /** Origins of the upstream's targets. */
  readonly upstreamOrigins: ReadonlySet<string>;
  /** The origin that the client used. */
  readonly publicOrigin: string;
  /** What was removed from the path of the request. */
  readonly strippedPrefix: string;
}

const ABSOLUTE_URL = /^(?:(https?):)?\/\/([^/?#\\]*)(.*)$/is;

/** Origins that an upstream may use for itself. */
const getOrigins = (targets: readonly string[]): ReadonlySet<string> =>
  new Set(targets.map((target) => (target.startsWith('unix:') ? 'http://localhost' : getOrigin(target))));

function getOrigin(url: string): string {
  const { protocol, host } = new URL(url);
  return `${protocol}//${normalizeAuthority(host, protocol.slice(0, -1))}`;
}

/** Rewrites locations on the upstream itself; others stay unchanged. */
export function rewriteLocation(
  value: string,
  { upstreamOrigins, publicOrigin, strippedPrefix }: LocationRewrite,
): string {
  if (value.startsWith('/') && !value.startsWith('//')) return strippedPrefix === '' ? value : strippedPrefix + value;
  const [, scheme, authority, rest = ''] = ABSOLUTE_URL.exec(value) ?? [];
  if (authority === undefined) return value;
  const schemes = scheme === undefined ? ['http', 'https'] : [scheme.toLowerCase()];
  const isUpstreamOrigin = schemes.some((one) => upstreamOrigins.has(`${one}://${normalizeAuthority(authority, one)}`));
  if (!isUpstreamOrigin) return value;
  return `${publicOrigin}${strippedPrefix}${rest.startsWith('/') || (rest === '' && strippedPrefix !== '') ? rest : `/${rest}`}`;
}
