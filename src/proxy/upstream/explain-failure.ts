/* What the operator can do about a failed connection to an upstream, for the log. */

const HTTP2_ADVICE = 'set `protocol: http2` for the upstream';

/** A response that another protocol begins with; undefined if it is not recognized. */
export function recognizeProtocol(bytes: Buffer): string | undefined {
  // RFC 9113 §3.4 and §4.1: an HTTP/2 server begins with SETTINGS, on stream 0. Some send GOAWAY only.
  const isOnStream0 = bytes.length >= 9 && bytes[0] === 0 && bytes.readUInt32BE(5) === 0;
  if (isOnStream0 && (bytes[3] === 4 || bytes[3] === 7))
    return `the upstream responded with HTTP/2 (a ${bytes[3] === 4 ? 'SETTINGS' : 'GOAWAY'} frame); ${HTTP2_ADVICE}`;
  // RFC 8446 §5.1: an alert or a handshake record.
  if (bytes.length >= 3 && (bytes[0] === 0x15 || bytes[0] === 0x16) && bytes[1] === 3)
    return 'the upstream responded with TLS; use https:// instead of http:// in its url';
  const text = bytes.toString('latin1', 0, 5);
  if (text.startsWith('SSH-')) return 'the upstream is an SSH server; correct host and port in its url';
  if (/^220[ -]/.test(text)) return 'the upstream is a mail or FTP server; correct host and port in its url';
  if (/^-(?:ERR|DENI|NOAU)/.test(text)) return 'the upstream is a Redis server; correct host and port in its url';
  return undefined;
}

/** The beginning of what an HTTP/2 upstream sends; undefined if it may be HTTP/2. */
export function recognizeHttp1(bytes: Buffer): string | undefined {
  if (/^HTTP\/1\.[01] /.test(bytes.toString('latin1', 0, 9)))
    return 'the upstream responded with HTTP/1.1; remove `protocol: http2` from its settings, or use a port for HTTP/2';
  return bytes[0] === 0 ? undefined : recognizeProtocol(bytes);
}

const ADVICE: readonly (readonly [error: RegExp, advice: string])[] = [
  [
    /wrong version number|packet length too long/i,
    'the upstream did not respond with TLS; use http:// instead of https:// in its url',
  ],
  [/no application protocol/i, `the upstream accepts no HTTP/1.1 over TLS (ALPN); ${HTTP2_ADVICE}`],
  [
    /\bENOTFOUND\b/,
    'the host name of the upstream does not exist; correct its url, or the DNS settings of this machine',
  ],
  [/\bEAI_AGAIN\b/, 'the DNS server did not respond, so the host name of the upstream is unknown; try again later'],
];

/** The message of a socket error, with what it means. */
export function explainConnectionError(message: string): string {
  const advice = ADVICE.find(([error]) => error.test(message))?.[1];
  return advice === undefined ? message : `${advice} (${message.replace(/^[0-9A-F]+:error:[0-9A-F]+:/, '').trim()})`;
}
