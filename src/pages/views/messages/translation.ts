import type { Language } from '../../../domain/language.ts';
import { englishMessages, type Messages } from './english.ts';
import { createFormats } from './formats.ts';

type Formats = ReturnType<typeof createFormats>;
type TextsOf<T> = T extends string
  ? string
  : T extends (...values: never) => string
    ? string
    : { readonly [Key in keyof T]: TextsOf<T[Key]> };

/** A JSON file with the texts of a language. A text that it lacks does not compile. `{1}` and `{2}` are the arguments of the text. */
export type Translation = TextsOf<Omit<Messages, keyof Formats | 'language'>> & {
  readonly locale: string;
  readonly underAMinute: { readonly ago: string; readonly ahead: string };
};

export const createMessages = (language: Language, { locale, underAMinute, ...texts }: Translation): Messages => ({
  ...(fillIn(englishMessages, texts) as Messages),
  language,
  ...createFormats(locale, underAMinute),
});

/** Texts take arguments where the English ones do. */
function fillIn(english: unknown, text: unknown): unknown {
  if (typeof english === 'function')
    return (...values: readonly unknown[]) =>
      String(text).replace(/\{(\d)\}/g, (_, position) => String(values[Number(position) - 1]));
  if (typeof text === 'string') return text;
  return Object.fromEntries(
    Object.entries(text as object).map(([key, inner]) => [
      key,
      fillIn((english as Readonly<Record<string, unknown>>)[key], inner),
    ]),
  );
}
