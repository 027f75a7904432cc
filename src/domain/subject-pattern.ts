/**
 * A pattern for the subject or a claim of a foreign token. It is compared with the whole text, case included. `*` matches one or
 * more characters other than `:` and `/`; `**` at the end, after a separator or alone, matches any rest.
 */
export interface SubjectPattern {
  readonly text: string;
  readonly parts: readonly PatternPart[];
  /** Ends in `**`. */
  readonly isOpen: boolean;
}

/** The text between two separators, and the separator after it; empty at the end. */
interface Part {
  readonly text: string;
  readonly separator: string;
}

type PatternPart =
  | { readonly literal: string; readonly separator: string }
  | { readonly prefix: string; readonly suffix: string; readonly separator: string };

type ParsedSubjectPattern =
  | { readonly ok: true; readonly pattern: SubjectPattern }
  | { readonly ok: false; readonly problem: string };

const splitParts = (text: string): Part[] =>
  [...text.matchAll(/([^:/]*)([:/]|$)/g)]
    .map(([, part = '', separator = '']) => ({ text: part, separator }))
    // After the last separator there is one more match, which is empty only if the text ends in a separator.
    .slice(0, (text.match(/[:/]/g)?.length ?? 0) + 1);

export function parseSubjectPattern(text: string): ParsedSubjectPattern {
  const problem = (message: string): ParsedSubjectPattern => ({ ok: false, problem: message });
  if (text === '') return problem('must not be empty');
  const split = splitParts(text);
  const isOpen = split.at(-1)?.text === '**';
  const parts: PatternPart[] = [];
  for (const { text: part, separator } of isOpen ? split.slice(0, -1) : split) {
    const [prefix = '', suffix, ...rest] = part.split('*');
    if (suffix === undefined) parts.push({ literal: part, separator });
    else if (rest.length === 0) parts.push({ prefix, suffix, separator });
    else if (part.includes('**')) return problem('** is allowed only at the end, after : or /');
    else return problem('at most one * is allowed between : and /');
  }
  return { ok: true, pattern: { text, parts, isOpen } };
}

export function matchesSubject({ parts, isOpen }: SubjectPattern, subject: string): boolean {
  const split = splitParts(subject);
  if (isOpen ? split.length <= parts.length : split.length !== parts.length) return false;
  if (isOpen && split.slice(parts.length).every(({ text, separator }) => text === '' && separator === '')) return false;
  return parts.every((part, index) => {
    const { text, separator } = split[index] as Part;
    if (separator !== part.separator) return false;
    if ('literal' in part) return text === part.literal;
    return (
      text.length > part.prefix.length + part.suffix.length &&
      text.startsWith(part.prefix) &&
      text.endsWith(part.suffix)
    );
  });
}
