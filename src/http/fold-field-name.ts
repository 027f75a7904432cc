/**
 * A field name as the most lenient servers compare it: letters and digits only, case-insensitive. In CGI
 * `X-Forwarded-User` is `HTTP_X_FORWARDED_USER`, and on some servers `X+Forwarded.User` is the same.
 */
export const foldFieldName = (name: string): string => name.toLowerCase().replace(/[^a-z0-9]/g, '');

export const foldFieldNames = (names: Iterable<string>): ReadonlySet<string> =>
  new Set(Iterator.from(names).map(foldFieldName));
