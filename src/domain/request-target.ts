/**
 * One canonical path, or a refusal; never a repair.
 *
 * A rule and an upstream must see the same path. Whatever two readers could read differently is refused;
 * percent-encoded unreserved characters (RFC 3986 §2.3) are the same path by definition and are decoded once.
 * What comes out of here is what rules match and what goes on the wire.
 */
export interface RequestTarget {
  /** Canonical, as it goes on the wire. */
  readonly path: string;
  /** The path's segments as an upstream will read them, for comparison with rules. */
  readonly segments: readonly string[];
  /** With its question mark, to the letter; empty when there is none. */
  readonly query: string;
  /** The authority of an absolute-form target, which then counts instead of Host (RFC 9112 §3.2.2). */
  readonly authority?: string;
  /** The path holds an opaque `%2F`: only rules that opted in may match it. */
  readonly encodedSlash: boolean;
}

export type TargetReading =
  | { readonly kind: 'target'; readonly target: RequestTarget }
  /** `OPTIONS *`: a question to the server itself. */
  | { readonly kind: 'asterisk' }
  | { readonly kind: 'malformed'; readonly detail: string }
  | { readonly kind: 'misdirected'; readonly authority: string };

export interface TargetTerms {
  readonly method: string;
  /** Is this authority (lower case, default port left out) one of ours? */
  readonly isOwn: (authority: string) => boolean;
  /** Let `%2F` stand inside a segment. */
  readonly encodedSlash: boolean;
}

const malformed = (detail: string): TargetReading => ({ kind: 'malformed', detail });

/** pchar of RFC 3986 §3.3, and `|`, `[`, `]`, which browsers send as they are. */
const SEGMENT = /^[A-Za-z0-9._~!$&'()*+,;=:@|[\]%-]*$/;
/** Segments in which nothing is encoded, has two readings, or could be a dot segment: nearly all there are. */
const PLAIN_PATH = /^(?:\/[A-Za-z0-9_~!$&'()*+,=:@|[\]-][A-Za-z0-9._~!$&'()*+,=:@|[\]-]*)+\/?$/;
/** Printable ASCII: what stands after the question mark is the upstream's business, but it has to be text. */
const QUERY = /^[\x21\x22\x24-\x7e]*$/;
const ESCAPE = /%[0-9A-Fa-f]{2}/g;
const BROKEN_ESCAPE = /%(?![0-9A-Fa-f]{2})/;
const DOUBLE_ESCAPE = /%25[0-9A-Fa-f]{2}/;
const ESCAPED_CONTROL = /%(?:[01][0-9A-F]|7F)/;
const UNRESERVED = /[A-Za-z0-9._~-]/;
/** A dot segment, alone, before a path parameter (`..;x`), or between opaque slashes. */
const DOTS = /(?:^|%2F)\.{1,2}(?:$|;|%3B|%2F)/;

export function readTarget(raw: string, terms: TargetTerms): TargetReading {
  if (raw === '*') return terms.method === 'OPTIONS' ? { kind: 'asterisk' } : malformed('* is for OPTIONS');
  if (raw.startsWith('/')) return readOrigin(raw, terms.encodedSlash);
  return readAbsolute(raw, terms);
}

function readAbsolute(raw: string, terms: TargetTerms): TargetReading {
  const parts = /^(https?):\/\/([^/?#\\]*)(.*)$/i.exec(raw);
  if (parts === null) return malformed('the target is neither a path nor a URL');
  const [, scheme = '', given = '', rest = ''] = parts;
  if (given.includes('@')) return malformed('user information in the target');
  if (!/^[A-Za-z0-9._[\]:-]+$/.test(given)) return malformed('no clear host in the target');
  const authority = normalAuthority(given, scheme.toLowerCase());
  if (!terms.isOwn(authority)) return { kind: 'misdirected', authority };
  const reading = readOrigin(rest.startsWith('/') ? rest : `/${rest}`, terms.encodedSlash);
  return reading.kind === 'target'
    ? { kind: 'target', target: { ...reading.target, authority: given } }
    : reading;
}

/** Lower case, and without the scheme's own port. */
export function normalAuthority(authority: string, scheme: string): string {
  const port = scheme === 'https' ? ':443' : ':80';
  const lower = authority.toLowerCase();
  return lower.endsWith(port) ? lower.slice(0, -port.length) : lower;
}

function readOrigin(raw: string, encodedSlash: boolean): TargetReading {
  const mark = raw.indexOf('?');
  const rawPath = mark < 0 ? raw : raw.slice(0, mark);
  const query = mark < 0 ? '' : raw.slice(mark);
  if (raw.includes('#')) return malformed('a fragment in the target');
  if (!QUERY.test(query)) return malformed('the query holds a character that must be encoded');

  const parts = segmentsOf(rawPath);
  if (PLAIN_PATH.test(rawPath))
    return { kind: 'target', target: { path: rawPath, segments: parts, query, encodedSlash: false } };
  const last = parts.length - 1;
  let changed = false;
  let holdsSlash = false;
  const wire: string[] = [];
  const segments: string[] = [];
  for (const [index, part] of parts.entries()) {
    if (part === '' && index !== last) return malformed('an empty path segment');
    if (!SEGMENT.test(part)) return malformed('the path holds a character that must be encoded');
    if (!part.includes('%')) {
      if (DOTS.test(part)) return malformed('a dot segment in the path');
      wire.push(part);
      segments.push(part);
      continue;
    }
    const read = readEscapes(part, encodedSlash);
    if ('detail' in read) return malformed(read.detail);
    changed ||= read.wire !== part;
    holdsSlash ||= read.wire.includes('%2F');
    wire.push(read.wire);
    segments.push(read.plain);
  }
  const path = changed ? `/${wire.join('/')}` : rawPath;
  return { kind: 'target', target: { path, segments, query, encodedSlash: holdsSlash } };
}

/** What stands between the slashes of a path that begins with one. Cut by hand: `split` costs twice as much. */
function segmentsOf(path: string): string[] {
  const segments: string[] = [];
  let from = 1;
  for (let slash = path.indexOf('/', 1); slash >= 0; slash = path.indexOf('/', from)) {
    segments.push(path.slice(from, slash));
    from = slash + 1;
  }
  segments.push(path.slice(from));
  return segments;
}

type SegmentReading = { readonly wire: string; readonly plain: string } | { readonly detail: string };

/** The checks look at the decoded form, so that decoding once cannot make something that would be refused. */
function readEscapes(part: string, encodedSlash: boolean): SegmentReading {
  if (BROKEN_ESCAPE.test(part)) return { detail: 'a broken percent-encoding in the path' };
  const wire = part.replace(ESCAPE, (escape) => {
    const char = String.fromCharCode(Number.parseInt(escape.slice(1), 16));
    return UNRESERVED.test(char) ? char : escape.toUpperCase();
  });
  if (DOUBLE_ESCAPE.test(wire)) return { detail: 'a double percent-encoding in the path' };
  if (ESCAPED_CONTROL.test(wire)) return { detail: 'a control character in the path' };
  if (wire.includes('%5C')) return { detail: 'an encoded backslash in the path' };
  if (wire.includes('%2F') && !encodedSlash) return { detail: 'an encoded slash in the path' };
  if (DOTS.test(wire)) return { detail: 'a dot segment in the path' };
  try {
    return { wire, plain: decodeURIComponent(wire) };
  } catch {
    return { detail: 'the path is not UTF-8' };
  }
}
