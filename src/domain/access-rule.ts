import type { CorsPolicy } from './cors.ts';
import type { PathReading } from './path-spelling.ts';
import type { Scope } from './scope.ts';

/** One segment of a pattern: a literal, `*` for any one segment, or `**` for any rest. */
export type PatternSegment = { readonly literal: string } | '*' | '**';

export type ParsedPattern =
  | { readonly ok: true; readonly segments: readonly PatternSegment[] }
  | { readonly ok: false; readonly problem: string };

/** Reads a route's path. There are no regular expressions here: a pattern is compared segment by segment. */
export function parsePattern(text: string): ParsedPattern {
  const problem = (words: string): ParsedPattern => ({ ok: false, problem: `${words}: "${text}"` });
  if (!text.startsWith('/')) return problem('a path starts with /');
  if (/[?#%\\;\s]|\/\//.test(text))
    return problem('a path has no query, fragment, %, backslash, semicolon, space or //');
  const parts = text.slice(1).split('/');
  const segments: PatternSegment[] = [];
  for (const [index, part] of parts.entries()) {
    if (part === '.' || part === '..') return problem('a path has no . or .. segment');
    if (part === '**') {
      if (index !== parts.length - 1) return problem('** stands only at the end');
      segments.push('**');
    } else if (part === '*') segments.push('*');
    else if (part.includes('*')) return problem('* stands for a whole segment');
    else segments.push({ literal: part });
  }
  return { ok: true, segments };
}

/** What a rule asks of a request that matches it. */
export type Demand =
  | { readonly kind: 'public' }
  | { readonly kind: 'any-token' }
  | { readonly kind: 'scope'; readonly scope: Scope };

/** A rule of the configuration: first match wins, and what none matches is denied. */
export interface AccessRule {
  /** How logs and `explain` name it: its place in the file and its path. */
  readonly name: string;
  readonly pattern: readonly PatternSegment[];
  readonly host?: string;
  readonly methods?: ReadonlySet<string>;
  readonly demand: Demand;
  readonly clients?: ReadonlySet<string>;
  readonly upstream: string;
  /** How the API behind it reads paths; omitted: not known. */
  readonly paths?: PathReading;
  readonly stripPrefix?: string;
  readonly encodedSlash: boolean;
  readonly forwardAuthorization: boolean;
  /** Takes WebSocket handshakes. */
  readonly websocket?: boolean;
  readonly cors?: CorsPolicy;
  /** Turns nobody away for want of a token or a scope; the log tells whom it would have. */
  readonly reportOnly?: boolean;
}
