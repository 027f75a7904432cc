/** Escaped HTML, created by `html` only. */
export interface Markup {
  readonly markup: string;
}

type HtmlValue = string | number | Markup | undefined | false | readonly HtmlValue[];

const ESCAPES: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
};

const escapeHtml = (text: string): string => text.replace(/[&<>"']/g, (char) => ESCAPES[char] ?? '');

function renderValue(value: HtmlValue): string {
  if (value === undefined || value === false) return '';
  if (typeof value === 'string') return escapeHtml(value);
  if (typeof value === 'number') return String(value);
  return 'markup' in value ? value.markup : value.map(renderValue).join('');
}

/** Escapes interpolated values. Attribute values must be in double quotes. */
export function html(strings: TemplateStringsArray, ...values: readonly HtmlValue[]): Markup {
  return { markup: strings.map((text, index) => text + renderValue(values[index])).join('') };
}

/** Sanitized text in FSI and PDI: like `bdi`, where no element can be. */
export const isolateText = (text: string): string => `\u2068${sanitizeText(text)}\u2069`;

/**
 * Makes untrusted text safe to display: one line of limited length, without control characters, invisible characters,
 * bidirectional formatting and stacked combining marks.
 */
export function sanitizeText(text: string, maxLength = 80): string {
  const visible = text
    .slice(0, 1_024)
    .replace(/\s+/gu, ' ')
    .replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}]/gu, '')
    .replace(/(\p{M}{3})\p{M}+/gu, '$1')
    .trim();
  const characters = Array.from(visible);
  return characters.length <= maxLength && text.length <= 1_024
    ? visible
    : `${characters
        .slice(0, maxLength - 1)
        .join('')
        .trimEnd()}…`;
}
