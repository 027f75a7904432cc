import type { PatternSegment } from './access-rule.ts';

/**
 * Paths in other spellings: an API may serve `/Admin` and `/admin`, or `/admin` and `/admin/`, as the same resource.
 */

/** Whether an API takes two paths that differ only in this for the same. */
export type SpellingReading = 'unknown' | 'distinct' | 'same';

/** How an API reads paths. */
export interface PathReading {
  readonly letterCase: SpellingReading;
  readonly trailingSlash: SpellingReading;
}

export const UNKNOWN_READING: PathReading = { letterCase: 'unknown', trailingSlash: 'unknown' };

/** A set of differences between spellings, as bits. */
export type Differences = number;
export const LETTER_CASE: Differences = 1;
export const TRAILING_SLASH: Differences = 2;
/** All sets, each at its own index. */
export const ALL_DIFFERENCES: readonly Differences[] = [
  0,
  LETTER_CASE,
  TRAILING_SLASH,
  LETTER_CASE | TRAILING_SLASH,
];

const differences = (reading: PathReading, isOne: (how: SpellingReading) => boolean): Differences =>
  (isOne(reading.letterCase) ? LETTER_CASE : 0) | (isOne(reading.trailingSlash) ? TRAILING_SLASH : 0);

/** The API ignores these: rules match all spellings. */
export const ignoredBy = (reading: PathReading): Differences => differences(reading, (how) => how === 'same');

/** The API ignores these, or may do so. */
export const notKeptApartBy = (reading: PathReading): Differences =>
  differences(reading, (how) => how !== 'distinct');

/**
 * The same text for all texts that some case mapping makes equal: `S` and the long s, `K` and the Kelvin sign, `I` with
 * and without a dot (Turkish), `ß` and `SS`. Compatibility forms such as full-width letters are the same as well.
 */
export function withoutCase(text: string): string {
  if (isAscii(text)) return text.toLowerCase();
  // Combining dots go last: `İ` is an I with one.
  return text.normalize('NFKD').toLowerCase().toUpperCase().replaceAll('I\u0307', 'I').toLowerCase();
}

function isAscii(text: string): boolean {
  for (let at = 0; at < text.length; at += 1) if (text.charCodeAt(at) > 0x7f) return false;
  return true;
}

/** A path without an empty last segment: `/a/` becomes `/a`. */
export const withoutSlash = (segments: readonly string[]): readonly string[] =>
  segments.at(-1) === '' ? segments.slice(0, -1) : segments;

export function respelled(segments: readonly string[], ignored: Differences): readonly string[] {
  const kept = (ignored & TRAILING_SLASH) === 0 ? segments : withoutSlash(segments);
  return (ignored & LETTER_CASE) === 0 ? kept : kept.map(withoutCase);
}

/** The pattern that matches respelled paths where this one matches some spelling of them. */
export function respelledPattern(
  pattern: readonly PatternSegment[],
  ignored: Differences,
): readonly PatternSegment[] {
  const last = pattern.at(-1);
  const endsInSlash = typeof last === 'object' && last.literal === '';
  const kept = (ignored & TRAILING_SLASH) !== 0 && endsInSlash ? pattern.slice(0, -1) : pattern;
  if ((ignored & LETTER_CASE) === 0) return kept;
  return kept.map((segment) =>
    typeof segment === 'string' ? segment : { literal: withoutCase(segment.literal) },
  );
}

/** A path that is the same in any spelling: lower-case ASCII, no slash at its end. */
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

export function patternFits(pattern: readonly PatternSegment[], segments: readonly string[]): boolean {
  for (const [index, wanted] of pattern.entries()) {
    if (wanted === '**') return segments.length >= index;
    const segment = segments[index];
    if (segment === undefined) return false;
    if (wanted === '*' ? segment === '' : wanted.literal !== segment) return false;
  }
  return segments.length === pattern.length;
}

/** Is there a path that both match? */
export function patternsOverlap(a: readonly PatternSegment[], b: readonly PatternSegment[]): boolean {
  for (let at = 0; ; at += 1) {
    const [one, other] = [a[at], b[at]];
    if (one === '**' || other === '**') return true;
    if (one === undefined || other === undefined) return one === other;
    if (one === '*' ? other === '*' || other.literal !== '' : segmentTakes(other, one.literal)) continue;
    return false;
  }
}

const segmentTakes = (wanted: Exclude<PatternSegment, '**'>, literal: string): boolean =>
  wanted === '*' ? literal !== '' : wanted.literal === literal;

/** Does `wide` match every path that `narrow` matches? */
export function patternCovers(wide: readonly PatternSegment[], narrow: readonly PatternSegment[]): boolean {
  for (const [index, segment] of wide.entries()) {
    if (segment === '**') return true;
    const other = narrow[index];
    if (other === undefined || other === '**') return false;
    if (segment === '*' ? other !== '*' && other.literal === '' : !isSameLiteral(other, segment.literal))
      return false;
  }
  return wide.length === narrow.length;
}

const isSameLiteral = (segment: Exclude<PatternSegment, '**'>, literal: string): boolean =>
  segment !== '*' && segment.literal === literal;
