/**
 * Methods are case-sensitive (RFC 9110 §9.1), but some servers ignore case: `delete` would bypass a rule for `DELETE`. All
 * registered methods have this form.
 */
export const FORWARDABLE_METHOD = /^[A-Z][A-Z-]{0,31}$/;

export const isForwardableMethod = (text: string): boolean => FORWARDABLE_METHOD.test(text);

/**
 * A canonical request target: rules and upstreams must see the same path. Ambiguous paths are refused, not repaired;
 * percent-encoded unreserved characters (RFC 3986 §2.3) are decoded once.
 */
export interface RequestTarget {
  /** As sent to the upstream. */
  readonly path: string;
  /** Decoded, for comparison with rules. */
  readonly segments: readonly string[];
  /** Unchanged, with its question mark; empty if there is none. */
  readonly query: string;
  /** The authority of an absolute-form target; replaces Host (RFC 9112 §3.2.2). */
  readonly authority?: string;
  /** The path contains `%2F`: only rules that allow it may match. */
  readonly encodedSlash: boolean;
}

export type ParsedTarget =
  | { readonly kind: 'target'; readonly target: RequestTarget }
  /** `OPTIONS *`. */
  | { readonly kind: 'asterisk' }
  | { readonly kind: 'malformed'; readonly detail: string }
  | { readonly kind: 'misdirected'; readonly authority: string };

export interface TargetOptions {
  readonly method: string;
  /** Gets the authority in lower case, without the default port. */
  readonly isServedAuthority: (authority: string) => boolean;
  /** Allow `%2F` in segments. */
  readonly encodedSlash: boolean;
}

/** `host[:port]`, with a port from 1 to 65535. */
export const HOST_PATTERN =
  /^(?:\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9_.-]{1,253})(?::(?:[1-9]\d{0,3}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5]))?$/;

const malformed = (detail: string): ParsedTarget => ({ kind: 'malformed', detail });

/** pchar (RFC 3986 §3.3), and `|`, `[`, `]`, which browsers do not encode. */
const SEGMENT = /^[A-Za-z0-9._~!$&'()*+,;=:@|[\]%-]*$/;
/** The common case: nothing is encoded or ambiguous, and no segment can be a dot segment. */
const PLAIN_PATH = /^(?:\/[A-Za-z0-9_~!$&'()*+,=:@|[\]-][A-Za-z0-9._~!$&'()*+,=:@|[\]-]*)+\/?$/;
/** Printable ASCII; the rest is up to the upstream. */
const QUERY = /^[\x21\x22\x24-\x7e]*$/;
const ESCAPE = /%[0-9A-Fa-f]{2}/g;
const BROKEN_ESCAPE = /%(?![0-9A-Fa-f]{2})/;
const DOUBLE_ESCAPE = /%25[0-9A-Fa-f]{2}/;
const ESCAPED_CONTROL = /%(?:[01][0-9A-F]|7F)/;
const UNRESERVED = /[A-Za-z0-9._~-]/;
/** A dot segment, also before a path parameter (`..;x`) or between encoded slashes. */
const DOT_SEGMENT = /(?:^|%2F)\.{1,2}(?:$|;|%3B|%2F)/;

export function parseTarget(raw: string, options: TargetOptions): ParsedTarget {
  if (raw === '*') return options.method === 'OPTIONS' ? { kind: 'asterisk' } : malformed('* is for OPTIONS');
  if (raw.startsWith('/')) return parseOriginForm(raw, options.encodedSlash);
  return parseAbsoluteForm(raw, options);
}

function parseAbsoluteForm(raw: string, options: TargetOptions): ParsedTarget {
  const parts = /^(https?):\/\/([^/?#\\]*)(.*)$/i.exec(raw);
  if (parts === null) return malformed('the target is neither a path nor a URL');
  const [, scheme = '', rawAuthority = '', rest = ''] = parts;
  if (rawAuthority.includes('@')) return malformed('user information in the target');
  if (!HOST_PATTERN.test(rawAuthority)) return malformed('no clear host in the target');
  const authority = normalizeAuthority(rawAuthority, scheme.toLowerCase());
  if (!options.isServedAuthority(authority)) return { kind: 'misdirected', authority };
  const parsed = parseOriginForm(rest.startsWith('/') ? rest : `/${rest}`, options.encodedSlash);
  return parsed.kind === 'target' ? { kind: 'target', target: { ...parsed.target, authority: rawAuthority } } : parsed;
}

/** Lower case, without the default port. */
export function normalizeAuthority(authority: string, scheme: string): string {
  const port = scheme === 'https' ? ':443' : ':80';
  const lower = authority.toLowerCase();
  return lower.endsWith(port) ? lower.slice(0, -port.length) : lower;
}

function parseOriginForm(raw: string, encodedSlash: boolean): ParsedTarget {
  const queryStart = raw.indexOf('?');
  const rawPath = queryStart < 0 ? raw : raw.slice(0, queryStart);
  const query = queryStart < 0 ? '' : raw.slice(queryStart);
  if (raw.includes('#')) return malformed('a fragment in the target');
  if (!QUERY.test(query)) return malformed('the query holds a character that must be encoded');

  const parts = splitSegments(rawPath);
  if (PLAIN_PATH.test(rawPath))
    return { kind: 'target', target: { path: rawPath, segments: parts, query, encodedSlash: false } };
  const last = parts.length - 1;
  let changed = false;
  let hasEncodedSlash = false;
  const wire: string[] = [];
  const segments: string[] = [];
  for (const [index, part] of parts.entries()) {
    if (part === '' && index !== last) return malformed('an empty path segment');
    if (!SEGMENT.test(part)) return malformed('the path holds a character that must be encoded');
    if (!part.includes('%')) {
      if (DOT_SEGMENT.test(part)) return malformed('a dot segment in the path');
      wire.push(part);
      segments.push(part);
      continue;
    }
    const parsed = decodeSegment(part, encodedSlash);
    if ('detail' in parsed) return malformed(parsed.detail);
    changed ||= parsed.wire !== part;
    hasEncodedSlash ||= parsed.wire.includes('%2F');
    wire.push(parsed.wire);
    segments.push(parsed.plain);
  }
  const path = changed ? `/${wire.join('/')}` : rawPath;
  return { kind: 'target', target: { path, segments, query, encodedSlash: hasEncodedSlash } };
}

/** The path begins with a slash. Twice as fast as `split`. */
function splitSegments(path: string): string[] {
  const segments: string[] = [];
  let from = 1;
  for (let slash = path.indexOf('/', 1); slash >= 0; slash = path.indexOf('/', from)) {
    segments.push(path.slice(from, slash));
    from = slash + 1;
  }
  segments.push(path.slice(from));
  return segments;
}

type ParsedSegment = { readonly wire: string; readonly plain: string } | { readonly detail: string };

/** Checks the decoded form, so that decoding cannot produce a refused path. */
function decodeSegment(part: string, encodedSlash: boolean): ParsedSegment {
  if (BROKEN_ESCAPE.test(part)) return { detail: 'a broken percent-encoding in the path' };
  const wire = part.replace(ESCAPE, (escape) => {
    const char = String.fromCharCode(Number.parseInt(escape.slice(1), 16));
    return UNRESERVED.test(char) ? char : escape.toUpperCase();
  });
  if (DOUBLE_ESCAPE.test(wire)) return { detail: 'a double percent-encoding in the path' };
  if (ESCAPED_CONTROL.test(wire)) return { detail: 'a control character in the path' };
  if (wire.includes('%5C')) return { detail: 'an encoded backslash in the path' };
  if (wire.includes('%2F') && !encodedSlash) return { detail: 'an encoded slash in the path' };
  if (DOT_SEGMENT.test(wire)) return { detail: 'a dot segment in the path' };
  try {
    return { wire, plain: decodeURIComponent(wire) };
  } catch {
    return { detail: 'the path is not UTF-8' };
  }
}
