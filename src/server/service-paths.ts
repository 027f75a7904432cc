import type { Settings } from '../config/schema.ts';
import { RESOURCE_METADATA_PATH } from '../proxy/policy/resource-metadata.ts';

/** RFC 8615 §3: of both kinds of metadata. */
const WELL_KNOWN = '/.well-known/oauth-';
/** RFC 8414 §3. */
const METADATA_PATH = '/.well-known/oauth-authorization-server';

/** Recognizes the requests that gatehouse serves itself, by the paths in `service.paths`. */
export class ServicePaths {
  readonly #prefixes: readonly string[];
  readonly #forwardAuth: RegExp;

  readonly #servesResourceMetadata: boolean;

  constructor({ service, resourceMetadata }: Pick<Settings, 'service' | 'resourceMetadata'>) {
    this.#servesResourceMetadata = resourceMetadata.enabled;
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

  /** The path of the described resource (RFC 9728 §3.1 appends it), empty for the whole host; undefined for other requests. */
  matchResourceMetadata(path: string): string | undefined {
    if (!this.#servesResourceMetadata || !path.startsWith(RESOURCE_METADATA_PATH)) return undefined;
    const resourcePath = path.slice(RESOURCE_METADATA_PATH.length);
    return resourcePath === '' || resourcePath.startsWith('/') ? resourcePath : undefined;
  }

  /** Is this path served by gatehouse, and never forwarded? */
  includes(path: string): boolean {
    return (
      this.parse(path) !== undefined ||
      this.matchMetadata(path) !== undefined ||
      this.matchResourceMetadata(path) !== undefined
    );
  }

  /**
   * A cheap check that rules out nearly all requests to the API: a path in origin form without percent signs is canonical or
   * rejected, so its prefix can be compared as received.
   */
  mayInclude(url: string): boolean {
    if (!url.startsWith('/') || url.includes('%') || startsWithIgnoringCase(url, WELL_KNOWN)) return true;
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
