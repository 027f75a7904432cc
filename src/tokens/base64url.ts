const ALPHABET = /^[A-Za-z0-9_-]+$/;
/** Last characters whose unused bits are zero: four of them after one byte, two after two bytes. */
const [AFTER_ONE_BYTE, AFTER_TWO_BYTES] = ['AQgw', 'AEIMQUYcgkosw048'];

/**
 * The same bytes have several base64url spellings: unused bits in the last character, padding, white space. Only the
 * canonical one is accepted, because caches and revocation are keyed by the string.
 */
export function isCanonicalBase64url(text: string): boolean {
  if (!ALPHABET.test(text)) return false;
  switch (text.length % 4) {
    case 0:
      return true;
    case 1:
      return false;
    case 2:
      return AFTER_ONE_BYTE.includes(text.charAt(text.length - 1));
    default:
      return AFTER_TWO_BYTES.includes(text.charAt(text.length - 1));
  }
}
