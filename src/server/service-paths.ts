import type { Settings } from '../config/schema.ts';

/** RFC 8414 §3. */
const METADATA_PATH = '/.well-known/oauth-authorization-server';

/** Recognizes the requests that gatehouse serves itself, by the paths in `service.paths`. */
export class ServicePaths {
  readonly #prefixes: readonly string[];
  readonly #forwardAuth: RegExp;

  constructor({ service }: { readonly service: Pick<Settings['service'], 'paths'> }) {
    this.#prefixes = service.paths.map((path) => path.toLowerCase());
    this.#forwardAuth = new RegExp(`^(?:${service.paths.join('|')})/check(?=[/?]|$)`, 'i');
  }

  /** The path below the service path, in lower case; undefined for other paths. */
  parse(requestPath: string): string | undefined {
    const path = requestPath.toLowerCase();
    for (const prefix of this.#prefixes)
      if (path === prefix || path.startsWith(`${prefix}/`)) return path.slice(prefix.length);
    return undefined;
  }

  /**
   * The issuer path of a metadata request (RFC 8414 §3.1 appends it): empty, or a service path as written by the client;
   * undefined for other requests.
   */
  matchMetadata(path: string): string | undefined {
    if (!path.startsWith(METADATA_PATH)) return undefined;
    const issuerPath = path.slice(METADATA_PATH.length);
    return issuerPath === '' || this.#prefixes.includes(issuerPath.toLowerCase()) ? issuerPath : undefined;
  }

  /** Is this path served by gatehouse, and never forwarded? */
  includes(path: string): boolean {
    return this.parse(path) !== undefined || this.matchMetadata(path) !== undefined;
  }

  /**
   * A cheap check that rules out nearly all requests to the API: a path in origin form without percent signs is canonical or
   * rejected, so its prefix can be compared as received.
   */
  mayInclude(url: string): boolean {
    if (!url.startsWith('/') || url.includes('%') || startsWithIgnoringCase(url, METADATA_PATH)) return true;
    return this.#prefixes.some((prefix) => startsWithIgnoringCase(url, prefix));
  }

  /**
   * The text after `/check`, as received: some gateways append the original path there, which must reach forward-auth
   * unmodified.
   */
  matchForwardAuth(url: string): string | undefined {
    const [found] = this.#forwardAuth.exec(url) ?? [];
    return found === undefined ? undefined : url.slice(found.length);
  }
}

const startsWithIgnoringCase = (url: string, prefix: string): boolean =>
  url.slice(0, prefix.length).toLowerCase() === prefix;
