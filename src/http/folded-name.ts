/**
 * A field name as the most forgiving server reads it: without case, and without everything that is not a letter or a digit.
 * CGI writes `X-Forwarded-User` as `HTTP_X_FORWARDED_USER`, and some servers write `X+Forwarded.User` in the same way.
 */
export const foldedName = (name: string): string => name.toLowerCase().replace(/[^a-z0-9]/g, '');

export const foldedNames = (names: Iterable<string>): ReadonlySet<string> =>
  new Set(Iterator.from(names).map(foldedName));
