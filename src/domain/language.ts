/** The languages of the pages. */
export const LANGUAGES = ['en', 'de'] as const;
export type Language = (typeof LANGUAGES)[number];

/** Configured text in one or several languages. */
export type LocalizedText = Readonly<Partial<Record<Language, string>>>;

/** Falls back to the first language that is present. */
export const localize = (text: LocalizedText, language: Language): string =>
  text[language] ?? LANGUAGES.map((one) => text[one]).find((translation) => translation !== undefined) ?? '';
