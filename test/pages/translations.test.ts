import { expect, test } from 'vitest';
import { LANGUAGE_NAMES, LANGUAGES, type Language } from '../../src/domain/language.ts';
import { fillIn, MESSAGES } from '../../src/pages/views/messages/languages.ts';

type Texts = ReadonlyMap<string, string>;

const ARGUMENTS = ['⟦first⟧', '⟦second⟧'];

/** All texts of a language by path, with `ARGUMENTS` filled in. */
function listTexts(language: Language): Texts {
  const texts = new Map<string, string>();
  const visit = (value: unknown, path: string): void => {
    if (typeof value === 'string') texts.set(path, fillIn(value, ...ARGUMENTS));
    else if (typeof value === 'object')
      for (const [key, inner] of Object.entries(value as object)) visit(inner, `${path}.${key}`);
  };
  visit(MESSAGES[language], '');
  return texts;
}

const english = listTexts('en');
const others = LANGUAGES.filter((language) => language !== 'en');
const countArguments = (text: string): readonly number[] =>
  ARGUMENTS.map((argument) => text.split(argument).length - 1);

const removeArguments = (text: string): string => text.replace(/⟦\w+⟧/g, '').trim();

test.each(others)('%s has every text with every placeholder, none empty and none in English', (language) => {
  const texts = listTexts(language);
  expect([...texts.keys()].toSorted()).toEqual([...english.keys()].toSorted());
  for (const [path, text] of english) {
    const translation = texts.get(path) ?? '';
    expect(translation.trim(), path).not.toBe('');
    expect(countArguments(translation), path).toEqual(countArguments(text));
    // “Error:” is Spanish as well.
    if (removeArguments(text).length > 6) expect(translation, path).not.toBe(text);
    // What precedes or follows a name needs its space.
    expect([translation.startsWith(' '), translation.endsWith(' ')], path).toEqual([
      text.startsWith(' '),
      text.endsWith(' '),
    ]);
    expect(translation.endsWith('.'), path).toBe(text.endsWith('.'));
  }
});

test.each(LANGUAGES)('%s: counts have the forms of the language', (language) => {
  const { formatIn, formatAgo, formatList } = MESSAGES[language];
  for (const format of [formatIn, formatAgo]) {
    const texts = [30, 60, 120, 3_600 * 2, 86_400 * 3].map(format);
    expect(new Set(texts).size).toBe(texts.length);
    // The singular is a word of its own: it is not the plural with another number.
    expect(texts[1]?.replace('1', '2')).not.toBe(texts[2]);
  }
  expect(formatList(['a', 'b', 'c'])).toMatch(/^a, b,? \p{L}+ c$/u);
});

test.each(LANGUAGES)('%s: times and dates are those of the time zone', (language) => {
  const { formatTime, formatDate } = MESSAGES[language];
  const lateEvening = Date.UTC(2030, 4, 6, 23, 32);
  expect(formatTime(lateEvening, 'Europe/Berlin')).toMatch(/^01:32 \S+$/);
  expect(formatTime(lateEvening, 'UTC')).toMatch(/^23:32 /);
  expect(formatDate(lateEvening, 'Europe/Berlin')).toMatch(/7\D.*2030/);
  expect(formatDate(lateEvening, 'UTC')).toMatch(/6\D.*2030/);
});

test('apostrophes and ellipses are typographic in every language', () => {
  for (const language of LANGUAGES)
    for (const [path, text] of listTexts(language)) expect(text, `${language}${path}`).not.toMatch(/['"]|\.\.\.| {2}/);
});

test('French has no-break spaces before double punctuation and inside quotation marks', () => {
  for (const [path, text] of listTexts('fr')) {
    expect(text, path).not.toMatch(/(?<![\u00a0\u202f])[:;?!»]|«(?!\u00a0)/);
    expect(text, path).not.toMatch(/ [\u00a0\u202f]|[\u00a0\u202f] /);
  }
});

test('Spanish opens what it closes', () => {
  for (const [path, text] of listTexts('es'))
    for (const [open, close] of ['¿?', '¡!', '«»'].map((pair) => Array.from(pair)))
      expect(text.split(open ?? '').length, path).toBe(text.split(close ?? '').length);
});

test('each language has its name in its own language', () => {
  for (const language of LANGUAGES) {
    const own = new Intl.DisplayNames(language, { type: 'language' }).of(language) ?? '';
    expect(LANGUAGE_NAMES[language].toLowerCase()).toBe(own.toLowerCase());
  }
});
