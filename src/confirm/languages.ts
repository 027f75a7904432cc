import { LANGUAGES, type Language } from '../domain/language.ts';
import { english, type Words } from './words.ts';
import { german } from './words-german.ts';

/** A language without a sentence does not compile. */
export const WORDS: Readonly<Record<Language, Words>> = { en: english, de: german };

/** What a language calls itself. */
export const OWN_NAMES: Readonly<Record<Language, string>> = { en: 'English', de: 'Deutsch' };

export const isLanguage = (text: string | null | undefined): text is Language =>
  (LANGUAGES as readonly string[]).includes(text ?? '');

/** The language a browser likes best among ours (RFC 9110 §12.5.4); undefined when it likes none. */
export function preferred(header: string | undefined): Language | undefined {
  let best: { readonly language: Language; readonly weight: number } | undefined;
  for (const part of (header ?? '').slice(0, 512).split(',')) {
    const [range = '', ...parameters] = part.split(';').map((word) => word.trim().toLowerCase());
    const [language] = range.split('-');
    const q = parameters.find((word) => word.startsWith('q='));
    const weight = q === undefined ? 1 : Number(q.slice(2));
    if (!isLanguage(language) || !(weight > 0) || weight > 1) continue;
    if (best === undefined || weight > best.weight) best = { language, weight };
  }
  return best?.language;
}
