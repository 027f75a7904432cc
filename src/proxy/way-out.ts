import type { AccessRule } from '../domain/access-rule.ts';
import type { Bearer } from '../domain/bearer.ts';
import type { RequestTarget } from '../domain/request-target.ts';
import type { Admission, Caller } from './admission.ts';
import { type LocationTerms, originsOf } from './location.ts';
import type { UpstreamSettings } from './upstream-settings.ts';

/** What follows for the way to an upstream and back from a rule that admitted a request. */
export type Admitted = Admission & { readonly kind: 'admitted' };

export interface WayOutDeps {
  readonly upstreams: Readonly<Record<string, UpstreamSettings>>;
  /** `{base_url}`. */
  readonly publicUrl: string;
  /** A signed statement for one upstream about who is calling. */
  readonly assert?: ((caller: Caller, audience: string) => string) | undefined;
}

export interface WaysOut {
  /** How redirects of this upstream are written for this client; undefined when they are left alone. */
  locationFor(admitted: Admitted, host: string): LocationTerms | undefined;
  /** Name and value of the signed statement, where the upstream wants one. */
  assertion(admitted: Admitted): readonly string[];
}

const NONE: readonly string[] = [];

export function waysOut({ upstreams, publicUrl, assert }: WayOutDeps): WaysOut {
  const ownOrigins = new Map(
    Object.entries(upstreams).map(([name, { targets }]) => [name, originsOf(targets)]),
  );
  const { protocol } = new URL(publicUrl);
  return {
    locationFor({ rule, target }, host) {
      const own = ownOrigins.get(rule.upstream);
      if (own === undefined || upstreams[rule.upstream]?.rewriteLocation === false) return undefined;
      // A rule with a host of its own is not reached under the host of `publicUrl`.
      const origin = rule.host === undefined ? publicUrl : `${protocol}//${host}`;
      return { own, origin, prefix: strippedPrefix(rule, target) };
    },
    assertion({ rule, caller }) {
      const wanted = upstreams[rule.upstream]?.assertion;
      if (wanted === undefined || caller === undefined || assert === undefined) return NONE;
      return [wanted.header, assert(caller, wanted.audience ?? rule.upstream)];
    },
  };
}

/** By whose leave it runs. A rule that only reports lets it run in any case. */
export const bearerOf = ({ rule, caller }: Admitted): Bearer | undefined =>
  rule.reportOnly === true ? undefined : caller?.bearer;

export function isEventStream(rawHeaders: readonly string[]): boolean {
  for (let at = 0; at + 1 < rawHeaders.length; at += 2)
    if (rawHeaders[at]?.length === 12 && rawHeaders[at]?.toLowerCase() === 'content-type')
      return /^\s*text\/event-stream\s*(?:;|$)/i.test(rawHeaders[at + 1] ?? '');
  return false;
}

/** What the rule takes off the path: as many segments as its prefix has, since those of the prefix match. */
function strippedPrefix({ stripPrefix }: AccessRule, { path }: RequestTarget): string {
  if (stripPrefix === undefined) return '';
  let at = 0;
  for (let segments = stripPrefix.split('/').length - 1; segments > 0 && at >= 0; segments -= 1)
    at = path.indexOf('/', at + 1);
  return at < 0 ? path : path.slice(0, at);
}

/** The matched path, less what its rule takes off, and the query to the letter. */
export function wirePath(rule: AccessRule, target: RequestTarget): string {
  const path = target.path.slice(strippedPrefix(rule, target).length);
  return (path === '' ? '/' : path) + target.query;
}
