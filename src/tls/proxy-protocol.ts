import { isIPv4, isIPv6 } from 'node:net';

/**
 * The PROXY protocol, versions 1 and 2: who is really calling, as told by a load balancer before the first byte
 * of the call itself. Only read from listed peers, and from those it is not optional.
 */
export type ProxyHeader =
  | { readonly kind: 'incomplete' }
  | { readonly kind: 'unreadable' }
  /** No source: the balancer speaks for itself (health checks), or cannot tell. */
  | { readonly kind: 'read'; readonly length: number; readonly source: string | undefined };

const SIGNATURE = Buffer.from('\r\n\r\n\0\r\nQUIT\n', 'latin1');
const V1_START = Buffer.from('PROXY ', 'latin1');
const V1_MAX = 107;
const V2_MAX = 4_096;
const INCOMPLETE = { kind: 'incomplete' } as const;
const UNREADABLE = { kind: 'unreadable' } as const;

const startsLike = (bytes: Buffer, start: Buffer): boolean => {
  const length = Math.min(bytes.length, start.length);
  return bytes.subarray(0, length).equals(start.subarray(0, length));
};

export function readProxyHeader(bytes: Buffer): ProxyHeader {
  if (startsLike(bytes, SIGNATURE)) return bytes.length < 16 ? INCOMPLETE : readVersion2(bytes);
  if (startsLike(bytes, V1_START)) return readVersion1(bytes);
  return UNREADABLE;
}

function readVersion1(bytes: Buffer): ProxyHeader {
  const end = bytes.subarray(0, V1_MAX).indexOf('\r\n');
  if (end < 0) return bytes.length >= V1_MAX ? UNREADABLE : INCOMPLETE;
  const line = bytes.toString('latin1', 0, end);
  const length = end + 2;
  if (/^PROXY UNKNOWN(?: |$)/.test(line)) return { kind: 'read', length, source: undefined };
  const [, family, source = '', target = '', from = '', to = ''] =
    /^PROXY (TCP[46]) (\S+) (\S+) (\d{1,5}) (\d{1,5})$/.exec(line) ?? [];
  const fits = family === 'TCP4' ? isIPv4 : isIPv6;
  const sound = fits(source) && fits(target) && Number(from) <= 65_535 && Number(to) <= 65_535;
  return family !== undefined && sound ? { kind: 'read', length, source } : UNREADABLE;
}

function readVersion2(bytes: Buffer): ProxyHeader {
  const [command = 0, family = 0] = bytes.subarray(12, 14);
  const length = 16 + bytes.readUInt16BE(14);
  if (command !== 0x20 && command !== 0x21) return UNREADABLE;
  if (length > V2_MAX) return UNREADABLE;
  if (bytes.length < length) return INCOMPLETE;
  if (command === 0x20) return { kind: 'read', length, source: undefined };
  switch (family) {
    case 0x11:
      if (length < 16 + 12) return UNREADABLE;
      return { kind: 'read', length, source: bytes.subarray(16, 20).join('.') };
    case 0x21:
      if (length < 16 + 36) return UNREADABLE;
      return { kind: 'read', length, source: ipv6(bytes.subarray(16, 32)) };
    case 0x00:
    case 0x31:
      return { kind: 'read', length, source: undefined };
    default:
      return UNREADABLE;
  }
}

function ipv6(bytes: Buffer): string {
  const groups = Array.from({ length: 8 }, (_, index) => bytes.readUInt16BE(index * 2).toString(16));
  // The URL parser writes addresses in their one short form (RFC 5952).
  return new URL(`http://[${groups.join(':')}]`).hostname.slice(1, -1);
}
