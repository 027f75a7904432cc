import type { LogValue } from './logger.ts';

/**
 * The second net. The first is that nobody hands a secret to the logger; this one catches a secret that slipped
 * into a message, by its shape or by the name of its field.
 */
const SECRET_NAMES = new Set([
  'access_token',
  'refresh_token',
  'device_code',
  'user_code',
  'password',
  'passwordhash',
  'authorization',
  'cookie',
  'set-cookie',
  'secret',
  'token',
  'key',
]);

const SHAPES: readonly (readonly [RegExp, string])[] = [
  // A JWT, also a broken one, one whose dots are encoded, and one that something was put before.
  [/eyJ[A-Za-z0-9_-]{8,}(?:(?:\.|%2e)[A-Za-z0-9_=-]*){0,4}/gi, '[redacted-jwt]'],
  // An opaque access token, also with its signs encoded.
  [/(?:[A-Za-z0-9+/]|%2[bf]){62}(?:==|%3d%3d)/gi, '[redacted-token]'],
  // Our refresh tokens, device codes and sealed cookies carry their kind as a prefix.
  [/gh[rdsc]_(?:[A-Za-z0-9_.~-]|%2e)+/gi, '[redacted]'],
  [
    /((?:access_token|refresh_token|device_code|user_code|password|client_secret|assertion)=)[^&\s"']+/gi,
    '$1[redacted]',
  ],
  [/(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]+/gi, '$1 [redacted]'],
  [/-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)/g, '[redacted-key]'],
  // redis://user:password@host and the like. The scheme has a length: without one, a long text of words and dots
  // is searched again from each of its words.
  [/(\b[a-z][a-z0-9+.-]{0,31}:\/\/[^\s/:@]*:)[^\s/@]+@/gi, '$1[redacted]@'],
];

/** Every shape above has one of these in it; nearly no text has, and is then done with after a single look. */
const SUSPICIOUS = /eyJ|gh[rdsc]_|=|%3d|bearer|basic|-----BEGIN|:\/\//i;

export function redactText(text: string): string {
  if (!SUSPICIOUS.test(text)) return text;
  let clean = text;
  for (const [shape, instead] of SHAPES) clean = clean.replace(shape, instead);
  return clean;
}

/** Drawn at random by us: about one in five thousand looks like the beginning of a JWT, and is none. */
const OUR_IDS = new Set(['request_id', 'requestId', 'request', 'grant']);
const ID = /^[A-Za-z0-9_-]{1,24}$/;

export function redactValue(name: string, value: LogValue): LogValue {
  if (typeof value === 'string' && OUR_IDS.has(name) && ID.test(value)) return value;
  if (typeof value === 'string')
    return SECRET_NAMES.has(name.toLowerCase()) ? '[redacted]' : redactText(value);
  if (Array.isArray(value)) return value.map((text: string) => redactText(text));
  return value;
}
