/** The languages of the pages, in the order of the links between them. Their texts are in src/pages/views/messages. */
export const LANGUAGES = ['en', 'de', 'es', 'fr'] as const;
export type Language = (typeof LANGUAGES)[number];

/** `english`: for the reference of the settings. */
export const LANGUAGE_NAMES: Readonly<Record<Language, { readonly own: string; readonly english: string }>> =
  {
    en: { own: 'English', english: 'English' },
    de: { own: 'Deutsch', english: 'German' },
    es: { own: 'Español', english: 'Spanish' },
    fr: { own: 'Français', english: 'French' },
  };

/** Configured text in one or several languages. */
export type LocalizedText = Readonly<Partial<Record<Language, string>>>;

/** Falls back to the first language that is present. */
export const localize = (text: LocalizedText, language: Language): string =>
  text[language] ?? LANGUAGES.map((one) => text[one]).find((translation) => translation !== undefined) ?? '';
