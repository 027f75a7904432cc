import type { Settings } from '../config/schema.ts';

type ServiceSettings = { readonly service: Pick<Settings['service'], 'paths'> };

/** What stands below the service path, in lower case; undefined for a path that is not the token service's. */
export function servicePaths({ service }: ServiceSettings): (path: string) => string | undefined {
  const prefixes = service.paths.map((path) => path.toLowerCase());
  return (given) => {
    const path = given.toLowerCase();
    for (const prefix of prefixes)
      if (path === prefix || path.startsWith(`${prefix}/`)) return path.slice(prefix.length);
    return undefined;
  };
}

/** RFC 8414 §3. */
const METADATA = '/.well-known/oauth-authorization-server';

/**
 * Asked for our metadata: the path of the issuer it was asked for (§3.1 puts it behind), which is none or a service
 * path as it was written; undefined for everything else.
 */
export function metadataMatcher({ service }: ServiceSettings): (path: string) => string | undefined {
  const issuers = new Set(['', ...service.paths.map((path) => path.toLowerCase())]);
  return (path) => {
    if (!path.startsWith(METADATA)) return undefined;
    const below = path.slice(METADATA.length);
    return issuers.has(below.toLowerCase()) ? below : undefined;
  };
}

/** Is this path answered here, and never forwarded? */
export function ownPaths(settings: ServiceSettings): (path: string) => boolean {
  const below = servicePaths(settings);
  const metadata = metadataMatcher(settings);
  return (path) => below(path) !== undefined || metadata(path) !== undefined;
}

/**
 * Could this be a request for the token service? A cheap no for nearly all that go to the API: without percent signs
 * a path in origin form is canonical or refused, so its beginning can be compared as it was sent.
 */
export function serviceLookalike({ service }: ServiceSettings): (url: string) => boolean {
  const prefixes = [METADATA, ...service.paths.map((path) => path.toLowerCase())];
  return (url) =>
    !url.startsWith('/') ||
    url.includes('%') ||
    prefixes.some((prefix) => url.slice(0, prefix.length).toLowerCase() === prefix);
}

/**
 * What stands after `/check`, as it was sent: for some gateways it is the path they ask about, which is to be judged
 * and neither refused nor repaired before.
 */
export function checkMatcher({ service }: ServiceSettings): (url: string) => string | undefined {
  const prefix = new RegExp(`^(?:${service.paths.join('|')})/check(?=[/?]|$)`, 'i');
  return (url) => {
    const [found] = prefix.exec(url) ?? [];
    return found === undefined ? undefined : url.slice(found.length);
  };
}
