/** The decoded fields of `application/x-www-form-urlencoded` text in order; undefined for one that is not percent-encoded UTF-8. */
export const decodeFormFields = (text: string): Iterable<readonly [name: string, value: string] | undefined> =>
  Iterator.from(text === '' ? [] : text.split('&')).map((pair) => {
    const [name = '', ...value] = pair.replaceAll('+', ' ').split('=');
    try {
      return [decodeURIComponent(name), decodeURIComponent(value.join('='))];
    } catch {
      return undefined;
    }
  });
