import { isIP } from 'node:net';
import { networkInterfaces } from 'node:os';
import { UsageError } from './command.ts';

/** A host, perhaps with a port: what people type when they leave out the scheme. */
const BARE =
  /^((?:localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9-]+(?=:))(?::\d{1,5})?)(?:\/|$)/;

/** The http or https address in an argument; `scheme` is the one to propose where it is missing. */
export function webAddress(
  what: string,
  text: string,
  {
    scheme,
    form = 'is an http or https address',
  }: { readonly scheme: 'http' | 'https'; readonly form?: string },
): URL {
  if (URL.canParse(text) && /^https?:$/.test(new URL(text).protocol)) {
    const url = new URL(text);
    // It would be in the shell's history and in errors, and the option for it is another one.
    if (url.username !== '' || url.password !== '')
      throw new UsageError(`${what}: an address without user name and password is needed`);
    return url;
  }
  // Of the text only what is a host is shown: the rest may hold a secret.
  const bare = BARE.exec(text)?.[1];
  if (bare !== undefined && URL.canParse(`${scheme}://${bare}`))
    throw new UsageError(`${what}: ${bare} is no URL; did you mean ${scheme}://${bare}?`);
  throw new UsageError(`${what} ${form}`);
}

/** A secret is sent over TLS, or over plain HTTP within this machine. */
export function mustBePrivate(what: string, url: URL): void {
  if (url.protocol === 'https:' || isThisMachine(url.hostname)) return;
  throw new UsageError(
    `${what}: ${url.host} is not an address of this machine, and http would show the credentials to the network; use https, or localhost`,
  );
}

/** Other names than localhost are not looked up: what a resolver says today it may not say tomorrow. */
function isThisMachine(hostname: string): boolean {
  const host = hostname.replace(/^\[|\]$/g, '');
  if (host === 'localhost' || host === '::1' || (isIP(host) === 4 && host.startsWith('127.'))) return true;
  return Object.values(networkInterfaces()).some((addresses) =>
    addresses?.some(({ address }) => address === host),
  );
}
