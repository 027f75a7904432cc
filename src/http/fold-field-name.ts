/**
 * A field name as the most lenient servers compare it: letters and digits only, case-insensitive. In CGI
 * `X-Forwarded-User` is `HTTP_X_FORWARDED_USER`, and on some servers `X+Forwarded.User` is the same.
 */
export const foldFieldName = (name: string): string => name.toLowerCase().replace(/[^a-z0-9]/g, '');

export const foldFieldNames = (names: Iterable<string>): ReadonlySet<string> =>
  new Set(Iterator.from(names).map(foldFieldName));

/** Messages repeat the same field names. The cache is bounded, so that made-up names cannot fill memory. */
export function memoizeByFieldName<T>(compute: (name: string) => NonNullable<T>): (name: string) => NonNullable<T> {
  const cache = new Map<string, NonNullable<T>>();
  return (name) => {
    const cached = cache.get(name);
    if (cached !== undefined) return cached;
    const value = compute(name);
    if (cache.size < 1_000 && name.length <= 64) cache.set(name, value);
    return value;
  };
}

/** RFC 9110 §5.6.3: without spaces and tabs around it. `trim` would remove more: a byte of UTF-8 can look like another kind of space. */
export function sliceTrimmed(text: string, from = 0, end = text.length): string {
  let [first, last] = [from, end];
  while (first < last && isBlank(text.charCodeAt(first))) first += 1;
  while (last > first && isBlank(text.charCodeAt(last - 1))) last -= 1;
  return text.slice(first, last);
}

const isBlank = (code: number): boolean => code === 0x20 || code === 0x09;
