import { isIPv4, isIPv6 } from 'node:net';

/** A PROXY protocol header, version 1 or 2. Read from configured peers only, and required from those. */
type ProxyHeader =
  | { readonly kind: 'incomplete' }
  | { readonly kind: 'malformed' }
  /** Without a source: sent by the load balancer itself (health checks), or unknown to it. */
  | { readonly kind: 'parsed'; readonly length: number; readonly source: string | undefined };

const SIGNATURE = Buffer.from('\r\n\r\n\0\r\nQUIT\n', 'latin1');
const V1_START = Buffer.from('PROXY ', 'latin1');
const V1_MAX = 107;
const V2_MAX = 4_096;
const INCOMPLETE = { kind: 'incomplete' } as const;
const MALFORMED = { kind: 'malformed' } as const;

const sharesPrefix = (bytes: Buffer, start: Buffer): boolean => {
  const length = Math.min(bytes.length, start.length);
  return bytes.subarray(0, length).equals(start.subarray(0, length));
};

export function parseProxyHeader(bytes: Buffer): ProxyHeader {
  if (sharesPrefix(bytes, SIGNATURE)) return bytes.length < 16 ? INCOMPLETE : parseVersion2(bytes);
  if (sharesPrefix(bytes, V1_START)) return parseVersion1(bytes);
  return MALFORMED;
}

function parseVersion1(bytes: Buffer): ProxyHeader {
  const end = bytes.subarray(0, V1_MAX).indexOf('\r\n');
  if (end < 0) return bytes.length >= V1_MAX ? MALFORMED : INCOMPLETE;
  const line = bytes.toString('latin1', 0, end);
  const length = end + 2;
  if (/^PROXY UNKNOWN(?: |$)/.test(line)) return { kind: 'parsed', length, source: undefined };
  const [, family, source = '', target = '', sourcePort = '', targetPort = ''] =
    /^PROXY (TCP[46]) (\S+) (\S+) (\d{1,5}) (\d{1,5})$/.exec(line) ?? [];
  const isAddress = family === 'TCP4' ? isIPv4 : isIPv6;
  const isValid =
    isAddress(source) && isAddress(target) && Number(sourcePort) <= 65_535 && Number(targetPort) <= 65_535;
  return family !== undefined && isValid ? { kind: 'parsed', length, source } : MALFORMED;
}

function parseVersion2(bytes: Buffer): ProxyHeader {
  const [command = 0, family = 0] = bytes.subarray(12, 14);
  const length = 16 + bytes.readUInt16BE(14);
  if (command !== 0x20 && command !== 0x21) return MALFORMED;
  if (length > V2_MAX) return MALFORMED;
  if (bytes.length < length) return INCOMPLETE;
  if (command === 0x20) return { kind: 'parsed', length, source: undefined };
  switch (family) {
    case 0x11:
      if (length < 16 + 12) return MALFORMED;
      return { kind: 'parsed', length, source: bytes.subarray(16, 20).join('.') };
    case 0x21:
      if (length < 16 + 36) return MALFORMED;
      return { kind: 'parsed', length, source: formatIpv6(bytes.subarray(16, 32)) };
    case 0x00:
    case 0x31:
      return { kind: 'parsed', length, source: undefined };
    default:
      return MALFORMED;
  }
}

function formatIpv6(bytes: Buffer): string {
  const groups = Array.from({ length: 8 }, (_, index) => bytes.readUInt16BE(index * 2).toString(16));
  // The URL parser compresses IPv6 addresses (RFC 5952).
  return new URL(`http://[${groups.join(':')}]`).hostname.slice(1, -1);
}
