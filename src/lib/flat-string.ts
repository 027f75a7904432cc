const LATIN1 = /^[\0-\xff]*$/;

/** A copy of a concatenated string without V8's tree of parts (rope), which is walked at each write. For text that is written often. */
export const flattenString = (text: string): string =>
  LATIN1.test(text) ? Buffer.from(text, 'latin1').toString('latin1') : text;
