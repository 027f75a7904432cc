import { isIPv6, SocketAddress } from 'node:net';
import { hostName } from '../domain/rule-matcher.ts';
import { firstReports } from '../observability/first-reports.ts';
import type { Logger } from '../observability/logger.ts';

/** `hosts` of the configuration. */
export interface HostSettings {
  /** Names beside that of `publicUrl` and those of routes; `*.name` is any name below it, `*` any name. */
  readonly allowed: readonly string[];
  /** What becomes of requests for other hosts. */
  readonly others: 'warn' | 'refuse';
}

export interface ServedHosts {
  /** Is this host, with or without a port, one that clients may name? */
  isListed(host: string): boolean;
  /** False: the request is refused. A host that is not listed is logged. */
  accepts(host: string, peer: string, socket: LocalEnd): boolean;
}

/** The end of a connection that is ours. */
export interface LocalEnd {
  readonly localAddress?: string | undefined;
}

export interface ServedHostsDeps {
  readonly settings: HostSettings;
  readonly publicUrl: string;
  /** Hosts that routes name, in lower case. */
  readonly routeHosts: ReadonlySet<string>;
  /** The host of the confirmation pages, where it is theirs alone. */
  readonly pagesHost?: string | undefined;
}

/** Is a name that `hosts.allowed` has, or that of the pages? */
export function allowedHosts(
  allowed: readonly string[],
  pagesHost: string | undefined,
): (name: string) => boolean {
  const names = new Set(allowed.filter((name) => !name.startsWith('*')).map(hostName));
  const endings = allowed.filter((name) => name.startsWith('*.')).map((name) => hostName(name.slice(1)));
  const any = allowed.includes('*');
  return (name) =>
    any ||
    name === pagesHost ||
    names.has(name) ||
    endings.some((ending) => name.length > ending.length && name.endsWith(ending));
}

/** Spellings of listed hosts that are remembered, with and without a port. */
const MOST_KNOWN = 1_000;

export function servedHosts(
  { settings, publicUrl, routeHosts, pagesHost }: ServedHostsDeps,
  log?: Pick<Logger, 'warn'>,
): ServedHosts {
  const own = hostName(new URL(publicUrl).host);
  const isAllowed = allowedHosts(settings.allowed, pagesHost);
  const known = new Set<string>();
  const report = reporter(settings, log);

  const isListed = (host: string): boolean => {
    if (known.has(host)) return true;
    const name = hostName(host);
    if (name !== own && !routeHosts.has(name) && !isAllowed(name)) return false;
    if (known.size < MOST_KNOWN) known.add(host);
    return true;
  };

  return {
    isListed,
    accepts(host, peer, socket) {
      // HTTP/1.0 may name none; then none is forwarded.
      if (known.has(host) || host === '' || isListed(host)) return true;
      const name = hostName(host);
      // Health checks name the address that they connect to, such as that of a pod.
      if (isLocal(name, socket.localAddress)) return true;
      report(name, peer);
      return settings.others === 'warn';
    },
  };
}

function isLocal(name: string, local: string | undefined): boolean {
  if (local === undefined) return false;
  const address = local.startsWith('::ffff:') ? local.slice('::ffff:'.length) : local;
  if (name === address) return true;
  if (name === 'localhost') return address === '::1' || address.startsWith('127.');
  const inside = name.startsWith('[') ? name.slice(1, -1) : '';
  return isIPv6(inside) && normalIPv6(inside) === normalIPv6(local);
}

const normalIPv6 = (address: string): string =>
  isIPv6(address) ? new SocketAddress({ address, family: 'ipv6' }).address : address;

function reporter(
  { others }: HostSettings,
  log: Pick<Logger, 'warn'> | undefined,
): (host: string, peer: string) => void {
  const firstReport = firstReports();
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
