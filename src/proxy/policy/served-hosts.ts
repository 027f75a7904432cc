import { isIPv6, SocketAddress } from 'node:net';
import { normalizeAuthority } from '../../domain/request-target.ts';
import { type CompiledRules, normalizeHost } from '../../domain/rule-matcher.ts';
import type { LocalEndpoint } from '../../http/request-context.ts';
import type { Logger } from '../../observability/logger.ts';
import { createReportLimiter } from '../../observability/report-limiter.ts';

/** The setting `hosts`. */
export interface HostSettings {
  /** Besides those of `publicUrl` and of routes; `*.name` matches any subdomain, `*` any name. */
  readonly allowed: readonly string[];
  /** What happens to requests for other hosts. */
  readonly others: 'warn' | 'refuse';
}

export type ServedHosts = ReturnType<typeof createServedHosts>;

interface ServedHostsDeps {
  readonly settings: HostSettings;
  readonly publicUrl: string;
  /** Hosts that routes name, in lower case. */
  readonly routeHosts: ReadonlySet<string>;
  /** The host of the confirmation pages, where they have their own. */
  readonly pagesHost?: string | undefined;
}

/** Matches names in `hosts.allowed`, and that of the pages. */
export function createHostMatcher(
  allowed: readonly string[],
  pagesHost: string | undefined,
): (name: string) => boolean {
  const names = new Set(allowed.filter((name) => !name.startsWith('*')).map(normalizeHost));
  const suffixes = allowed.filter((name) => name.startsWith('*.')).map((name) => normalizeHost(name.slice(1)));
  const allowsAny = allowed.includes('*');
  return (name) =>
    allowsAny ||
    name === pagesHost ||
    names.has(name) ||
    suffixes.some((ending) => name.length > ending.length && name.endsWith(ending));
}

/** Cached spellings of listed hosts, with and without a port. */
const MAX_KNOWN_HOSTS = 1_000;

export function createServedHosts(
  { settings, publicUrl, routeHosts, pagesHost }: ServedHostsDeps,
  log?: Pick<Logger, 'warn'>,
) {
  const publicHost = normalizeHost(new URL(publicUrl).host);
  const isAllowed = createHostMatcher(settings.allowed, pagesHost);
  const known = new Set<string>();
  const isAccepted = settings.others === 'warn';
  const firstReport = createReportLimiter();

  /** May clients name this host, with or without a port? */
  const isListed = (host: string): boolean => {
    if (known.has(host)) return true;
    const name = normalizeHost(host);
    if (name !== publicHost && !routeHosts.has(name) && !isAllowed(name)) return false;
    if (known.size < MAX_KNOWN_HOSTS) known.add(host);
    return true;
  };

  return {
    isListed,
    /** False: the request is refused. Hosts that are not listed are logged. */
    accepts: (host: string, peer: string, socket: LocalEndpoint): boolean => {
      // HTTP/1.0 requests may have no host; then none is forwarded.
      if (known.has(host) || host === '' || isListed(host)) return true;
      const name = normalizeHost(host);
      // Health checks name the address that they connect to, such as that of the pod.
      if (isLocal(name, socket.localAddress)) return true;
      const first = log && firstReport(name);
      if (first !== undefined) {
        const decision = isAccepted ? 'accepted' : 'refused';
        log?.warn('host_not_listed', { host: name, peer, decision, setting: 'hosts.allowed', ...first });
      }
      return isAccepted;
    },
  };
}

function isLocal(name: string, localAddress: string | undefined): boolean {
  if (localAddress === undefined) return false;
  const address = localAddress.startsWith('::ffff:') ? localAddress.slice('::ffff:'.length) : localAddress;
  if (name === address) return true;
  if (name === 'localhost') return address === '::1' || address.startsWith('127.');
  const ipv6Literal = name.startsWith('[') ? name.slice(1, -1) : '';
  return isIPv6(ipv6Literal) && normalizeIPv6(ipv6Literal) === normalizeIPv6(localAddress);
}

const normalizeIPv6 = (address: string): string =>
  isIPv6(address) ? new SocketAddress({ address, family: 'ipv6' }).address : address;

/**
 * The origin that clients of a host use: that of `publicUrl`, with the name of the host if it is listed. Other names are not
 * repeated: a client can send any.
 */
export function createOriginResolver(
  publicUrl: string,
  isListedHost: (name: string) => boolean,
): (host: string) => string {
  const { host: publicAuthority, protocol, port } = new URL(publicUrl);
  const publicHost = normalizeHost(publicAuthority);
  return (host) => {
    const name = normalizeHost(host);
    if (name === publicHost || !isListedHost(name)) return publicUrl;
    return `${protocol}//${name}${port === '' ? '' : `:${port}`}`;
  };
}

/** Is this authority of an absolute request target served here: that of `publicUrl`, a host of a rule, or of `hosts.allowed`? */
export function createOwnAuthorityCheck(
  publicUrl: string,
  rules: Pick<CompiledRules, 'hosts'>,
  isAllowed: (name: string) => boolean = () => false,
): (authority: string) => boolean {
  const { host, protocol } = new URL(publicUrl);
  const ownAuthority = normalizeAuthority(host, protocol.slice(0, -1));
  return (authority) => {
    if (authority === ownAuthority) return true;
    const name = normalizeHost(authority);
    return rules.hosts.has(name) || isAllowed(name);
  };
}
