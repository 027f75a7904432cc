/** Latin-1: one byte for each character. */
const NARROW = /^[\0-\xff]*$/;

/**
 * The same text in one piece. What was put together from pieces stays a tree of them, and all of it is walked each time it
 * is written: text that is kept and written again and again is worth the copy.
 */
export const flat = (text: string): string =>
  NARROW.test(text) ? Buffer.from(text, 'latin1').toString('latin1') : text;
