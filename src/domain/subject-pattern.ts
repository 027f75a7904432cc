/**
 * A pattern for the subject or a claim of a foreign token. It is compared with the whole text, case included. `*` matches one or
 * more characters other than `:` and `/`; `**` at the end, after a separator or alone, matches any rest.
 */
export interface SubjectPattern {
  readonly text: string;
  readonly expression: RegExp;
}

type ParsedSubjectPattern =
  | { readonly ok: true; readonly pattern: SubjectPattern }
  | { readonly ok: false; readonly problem: string };

const OPEN_END = /(?<=^|[:/])\*\*$/;

export function parseSubjectPattern(text: string): ParsedSubjectPattern {
  const problem = (message: string): ParsedSubjectPattern => ({ ok: false, problem: message });
  if (text === '') return problem('must not be empty');
  for (const part of text.replace(OPEN_END, '').split(/[:/]/)) {
    if (part.split('*').length <= 2) continue;
    return problem(
      part.includes('**') ? '** is allowed only at the end, after : or /' : 'at most one * is allowed between : and /',
    );
  }
  const source = text
    .replace(OPEN_END, '')
    .split('*')
    .map((literal) => RegExp.escape(literal))
    .join('[^:/]+');
  // `*` matches no separator, so that matching does not backtrack from one part into another.
  const expression = new RegExp(`^${source}${OPEN_END.test(text) ? '[^]+' : ''}$`);
  return { ok: true, pattern: { text, expression } };
}

export const matchesSubject = ({ expression }: SubjectPattern, subject: string): boolean => expression.test(subject);
