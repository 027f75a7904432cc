import type { Settings } from '../config/schema.ts';

type ServiceSettings = { readonly service: Pick<Settings['service'], 'paths'> };

/** The path below the service path, in lower case; undefined for other paths. */
export function createServicePathParser({ service }: ServiceSettings): (path: string) => string | undefined {
  const prefixes = service.paths.map((path) => path.toLowerCase());
  return (requestPath) => {
    const path = requestPath.toLowerCase();
    for (const prefix of prefixes)
      if (path === prefix || path.startsWith(`${prefix}/`)) return path.slice(prefix.length);
    return undefined;
  };
}

/** RFC 8414 §3. */
const METADATA_PATH = '/.well-known/oauth-authorization-server';

/**
 * The issuer path of a metadata request (RFC 8414 §3.1 appends it): empty, or a service path as written by the client;
 * undefined for other requests.
 */
export function createMetadataMatcher({ service }: ServiceSettings): (path: string) => string | undefined {
  const issuers = new Set(['', ...service.paths.map((path) => path.toLowerCase())]);
  return (path) => {
    if (!path.startsWith(METADATA_PATH)) return undefined;
    const issuerPath = path.slice(METADATA_PATH.length);
    return issuers.has(issuerPath.toLowerCase()) ? issuerPath : undefined;
  };
}

/** Is this path served by gatehouse, and never forwarded? */
export function createServicePathMatcher(settings: ServiceSettings): (path: string) => boolean {
  const parseServicePath = createServicePathParser(settings);
  const matchMetadata = createMetadataMatcher(settings);
  return (path) => parseServicePath(path) !== undefined || matchMetadata(path) !== undefined;
}

/**
 * A cheap check that rules out nearly all requests to the API: a path in origin form without percent signs is canonical or
 * rejected, so its prefix can be compared as received.
 */
export function createServicePathPrefilter({ service }: ServiceSettings): (url: string) => boolean {
  const prefixes = [METADATA_PATH, ...service.paths.map((path) => path.toLowerCase())];
  return (url) =>
    !url.startsWith('/') ||
    url.includes('%') ||
    prefixes.some((prefix) => url.slice(0, prefix.length).toLowerCase() === prefix);
}

/**
 * The text after `/check`, as received: some gateways append the original path there, which must reach forward-auth
 * unmodified.
 */
export function createForwardAuthMatcher({ service }: ServiceSettings): (url: string) => string | undefined {
  const prefix = new RegExp(`^(?:${service.paths.join('|')})/check(?=[/?]|$)`, 'i');
  return (url) => {
    const [found] = prefix.exec(url) ?? [];
    return found === undefined ? undefined : url.slice(found.length);
  };
}
