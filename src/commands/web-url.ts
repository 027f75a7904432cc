import { isIP } from 'node:net';
import { networkInterfaces } from 'node:os';
import { UsageError } from './command.ts';

/** A host with or without a port: an address without its scheme. */
const BARE_HOST =
  /^((?:localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9-]+(?=:))(?::\d{1,5})?)(?:\/|$)/;

/** Parses an http or https URL; `scheme` is suggested where it is missing. */
export function parseWebUrl(
  label: string,
  text: string,
  {
    scheme,
    form: expectation = 'must be an http or https URL',
  }: { readonly scheme: 'http' | 'https'; readonly form?: string },
): URL {
  if (URL.canParse(text) && /^https?:$/.test(new URL(text).protocol)) {
    const url = new URL(text);
    // Credentials would be in the shell's history and in errors.
    if (url.username !== '' || url.password !== '')
      throw new UsageError(`${label}: the URL must not contain a user name or password`);
    return url;
  }
  // Only the host is quoted: the rest may contain a secret.
  const host = BARE_HOST.exec(text)?.[1];
  if (host !== undefined && URL.canParse(`${scheme}://${host}`))
    throw new UsageError(`${label}: ${host} is not a URL; did you mean ${scheme}://${host}?`);
  throw new UsageError(`${label} ${expectation}`);
}

/** Credentials are sent over TLS, or over plain HTTP to this machine only. */
export function requireSecureUrl(label: string, url: URL): void {
  if (url.protocol === 'https:' || isLocalAddress(url.hostname)) return;
  throw new UsageError(
    `${label}: ${url.host} is not an address of this machine, and http would expose the credentials to the network; use https, or localhost`,
  );
}

export const isLoopbackHost = (hostname: string): boolean =>
  hostname === 'localhost' || hostname === '[::1]' || (isIP(hostname) === 4 && hostname.startsWith('127.'));

/** Host names other than localhost are not resolved: the result may change. */
function isLocalAddress(hostname: string): boolean {
  if (isLoopbackHost(hostname)) return true;
  const host = hostname.replace(/^\[|\]$/g, '');
  return Object.values(networkInterfaces()).some((addresses) => addresses?.some(({ address }) => address === host));
}
