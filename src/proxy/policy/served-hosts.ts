import { isIPv6, SocketAddress } from 'node:net';
import { normalizeHost } from '../../domain/rule-matcher.ts';
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

export interface ServedHosts {
  /** May clients name this host, with or without a port? */
  isListed(host: string): boolean;
  /** False: the request is refused. Hosts that are not listed are logged. */
  accepts(host: string, peer: string, socket: LocalEndpoint): boolean;
}

export interface ServedHostsDeps {
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
): ServedHosts {
  const publicHost = normalizeHost(new URL(publicUrl).host);
  const isAllowed = createHostMatcher(settings.allowed, pagesHost);
  const known = new Set<string>();
  const report = createReporter(settings, log);

  const isListed = (host: string): boolean => {
    if (known.has(host)) return true;
    const name = normalizeHost(host);
    if (name !== publicHost && !routeHosts.has(name) && !isAllowed(name)) return false;
    if (known.size < MAX_KNOWN_HOSTS) known.add(host);
    return true;
  };

  return {
    isListed,
    accepts(host, peer, socket) {
      // HTTP/1.0 requests may have no host; then none is forwarded.
      if (known.has(host) || host === '' || isListed(host)) return true;
      const name = normalizeHost(host);
      // Health checks name the address that they connect to, such as that of the pod.
      if (isLocal(name, socket.localAddress)) return true;
      report(name, peer);
      return settings.others === 'warn';
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

function createReporter(
  { others }: HostSettings,
  log: Pick<Logger, 'warn'> | undefined,
): (host: string, peer: string) => void {
  const firstReport = createReportLimiter();
  return (host, peer) => {
    const first = log && firstReport(host);
    if (first === undefined) return;
    log?.warn('host_not_listed', {
      host,
      peer,
      decision: others === 'warn' ? 'accepted' : 'refused',
      setting: 'hosts.allowed',
      ...first,
    });
  };
}
