import { isIP } from 'node:net';
import { oneByOne, randomText } from '../observability/random-text.ts';

/** A list of addresses; shaped like the configuration's own. */
export interface Peers {
  readonly some: boolean;
  readonly includes: (address: string) => boolean;
}

export const NO_PEERS: Peers = { some: false, includes: () => false };

const MAX_HOPS = 32;

/** An IPv4-mapped IPv6 address (RFC 4291 §2.5.5.2), in whatever spelling, is the IPv4 address in it. */
export function plainAddress(address: string): string {
  if (address.startsWith('::ffff:') && isIP(address.slice(7)) === 4) return address.slice(7);
  if (!/[fF]{4}:/.test(address) || isIP(address) !== 6 || address.includes('%')) return address;
  // The URL parser writes addresses in their one short form (RFC 5952), in hexadecimal.
  const [, high, low] =
    /^\[::ffff:([0-9a-f]{1,4}):([0-9a-f]{1,4})\]$/.exec(new URL(`http://[${address}]`).hostname) ?? [];
  if (high === undefined || low === undefined) return address;
  const [first, last] = [Number.parseInt(high, 16), Number.parseInt(low, 16)];
  return [first >> 8, first & 0xff, last >> 8, last & 0xff].join('.');
}

/**
 * Who is calling: the rightmost address that is not one of ours. Each listed proxy vouches for the address it
 * wrote, so reading goes from the right and ends at the first that nobody vouches for.
 */
export function clientAddress(peer: string, rawHeaders: readonly string[], trusted: Peers): string {
  if (!trusted.some || !trusted.includes(peer)) return peer;
  const hops = headerValues(rawHeaders, 'x-forwarded-for')
    .flatMap((value) => value.split(','))
    .slice(-MAX_HOPS);
  let address = peer;
  for (const hop of hops.toReversed()) {
    const before = addressIn(hop.trim());
    if (before === undefined) break;
    address = before;
    if (!trusted.includes(address)) break;
  }
  return address;
}

/** `1.2.3.4`, `1.2.3.4:80`, `2001:db8::1`, `[2001:db8::1]:80`. */
function addressIn(text: string): string | undefined {
  if (isIP(text) > 0) return plainAddress(text);
  const [, address = ''] = /^\[([^\]]+)\](?::\d{1,5})?$/.exec(text) ?? /^([\d.]+):\d{1,5}$/.exec(text) ?? [];
  return isIP(address) > 0 ? plainAddress(address) : undefined;
}

export function headerValues(rawHeaders: readonly string[], name: string): string[] {
  const values: string[] = [];
  for (let at = 0; at + 1 < rawHeaders.length; at += 2)
    if (rawHeaders[at]?.toLowerCase() === name) values.push(rawHeaders[at + 1] ?? '');
  return values;
}

/** The id of a request: that of a listed proxy when it is of a sane shape, otherwise a new one. */
export function requestId(peer: string, rawHeaders: readonly string[], trusted: Peers): string {
  if (trusted.some && trusted.includes(peer)) {
    const [given, ...more] = headerValues(rawHeaders, 'x-request-id');
    if (given !== undefined && more.length === 0 && /^[A-Za-z0-9_-]{8,64}$/.test(given)) return given;
  }
  return newId();
}

const ID_BYTES = 12;
const ID_LENGTH = 16;
const SPELLED = 16;
/** The bytes of an id are a multiple of three: so each is a piece of its own of what is spelled. */
const newId = oneByOne(ID_LENGTH, () => randomText(ID_BYTES * SPELLED, 'base64url'));
