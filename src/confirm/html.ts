/** Text that is HTML already. Only `html` makes it, so whatever else stands in a template is escaped. */
export interface Markup {
  readonly markup: string;
}

export type Part = string | number | Markup | undefined | false | readonly Part[];

const ESCAPES: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
};

const escape = (text: string): string => text.replace(/[&<>"']/g, (char) => ESCAPES[char] ?? '');

function write(part: Part): string {
  if (part === undefined || part === false) return '';
  if (typeof part === 'string') return escape(part);
  if (typeof part === 'number') return String(part);
  return 'markup' in part ? part.markup : part.map(write).join('');
}

/** A template that escapes by default: `html`<p>${name}</p>``. Attributes stand in double quotes. */
export function html(fixed: TemplateStringsArray, ...parts: readonly Part[]): Markup {
  return { markup: fixed.map((text, index) => text + write(parts[index])).join('') };
}

/**
 * Words of others (names, addresses) as a page may show them: one line, no invisible characters and no
 * direction marks that would let a name dress up the text beside it, no towers of accents, and an end.
 */
export function plain(text: string, most = 80): string {
  const visible = text
    .slice(0, 1_024)
    .replace(/\s+/gu, ' ')
    .replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}]/gu, '')
    .replace(/(\p{M}{3})\p{M}+/gu, '$1')
    .trim();
  const letters = Array.from(visible);
  return letters.length <= most && text.length <= 1_024
    ? visible
    : `${letters
        .slice(0, most - 1)
        .join('')
        .trimEnd()}…`;
}
