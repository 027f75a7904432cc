/**
 * Formats of lists, dates and times in one locale. The Intl objects are created on use: most processes never render a
 * page, and the locale data takes megabytes.
 */
export function createFormats(
  locale: string,
  underAMinute: { readonly ago: string; readonly ahead: string },
) {
  const formatRelative = (seconds: number, sign: 1 | -1): string => {
    const { count, unit } = roundDuration(seconds);
    return new Intl.RelativeTimeFormat(locale).format(sign * count, unit);
  };
  return {
    formatList: (items: readonly string[]): string => new Intl.ListFormat(locale).format(items),
    formatDate: (milliseconds: number): string =>
      new Intl.DateTimeFormat(locale, { dateStyle: 'long', timeZone: 'UTC' }).format(milliseconds),
    formatAgo: (seconds: number): string => (seconds < 45 ? underAMinute.ago : formatRelative(seconds, -1)),
    formatIn: (seconds: number): string => (seconds < 45 ? underAMinute.ahead : formatRelative(seconds, 1)),
  };
}

function roundDuration(seconds: number): {
  readonly count: number;
  readonly unit: 'minute' | 'hour' | 'day';
} {
  const hours = Math.round(seconds / 3_600);
  if (seconds < 5_400) return { count: Math.round(seconds / 60), unit: 'minute' };
  return hours < 36 ? { count: hours, unit: 'hour' } : { count: Math.round(seconds / 86_400), unit: 'day' };
}
