/**
 * Secrets must not be logged in the first place. This removes those that end up in a text anyway, by their format.
 */
const SECRET_PATTERNS: readonly (readonly [RegExp, string])[] = [
  // JWTs, also truncated, with encoded dots, or with a prefix.
  [/eyJ[A-Za-z0-9_-]{8,}(?:(?:\.|%2e)[A-Za-z0-9_=-]*){0,4}/gi, '[redacted-jwt]'],
  // Refresh tokens, codes, sealed and encrypted texts and client secrets of gatehouse, by their prefix.
  [/gh[acders]_(?:[A-Za-z0-9_.~-]|%2e)+/gi, '[redacted]'],
  [
    /((?:access_token|refresh_token|subject_token|actor_token|logout_token|device_code|user_code|code_verifier|password|client_secret|assertion)=)[^&\s"']+/gi,
    '$1[redacted]',
  ],
  [/(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]+/gi, '$1 [redacted]'],
  [/-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)/g, '[redacted-key]'],
  // redis://user:password@host. The bound on the scheme avoids quadratic time on long texts.
  [/(\b[a-z][a-z0-9+.-]{0,31}:\/\/[^\s/:@]*:)[^\s/@]+@/gi, '$1[redacted]@'],
];

/** The end of an opaque access token, also percent-encoded, and what is before it. */
const OPAQUE_TOKEN_END = /==|%3d%3d/gi;
const OPAQUE_TOKEN_START = /(?<=((?:%2[bf]|[A-Za-z0-9+/]){62}))/iy;

/** Looks back from each end: looking for 62 characters from each position would take 62 times as long. */
function redactOpaqueTokens(text: string): string {
  let clean = '';
  let copied = 0;
  for (const { index, 0: end } of text.matchAll(OPAQUE_TOKEN_END)) {
    OPAQUE_TOKEN_START.lastIndex = index;
    const start = OPAQUE_TOKEN_START.exec(text)?.[1];
    if (start === undefined || index - start.length < copied) continue;
    clean += `${text.slice(copied, index - start.length)}[redacted-token]`;
    copied = index + end.length;
  }
  return copied === 0 ? text : clean + text.slice(copied);
}

/** A cheap prefilter: every pattern above contains one of these. */
const MAYBE_SECRET = /eyJ|gh[acders]_|=|%3d|bearer|basic|-----BEGIN|:\/\//i;

export function redactText(text: string): string {
  if (!MAYBE_SECRET.test(text)) return text;
  let clean = redactOpaqueTokens(text);
  for (const [pattern, replacement] of SECRET_PATTERNS) clean = clean.replace(pattern, replacement);
  return clean;
}

/** More than the patterns need to recognize a secret; longer ones are recognized by their beginning. */
const MARGIN = 256;

/**
 * The first `max` characters. The text is cut first, since redacting takes time that grows with its length. What is left of a
 * secret at that cut may not be recognized: it is omitted, wherever redaction has moved it.
 */
export function redactStart(text: string, max: number): string {
  if (text.length <= max + MARGIN) return redactText(text).slice(0, max);
  // A password in a URL is recognized by the `@` behind it.
  const clean = redactText(`${text.slice(0, max + MARGIN)}@`);
  return clean.slice(0, Math.max(0, Math.min(max, clean.length - 1 - MARGIN)));
}
