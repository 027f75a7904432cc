import { LANGUAGES, type Language } from '../../../domain/language.ts';
import english from './english.json' with { type: 'json' };
import french from './french.json' with { type: 'json' };
import german from './german.json' with { type: 'json' };
import spanish from './spanish.json' with { type: 'json' };

/**
 * All texts of the pages in one language, a JSON file. A text that another language lacks does not compile. `{1}` and `{2}` are
 * the values for `fillIn`. `permissions` are verbs, in display order; other permissions are named in quotation marks.
 */
type Texts = typeof english;
export type Messages = ReturnType<typeof createMessages>;

const createMessages = (language: Language, { locale, underAMinute, ...texts }: Texts) => ({
  language,
  ...texts,
  ...createFormats(locale, underAMinute),
});

export const MESSAGES: Readonly<Record<Language, Messages>> = {
  en: createMessages('en', english),
  de: createMessages('de', german),
  es: createMessages('es', spanish),
  fr: createMessages('fr', french),
};

export const fillIn = (text: string, ...values: readonly (string | number)[]): string =>
  text.replace(/\{(\d)\}/g, (_, position) => String(values[Number(position) - 1]));

/**
 * Formats of lists, dates and times in one locale. The Intl objects are created on use: most processes never render a
 * page, and the locale data takes megabytes.
 */
function createFormats(locale: string, underAMinute: Texts['underAMinute']) {
  const formatRelative = (seconds: number, sign: 1 | -1): string => {
    const { count, unit } = roundDuration(seconds);
    return new Intl.RelativeTimeFormat(locale).format(sign * count, unit);
  };
  return {
    formatList: (items: readonly string[]): string => new Intl.ListFormat(locale).format(items),
    /** If the time zone is omitted, that of the server is used. */
    formatDate: (milliseconds: number, timeZone?: string): string =>
      new Intl.DateTimeFormat(locale, { dateStyle: 'long', timeZone }).format(milliseconds),
    /** The text ends with the name of the time zone. */
    formatTime: (milliseconds: number, timeZone?: string): string =>
      new Intl.DateTimeFormat(locale, { ...TIME_OF_DAY, timeZoneName: 'short', timeZone }).format(milliseconds),
    formatAgo: (seconds: number): string => (seconds < 45 ? underAMinute.ago : formatRelative(seconds, -1)),
    formatIn: (seconds: number): string => (seconds < 45 ? underAMinute.ahead : formatRelative(seconds, 1)),
  };
}

const TIME_OF_DAY = { hour: '2-digit', minute: '2-digit', hourCycle: 'h23' } as const;

function roundDuration(seconds: number): { readonly count: number; readonly unit: 'minute' | 'hour' | 'day' } {
  const hours = Math.round(seconds / 3_600);
  if (seconds < 5_400) return { count: Math.round(seconds / 60), unit: 'minute' };
  return hours < 36 ? { count: hours, unit: 'hour' } : { count: Math.round(seconds / 86_400), unit: 'day' };
}

const isLanguage = (text: string | null | undefined): text is Language =>
  (LANGUAGES as readonly string[]).includes(text ?? '');

/** The language that the query of a page selects. */
export function readLanguage(query: string): Language | undefined {
  const language = new URLSearchParams(query).get('language');
  return isLanguage(language) ? language : undefined;
}

/** The preferred supported language of `Accept-Language` (RFC 9110 §12.5.4). */
export function negotiateLanguage(header: string | undefined): Language | undefined {
  let best: { readonly language: Language; readonly weight: number } | undefined;
  for (const part of (header ?? '').slice(0, 512).split(',')) {
    const [range = '', ...parameters] = part.split(';').map((parameter) => parameter.trim().toLowerCase());
    const [language] = range.split('-');
    const q = parameters.find((parameter) => parameter.startsWith('q='));
    const weight = q === undefined ? 1 : Number(q.slice(2));
    if (!isLanguage(language) || !(weight > 0) || weight > 1) continue;
    if (best === undefined || weight > best.weight) best = { language, weight };
  }
  return best?.language;
}
