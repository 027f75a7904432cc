import type { CorsPolicy } from './cors.ts';
import type { PathComparison } from './path-comparison.ts';
import type { RouteLimit } from './route-limit.ts';
import type { Scope } from './scope.ts';

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
