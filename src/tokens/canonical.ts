/**
 * Base64url has more than one spelling for the same bytes: unused bits in the last character, padding, white
 * space. A memory or a list keyed by the string could be dodged by respelling it, so only the one canonical
 * spelling is a token at all.
 */
const ALPHABET = /^[A-Za-z0-9_-]+$/;

export function isCanonicalBase64url(text: string): boolean {
  if (!ALPHABET.test(text)) return false;
  const rest = text.length % 4;
  if (rest === 1) return false;
  if (rest === 0) return true;
  const tail = text.slice(-rest);
  return Buffer.from(tail, 'base64url').toString('base64url') === tail;
}
