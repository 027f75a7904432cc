import { LANGUAGES, type Language } from '../../../domain/language.ts';
import { englishMessages, type Messages } from './english.ts';
import french from './french.json' with { type: 'json' };
import german from './german.json' with { type: 'json' };
import spanish from './spanish.json' with { type: 'json' };
import { createMessages } from './translation.ts';

export const MESSAGES: Readonly<Record<Language, Messages>> = {
  en: englishMessages,
  de: createMessages('de', german),
  es: createMessages('es', spanish),
  fr: createMessages('fr', french),
};

export const isLanguage = (text: string | null | undefined): text is Language =>
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
