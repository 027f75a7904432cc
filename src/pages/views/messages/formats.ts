/**
 * Formats of lists, dates and times in one locale. The Intl objects are created on use: most processes never render a
 * page, and the locale data takes megabytes.
 */
export function createFormats(locale: string, underAMinute: { readonly ago: string; readonly ahead: string }) {
  const formatRelative = (seconds: number, sign: 1 | -1): string => {
    const { count, unit } = roundDuration(seconds);
    return new Intl.RelativeTimeFormat(locale).format(sign * count, unit);
  };
  return {
    formatList: (items: readonly string[]): string => new Intl.ListFormat(locale).format(items),
    /** Without a time zone: in that of the server. */
    formatDate: (milliseconds: number, timeZone?: string): string =>
      new Intl.DateTimeFormat(locale, { dateStyle: 'long', timeZone }).format(milliseconds),
    /** With the name of the time zone. */
    formatTime: (milliseconds: number, timeZone?: string): string =>
      new Intl.DateTimeFormat(locale, { ...TIME_OF_DAY, timeZoneName: 'short', timeZone }).format(milliseconds),
    formatAgo: (seconds: number): string => (seconds < 45 ? underAMinute.ago : formatRelative(seconds, -1)),
    formatIn: (seconds: number): string => (seconds < 45 ? underAMinute.ahead : formatRelative(seconds, 1)),
  };
}

const TIME_OF_DAY = { hour: '2-digit', minute: '2-digit', hourCycle: 'h23' } as const;

function roundDuration(seconds: number): {
  readonly count: number;
  readonly unit: 'minute' | 'hour' | 'day';
} {
  const hours = Math.round(seconds / 3_600);
  if (seconds < 5_400) return { count: Math.round(seconds / 60), unit: 'minute' };
  return hours < 36 ? { count: hours, unit: 'hour' } : { count: Math.round(seconds / 86_400), unit: 'day' };
}
