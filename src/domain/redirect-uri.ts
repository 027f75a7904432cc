/** Where an authorization response is sent: `https`, a loopback address, or the scheme of an app (RFC 8252 §7). */

const MAX_LENGTH = 512;
const LOOPBACK = /^(http:\/\/(?:127\.0\.0\.1|\[::1\]|localhost))(?::([1-9][0-9]{0,4}))?((?:[/?].*)?)$/;
const HTTPS = /^https:\/\/[^/?@]+(?:[/?].*)?$/;
/** RFC 8252 §7.1: a reversed domain name, so that no two apps have the same by accident. */
const PRIVATE_USE = /^[a-z][a-z0-9+-]*(?:\.[a-z0-9+-]+)+:\/{0,2}[^/].*$/;
/** The parameters of an authorization response (RFC 6749 §4.1.2, RFC 9207 §2). */
const RESPONSE_PARAMETERS = ['code', 'state', 'iss', 'error', 'error_description', 'error_uri', 'response'] as const;

/** Why a redirect URI cannot be registered. */
export function findRedirectUriProblem(text: string): string | undefined {
  if (text.length > MAX_LENGTH) return `is longer than ${MAX_LENGTH} characters`;
  if (!/^[\x21-\x7e]*$/.test(text) || /["<>\\^`{|}]/.test(text))
    return 'must be a URL in ASCII, with other characters percent-encoded';
  if (text.includes('#')) return 'must not have a fragment';
  if (text.includes('*')) return 'must not have a wildcard: list each redirect URI';
  if (text.startsWith('http://') && !isLoopback(text))
    return 'must be https; http is for http://127.0.0.1, http://[::1] and http://localhost only';
  if (!isLoopback(text) && !HTTPS.test(text) && !PRIVATE_USE.test(text))
    return 'must be an https URL, a loopback URL such as http://127.0.0.1/callback, or a private-use scheme with a dot such as com.example.app:/callback';
  if (!URL.canParse(text)) return 'is not a valid URL';
  const { searchParams } = new URL(text);
  const taken = RESPONSE_PARAMETERS.find((name) => searchParams.has(name));
  return taken === undefined ? undefined : `must not have the query parameter ${taken}: responses have it`;
}

export const isLoopback = (uri: string): boolean => {
  const [, , port = '1'] = LOOPBACK.exec(uri) ?? [undefined, undefined, '0'];
  return Number(port) > 0 && Number(port) <= 65_535;
};

/** RFC 8252 §7.3: apps on the computer of the user cannot choose the port. */
const withoutPort = (uri: string): string => uri.replace(LOOPBACK, '$1$3');

/** RFC 9700 §2.1: equal as strings, except for the port of loopback addresses. */
export const matchesRedirectUri = (registered: string, requested: string): boolean =>
  registered === requested ||
  (isLoopback(registered) && isLoopback(requested) && withoutPort(registered) === withoutPort(requested));

/** The kind of app at a redirect URI, and what identifies it to users: a host name or a scheme. */
type RedirectTarget =
  | { readonly kind: 'web'; readonly host: string }
  | { readonly kind: 'loopback' }
  | { readonly kind: 'app'; readonly scheme: string };

export function describeRedirectUri(uri: string): RedirectTarget {
  if (isLoopback(uri)) return { kind: 'loopback' };
  const { protocol, host } = new URL(uri);
  return protocol === 'https:' ? { kind: 'web', host } : { kind: 'app', scheme: protocol.slice(0, -1) };
}

/**
 * The CSP source that lets a form lead there. Chromium checks every redirect after a form, and the app may redirect once more to
 * another of its hosts, so it is a scheme and not a host.
 */
export function getFormActionSource(uri: string): string {
  const target = describeRedirectUri(uri);
  if (target.kind === 'web') return 'https:';
  return target.kind === 'loopback' ? 'http: https:' : `${target.scheme}:`;
}

/** RFC 6749 §4.1.2: parameters are added to a query that the redirect URI has. */
export function addResponseParameters(uri: string, parameters: Readonly<Record<string, string>>): string {
  const separator = uri.includes('?') ? '&' : '?';
  return `${uri}${separator}${new URLSearchParams(parameters).toString()}`;
}
