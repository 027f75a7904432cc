const LATIN1 = /^[\0-\xff]*$/;

/**
 * A copy without V8's tree of parts (rope), which is walked at each write, and without the longer string that a slice keeps
 * in memory.
 */
export function flattenString(text: string): string {
  const encoding = LATIN1.test(text) ? 'latin1' : 'utf16le';
  return Buffer.from(text, encoding).toString(encoding);
}
