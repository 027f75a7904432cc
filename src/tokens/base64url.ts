const ALPHABET = /^[A-Za-z0-9_-]+$/;

/**
 * The same bytes have several base64url spellings: unused bits in the last character, padding, white space. Only the
 * canonical one is accepted, because caches and revocation are keyed by the string.
 */
export function isCanonicalBase64url(text: string): boolean {
  if (!ALPHABET.test(text)) return false;
  const rest = text.length % 4;
  if (rest === 1) return false;
  if (rest === 0) return true;
  const tail = text.slice(-rest);
  return Buffer.from(tail, 'base64url').toString('base64url') === tail;
}
