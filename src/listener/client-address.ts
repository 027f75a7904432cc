import { isIP } from 'node:net';
import { getHeaderValues, getSingleHeader } from '../http/raw-headers.ts';
import { createBatchedGenerator, randomString } from '../lib/random-string.ts';

/** A set of addresses and networks, as in the configuration. */
export interface PeerList {
  readonly hasEntries: boolean;
  readonly includes: (address: string) => boolean;
}

export const EMPTY_PEER_LIST: PeerList = { hasEntries: false, includes: () => false };

const MAX_HOPS = 32;

/** Maps IPv4-mapped IPv6 addresses (RFC 4291 §2.5.5.2), in any notation, to IPv4. */
export function normalizeAddress(address: string): string {
  if (address.startsWith('::ffff:') && isIP(address.slice(7)) === 4) return address.slice(7);
  if (!/[fF]{4}:/.test(address) || isIP(address) !== 6 || address.includes('%')) return address;
  // The URL parser compresses IPv6 addresses (RFC 5952).
  const [, high, low] =
    /^\[::ffff:([0-9a-f]{1,4}):([0-9a-f]{1,4})\]$/.exec(new URL(`http://[${address}]`).hostname) ?? [];
  if (high === undefined || low === undefined) return address;
  const [first, last] = [Number.parseInt(high, 16), Number.parseInt(low, 16)];
  return [first >> 8, first & 0xff, last >> 8, last & 0xff].join('.');
}

/** The rightmost address of X-Forwarded-For that is not a trusted proxy: each trusted proxy vouches for the address it added. */
export function resolveClientAddress(peer: string, rawHeaders: readonly string[], trusted: PeerList): string {
  if (!trusted.hasEntries || !trusted.includes(peer)) return peer;
  const hops = getHeaderValues(rawHeaders, 'x-forwarded-for')
    .flatMap((value) => value.split(','))
    .slice(-MAX_HOPS);
  let address = peer;
  for (const hop of hops.toReversed()) {
    const previous = parseHopAddress(hop.trim());
    if (previous === undefined) break;
    address = previous;
    if (!trusted.includes(address)) break;
  }
  return address;
}

/** `1.2.3.4`, `1.2.3.4:80`, `2001:db8::1`, `[2001:db8::1]:80`. */
function parseHopAddress(text: string): string | undefined {
  if (isIP(text) > 0) return normalizeAddress(text);
  const [, address = ''] = /^\[([^\]]+)\](?::\d{1,5})?$/.exec(text) ?? /^([\d.]+):\d{1,5}$/.exec(text) ?? [];
  return isIP(address) > 0 ? normalizeAddress(address) : undefined;
}

/** Accepts a well-formed X-Request-Id from a trusted proxy; otherwise generates one. */
export function resolveRequestId(peer: string, rawHeaders: readonly string[], trusted: PeerList): string {
  if (trusted.hasEntries && trusted.includes(peer)) {
    const received = getSingleHeader(rawHeaders, 'x-request-id');
    if (received !== undefined && /^[A-Za-z0-9_-]{8,64}$/.test(received)) return received;
  }
  return generateId();
}

/** A multiple of three, so that each id has whole base64url characters of its own. */
const ID_BYTES = 12;
const ID_LENGTH = 16;
const IDS_PER_BATCH = 16;
const generateId = createBatchedGenerator(ID_LENGTH, () => randomString(ID_BYTES * IDS_PER_BATCH, 'base64url'));
