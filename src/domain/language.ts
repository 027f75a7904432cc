/** The languages the pages speak. */
export const LANGUAGES = ['en', 'de'] as const;
export type Language = (typeof LANGUAGES)[number];

/** Words of the operator: in one language for everybody, or in several. */
export type OwnText = Readonly<Partial<Record<Language, string>>>;

/** In the language asked for; else in the first there is. */
export const inLanguage = (text: OwnText, language: Language): string =>
  text[language] ?? LANGUAGES.map((one) => text[one]).find((words) => words !== undefined) ?? '';
