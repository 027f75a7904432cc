import { type JsonObject, parseStrictJsonObject } from '../lib/strict-json.ts';

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

/** A token whose form is valid and whose signature has not been verified. */
export interface DecodedToken {
  readonly header: JsonObject;
  readonly claims: JsonObject;
}

/** Returns undefined unless it is a JWT in compact serialization with unambiguous JSON (RFC 7515 §7.1, RFC 8725 §2.4). */
export function decodeToken(token: string): DecodedToken | undefined {
  const parts = token.split('.', 4);
  if (parts.length !== 3 || !parts.every(isCanonicalBase64url)) return undefined;
  const [header, claims] = parts.slice(0, 2).map(decodeJsonObject);
  return header && claims && { header, claims };
}

const UTF8 = new TextDecoder('utf-8', { fatal: true });

/** A part of a JWT, in canonical base64url. Undefined: not an object in unambiguous JSON. */
export function decodeJsonObject(part: string): JsonObject | undefined {
  try {
    return parseStrictJsonObject(UTF8.decode(Buffer.from(part, 'base64url')));
  } catch {
    return undefined;
  }
}
