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
  if (URL.canParse(text) && /^https?:$/.test(new URL(text).protocol)) return new URL(text);
  // Of the text only what is a host is shown: the rest may hold a secret.
  const bare = BARE.exec(text)?.[1];
  if (bare !== undefined && URL.canParse(`${scheme}://${bare}`))
    throw new UsageError(`${what}: ${bare} is no URL; did you mean ${scheme}://${bare}?`);
  throw new UsageError(`${what} ${form}`);
}
