/**
 * Text of a server for a terminal, on one line: control, format, private and unassigned characters and line separators are
 * written as escapes, so that they can neither control the terminal nor imitate other output.
 */
export const printable = (value: unknown): string => textOf(value).replace(/[\p{C}\p{Zl}\p{Zp}]/gu, escapeOf);

/** The same for several lines: line breaks and tabs stay. */
export const printableLines = (text: string): string =>
  text.replace(/\r(?!\n)|[^\P{C}\r\n\t]|[\p{Zl}\p{Zp}]/gu, escapeOf);

/** JSON whose strings hold no such character; equal to the original for every parser. */
export const printableJson = (value: unknown): string =>
  JSON.stringify(value, null, 2).replace(/[^\P{C}\n]|[\p{Zl}\p{Zp}]/gu, (char) =>
    char
      .split('')
      .map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`)
      .join(''),
  );

const escapeOf = (char: string): string => `\\u{${(char.codePointAt(0) ?? 0).toString(16)}}`;

function textOf(value: unknown): string {
  if (typeof value !== 'object' || value === null) return String(value);
  try {
    return JSON.stringify(value);
  } catch {
    // Nested beyond what the stack holds.
    return '…';
  }
}
