/**
 * Untrusted text on one line of a terminal: control, format, private-use and unassigned characters and line separators are
 * escaped, so that they can neither control the terminal nor imitate other output.
 */
export const printable = (value: unknown): string => toText(value).replace(/[\p{C}\p{Zl}\p{Zp}]/gu, escapeCharacter);

/** Keeps line breaks and tabs. */
export const printableLines = (text: string): string =>
  text.replace(/\r(?!\n)|[^\P{C}\r\n\t]|[\p{Zl}\p{Zp}]/gu, escapeCharacter);

/** JSON with such characters escaped. */
export const printableJson = (value: unknown): string =>
  JSON.stringify(value, null, 2).replace(/[^\P{C}\n]|[\p{Zl}\p{Zp}]/gu, (char) =>
    char
      .split('')
      .map((unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`)
      .join(''),
  );

const escapeCharacter = (char: string): string => `\\u{${(char.codePointAt(0) ?? 0).toString(16)}}`;

function toText(value: unknown): string {
  if (typeof value !== 'object' || value === null) return String(value);
  try {
    return JSON.stringify(value);
  } catch {
    // Nested too deeply for the stack.
    return '…';
  }
}
