import { isJsonObject, type JsonObject, parseStrictJson } from '../lib/strict-json.ts';
import { isCanonicalBase64url } from './base64url.ts';

/** A token whose form is valid and whose signature has not been verified. */
export interface DecodedToken {
  readonly header: JsonObject;
  readonly claims: JsonObject;
}

/** Undefined: not a JWT in compact serialization with unambiguous JSON (RFC 7515 §7.1, RFC 8725 §2.4). */
export function decodeToken(token: string, decodeHeader = decodeJsonObject): DecodedToken | undefined {
  const [encodedHeader = '', payload = '', signature = '', ...rest] = token.split('.', 4);
  if (rest.length > 0 || !isCanonicalBase64url(signature)) return undefined;
  const header = decodeHeader(encodedHeader);
  if (header === undefined) return undefined;
  const claims = decodeJsonObject(payload);
  return claims && { header, claims };
}

const UTF8 = new TextDecoder('utf-8', { fatal: true });

/** A part of a JWT. Undefined: not canonical base64url, or not an object in unambiguous JSON. */
export function decodeJsonObject(part: string): JsonObject | undefined {
  if (!isCanonicalBase64url(part)) return undefined;
  try {
    const value = parseStrictJson(UTF8.decode(Buffer.from(part, 'base64url')));
    return isJsonObject(value) ? value : undefined;
  } catch {
    return undefined;
  }
}
