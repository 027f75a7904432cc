import type { PatternSegment } from './access-rule.ts';

/** Whether an API treats two paths that differ only in this (`/Admin` and `/admin`, `/admin` and `/admin/`) as the same. */
type PathComparisonMode = 'unknown' | 'distinct' | 'same';

export interface PathComparison {
  readonly letterCase: PathComparisonMode;
  readonly trailingSlash: PathComparisonMode;
}

export const UNKNOWN_COMPARISON: PathComparison = { letterCase: 'unknown', trailingSlash: 'unknown' };

/** A bit set of differences between spellings. */
export type Differences = number;
export const LETTER_CASE: Differences = 1;
export const TRAILING_SLASH: Differences = 2;
/** Each set at its own index. */
export const ALL_DIFFERENCES: readonly Differences[] = [0, LETTER_CASE, TRAILING_SLASH, LETTER_CASE | TRAILING_SLASH];

const selectDifferences = (reading: PathComparison, matches: (mode: PathComparisonMode) => boolean): Differences =>
  (matches(reading.letterCase) ? LETTER_CASE : 0) | (matches(reading.trailingSlash) ? TRAILING_SLASH : 0);

export const getIgnoredDifferences = (reading: PathComparison): Differences =>
  selectDifferences(reading, (mode) => mode === 'same');

/** Includes the differences of which it is unknown whether the API ignores them. */
export const getPossiblyIgnoredDifferences = (reading: PathComparison): Differences =>
  selectDifferences(reading, (mode) => mode !== 'distinct');

/**
 * Folds all texts that some case mapping makes equal: `S` and the long s, `K` and the Kelvin sign, `I` with and without a
 * dot (Turkish), `ß` and `SS`; also compatibility forms such as full-width letters.
 */
export function foldCase(text: string): string {
  if (isAscii(text)) return text.toLowerCase();
  // `İ` decomposes into I and a combining dot.
  return text.normalize('NFKD').toLowerCase().toUpperCase().replaceAll('I\u0307', 'I').toLowerCase();
}

function isAscii(text: string): boolean {
  for (let at = 0; at < text.length; at += 1) if (text.charCodeAt(at) > 0x7f) return false;
  return true;
}

/** `/a/` becomes `/a`. */
export const stripTrailingSlash = (segments: readonly string[]): readonly string[] =>
  segments.at(-1) === '' ? segments.slice(0, -1) : segments;

export function normalizePath(segments: readonly string[], ignored: Differences): readonly string[] {
  const kept = (ignored & TRAILING_SLASH) === 0 ? segments : stripTrailingSlash(segments);
  return (ignored & LETTER_CASE) === 0 ? kept : kept.map(foldCase);
}

/** Matches a normalized path if the pattern matches some spelling of it. */
export function normalizePattern(pattern: readonly PatternSegment[], ignored: Differences): readonly PatternSegment[] {
  const last = pattern.at(-1);
  const endsInSlash = typeof last === 'object' && last.literal === '';
  const kept = (ignored & TRAILING_SLASH) !== 0 && endsInSlash ? pattern.slice(0, -1) : pattern;
  if ((ignored & LETTER_CASE) === 0) return kept;
  return kept.map((segment) => (typeof segment === 'string' ? segment : { literal: foldCase(segment.literal) }));
}

/** Has no other spelling: lower-case ASCII without a trailing slash. */
export function isPlainPath(segments: readonly string[]): boolean {
  if (segments.at(-1) === '') return false;
  for (const segment of segments)
    for (let at = 0; at < segment.length; at += 1) {
      const code = segment.charCodeAt(at);
      if (code > 0x7f || (code >= 0x41 && code <= 0x5a)) return false;
    }
  return true;
}

export const isPlainPattern = (pattern: readonly PatternSegment[]): boolean =>
  pattern.length === 0 ||
  isPlainPath(pattern.map((segment) => (typeof segment === 'string' ? segment : segment.literal)));

export function patternMatches(pattern: readonly PatternSegment[], segments: readonly string[]): boolean {
  for (const [index, matcher] of pattern.entries()) {
    if (matcher === '**') return segments.length >= index;
    const segment = segments[index];
    if (segment === undefined || !segmentMatches(matcher, segment)) return false;
  }
  return segments.length === pattern.length;
}

/** Whether some path matches both. */
export function patternsOverlap(a: readonly PatternSegment[], b: readonly PatternSegment[]): boolean {
  for (let at = 0; ; at += 1) {
    const [one, other] = [a[at], b[at]];
    if (one === '**' || other === '**') return true;
    if (one === undefined || other === undefined) return one === other;
    if (one === '*' ? other === '*' || other.literal !== '' : segmentMatches(other, one.literal)) continue;
    return false;
  }
}

const segmentMatches = (matcher: Exclude<PatternSegment, '**'>, literal: string): boolean =>
  matcher === '*' ? literal !== '' : matcher.literal === literal;

/** Whether `wide` matches all paths that `narrow` matches. */
export function patternCovers(wide: readonly PatternSegment[], narrow: readonly PatternSegment[]): boolean {
  for (const [index, segment] of wide.entries()) {
    if (segment === '**') return true;
    const other = narrow[index];
    if (other === undefined || other === '**') return false;
    if (segment === '*' ? other !== '*' && other.literal === '' : !isSameLiteral(other, segment.literal)) return false;
  }
  return wide.length === narrow.length;
}

const isSameLiteral = (segment: Exclude<PatternSegment, '**'>, literal: string): boolean =>
  segment !== '*' && segment.literal === literal;
