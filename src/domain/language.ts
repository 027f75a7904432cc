/** The languages of the pages, in the order of the links between them. Their texts are in src/pages/views/messages. */
export const LANGUAGES = ['en', 'de', 'es', 'fr'] as const;
export type Language = (typeof LANGUAGES)[number];

/** As its speakers write them. */
export const LANGUAGE_NAMES: Readonly<Record<Language, string>> = {
  en: 'English',
  de: 'Deutsch',
  es: 'Español',
  fr: 'Français',
};

/** Configured text in one or several languages. */
export type LocalizedText = Readonly<Partial<Record<Language, string>>>;

/** Falls back to the first language that is present. */
export const localize = (text: LocalizedText, language: Language): string =>
  text[language] ?? LANGUAGES.map((one) => text[one]).find((translation) => translation !== undefined) ?? '';
