import type { Settings } from '../config/schema.ts';
import { compileRules, normalizeHost } from '../domain/rule-matcher.ts';
import type { ExplainContext } from '../proxy/policy/explain.ts';
import { EXT_AUTHZ_PATH } from '../proxy/policy/ext-authz.ts';
import { RESOURCE_METADATA_PATH } from '../proxy/policy/resource-metadata.ts';
import { createHostMatcher, createOwnAuthorityCheck, createServedHosts } from '../proxy/policy/served-hosts.ts';
import { buildRules } from './build-from-settings.ts';

/** The origin of the confirmation pages (docs/decisions/0026-separate-host-for-pages.md). */
export function getPagesOrigin({
  publicUrl,
  pages,
}: Pick<Settings, 'publicUrl'> & { readonly pages: Pick<Settings['pages'], 'url'> }) {
  const url = pages.url === undefined || pages.url === 'shared' ? publicUrl : pages.url;
  const { origin, host } = new URL(url);
  // Set where the pages have a separate host: only the pages are served there, and only there.
  return { url, host: origin === new URL(publicUrl).origin ? undefined : normalizeHost(host) };
}

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
      this.matchResourceMetadata(path) !== undefined ||
      path === EXT_AUTHZ_PATH
    );
  }

  /**
   * A cheap check that rules out nearly all requests to the API: a path in origin form without percent signs is canonical or
   * rejected, so its prefix can be compared as received.
   */
  mayInclude(url: string): boolean {
    if (!url.startsWith('/') || url.includes('%') || startsWithIgnoringCase(url, WELL_KNOWN)) return true;
    if (url === EXT_AUTHZ_PATH) return true;
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

/** What the proxy decides with, for `gatehouse explain` and the console. */
export function createExplainContext(settings: Settings): ExplainContext {
  const { publicUrl, hosts, trustedIssuers } = settings;
  const rules = compileRules(buildRules(settings));
  const pagesHost = getPagesOrigin(settings).host;
  const paths = new ServicePaths(settings);
  const served = createServedHosts({ settings: hosts, publicUrl, routeHosts: rules.hosts, pagesHost });
  return {
    rules,
    publicUrl,
    trustedIssuers: new Map(Object.entries(trustedIssuers)),
    isOwnAuthority: createOwnAuthorityCheck(publicUrl, rules, createHostMatcher(hosts.allowed, pagesHost)),
    pagesHost,
    isListedHost: (name) => served.isListed(name),
    unlistedHosts: hosts.others,
    isServicePath: (path) => paths.includes(path),
    isPagePath: (path) => /^\/device(?:\/|$)/.test(paths.parse(path) ?? ''),
    isForwardAuthPath: (url) => paths.matchForwardAuth(url) !== undefined || url === EXT_AUTHZ_PATH,
  };
}
