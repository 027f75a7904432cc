import { BlockList, isIP, type LookupFunction } from 'node:net';

/** Networks that are not on the internet (IANA special-purpose address registries), and multicast. */
const SPECIAL_NETWORKS: readonly (readonly [network: string, prefix: number])[] = [
  ['0.0.0.0', 8],
  ['10.0.0.0', 8],
  ['100.64.0.0', 10],
  ['127.0.0.0', 8],
  ['169.254.0.0', 16],
  ['172.16.0.0', 12],
  ['192.0.0.0', 24],
  ['192.0.2.0', 24],
  ['192.31.196.0', 24],
  ['192.52.193.0', 24],
  ['192.88.99.0', 24],
  ['192.168.0.0', 16],
  ['192.175.48.0', 24],
  ['198.18.0.0', 15],
  ['198.51.100.0', 24],
  ['203.0.113.0', 24],
  ['224.0.0.0', 4],
  ['240.0.0.0', 4],
];

const special = new BlockList();
for (const [network, prefix] of SPECIAL_NETWORKS) special.addSubnet(network, prefix, 'ipv4');

/** Only this is assigned to the public (RFC 4291 §2.4); tunnels to IPv4 (6to4, Teredo) within it are not. */
const globalUnicast = new BlockList();
globalUnicast.addSubnet('2000::', 3, 'ipv6');
const exceptions = new BlockList();
for (const [network, prefix] of [
  ['2001::', 23],
  ['2001:db8::', 32],
  ['2002::', 16],
  ['2620:4f:8000::', 48],
  ['3fff::', 20],
  ['3ffe::', 16],
] as const)
  exceptions.addSubnet(network, prefix, 'ipv6');

/** Is this an address of a host on the internet? Mapped and embedded IPv4 addresses are not: names never resolve to them. */
export function isPublicAddress(address: string): boolean {
  switch (isIP(address)) {
    case 4:
      return !special.check(address, 'ipv4');
    case 6:
      return globalUnicast.check(address, 'ipv6') && !exceptions.check(address, 'ipv6');
    default:
      return false;
  }
}

/**
 * Resolves names for a connection, and fails if one address of a name is not public. The connection uses the addresses that were
 * checked, so a second resolution cannot return others (DNS rebinding).
 */
export const createPublicLookup =
  (lookup: LookupFunction): LookupFunction =>
  (hostname, options, callback) => {
    lookup(hostname, { ...options, all: true }, (error, found) => {
      if (error !== null) return callback(error, []);
      const addresses = typeof found === 'string' ? [] : found;
      const isPublic = addresses.length > 0 && addresses.every(({ address }) => isPublicAddress(address));
      if (!isPublic) return callback(new Error('the host has an address that is not public'), []);
      const [first] = addresses;
      if (options.all === true) return callback(null, addresses);
      callback(null, first?.address ?? '', first?.family);
    });
  };
