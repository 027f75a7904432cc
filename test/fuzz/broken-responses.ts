import { gzipSync } from 'node:zlib';
import { mutate } from './mutations.ts';

/** Pseudorandom integers below a limit. */
type Below = (limit: number) => number;

/** Bytes that a peer sends, and how it ends the connection afterwards. */
export interface BrokenResponse {
  readonly bytes: Buffer;
  readonly end: 'close' | 'reset' | 'keep';
}

const pick = <T>(below: Below, values: readonly T[]): T => values[below(values.length)] as T;

const STATUS_LINES = [
  'HTTP/1.1 000 X',
  'HTTP/1.1 001 X',
  'HTTP/1.1 099 X',
  'HTTP/1.1 100 Continue',
  'HTTP/1.1 101 Switching Protocols',
  'HTTP/1.1 103 Early Hints',
  'HTTP/1.1 199 X',
  'HTTP/1.1 204 No Content',
  'HTTP/1.1 205 Reset Content',
  'HTTP/1.1 206 Partial Content',
  'HTTP/1.1 304 Not Modified',
  'HTTP/1.1 301 Moved',
  'HTTP/1.1 407 Proxy Authentication Required',
  'HTTP/1.1 421 Misdirected',
  'HTTP/1.1 500 X',
  'HTTP/1.1 600 X',
  'HTTP/1.1 999 X',
  'HTTP/1.1 1000 X',
  'HTTP/1.1 -1 X',
  'HTTP/1.1 2 X',
  'HTTP/1.1 200',
  'HTTP/1.1 200 \xff\x7f\x01',
  'HTTP/1.1  200 OK',
  'HTTP/1.0 200 OK',
  'HTTP/0.9 200 OK',
  'HTTP/2.0 200 OK',
  'HTTP/9.9 200 OK',
  'ICY 200 OK',
  'PRI * HTTP/2.0',
  'SSH-2.0-OpenSSH_9.9',
  '',
];

const FIELDS = [
  'Content-Length: 0',
  'Content-Length: 1',
  'Content-Length: 5, 5',
  'Content-Length: -1',
  'Content-Length: 99999999999999999999',
  'Content-Length: 0x10',
  'Transfer-Encoding: chunked',
  'Transfer-Encoding: gzip, chunked',
  'Transfer-Encoding: identity',
  'Content-Encoding: gzip',
  'Content-Encoding: br, br, br',
  'Content-Type: application/json; charset=\xff',
  'Content-Type: text/event-stream',
  'Connection: close',
  'Connection: upgrade',
  'Connection: \x00',
  'Upgrade: websocket',
  'Upgrade: h2c',
  'Trailer: Content-Length',
  'Keep-Alive: timeout=-1',
  'Keep-Alive: timeout=1e309, max=x',
  'Location: //',
  'Location: http://[::1',
  'Location: javascript:\x7f',
  'Set-Cookie: __Host-gatehouse=\xe9; Max-Age=1e400',
  'Sec-WebSocket-Accept: x',
  'Sec-WebSocket-Extensions: permessage-deflate; a="',
  'Sec-WebSocket-Protocol: \xe9',
  '__proto__: 1',
  'constructor: x',
  ': no name',
  'no colon',
  ' folded',
  'X\x00: nul',
  'X: \r',
  'WWW-Authenticate: Bearer realm="',
  'Date: \xff',
  'Retry-After: 1e999',
  'Age: -1',
];

const JSON_BODIES = [
  'null',
  'true',
  '[]',
  '{}',
  '""',
  '1e400',
  '-0',
  '{"__proto__":{"keys":[]}}',
  '{"keys":null}',
  '{"keys":{}}',
  '{"keys":[null,1,"x",[],{}]}',
  '{"keys":[{"kty":"EC","crv":"P-256","x":"AA","y":"AA"},{"kty":"RSA","n":"AQAB","e":""}]}',
  '{"active":"true"}',
  '{"active":true,"exp":1e308,"scope":[[[]]],"sub":{}}',
  '{"issuer":1,"jwks_uri":[]}',
  '{"issuer":"x","jwks_uri":"http://[","token_endpoint":"\\u0000"}',
  '{"access_token":1,"id_token":"a.b.c","token_type":{}}',
  '{"id_token":"eyJhbGciOiJub25lIn0.e30."}',
  '{"a":1,"a":2}',
  '\ufeff{}',
  '{"error":{"toString":null}}',
  '\ud800',
];

/** Bodies that are small to write and costly to read carelessly. */
const createLargeBody = (below: Below): Buffer =>
  pick(below, [
    () => Buffer.from('['.repeat(200_000)),
    () => Buffer.from('{"a":'.repeat(100_000)),
    () => Buffer.from(`{"keys":[${'{},'.repeat(50_000)}{}]}`),
    () => Buffer.from(`"${'\\u0000'.repeat(50_000)}"`),
    () => Buffer.alloc(400_000, '\n'),
    () => Buffer.from('-----BEGIN X509 CRL-----\n-----END X509 CRL-----\n'.repeat(8_000)),
    () => Buffer.alloc(300_000, Buffer.from([0x30, 0x80])),
    () => Buffer.from([0x30, 0x84, 0x7f, 0xff, 0xff, 0xff]),
    () => gzipSync(Buffer.alloc(4_194_304)),
    () => Buffer.from(`${'f'.repeat(20)}\r\n`),
    () => Buffer.from(`5;${'x'.repeat(70_000)}\r\nhello\r\n0\r\n\r\n`),
    () => Buffer.from('1\r\nx\r\n'.repeat(20_000)),
    () => Buffer.from(`0\r\n${'X: y\r\n'.repeat(5_000)}\r\n`),
  ])();

/** Damages a valid HTTP response: its status line, its fields, its body, or any of its bytes. */
export function breakHttpResponse(valid: Buffer, below: Below): BrokenResponse {
  const end = pick(below, ['close', 'close', 'close', 'reset', 'keep'] as const);
  if (below(3) === 0) return { bytes: mutate(valid, below), end };
  const [head = '', ...rest] = valid.toString('latin1').split('\r\n\r\n');
  const [statusLine = '', ...fields] = head.split('\r\n');
  let body: Buffer = Buffer.from(rest.join('\r\n\r\n'), 'latin1');
  const lines = [below(2) === 0 ? pick(below, STATUS_LINES) : statusLine];
  const keepsLength = below(3) > 0;
  lines.push(...fields.filter((field) => (keepsLength || !/^content-length/i.test(field)) && below(8) > 0));
  for (let count = below(4); count > 0; count -= 1) lines.splice(1 + below(lines.length), 0, pick(below, FIELDS));
  if (below(12) === 0) lines.push(`X: ${'x'.repeat(20_000)}`);
  if (below(12) === 0) lines.push(...Array<string>(3_000).fill('X: y'));
  switch (below(6)) {
    case 0:
      body = mutate(body.length === 0 ? Buffer.from('x') : body, below);
      break;
    case 1:
      body = Buffer.from(pick(below, JSON_BODIES));
      break;
    case 2:
      body = createLargeBody(below);
      break;
    case 3:
      body = body.subarray(0, below(body.length + 1));
      break;
    default:
  }
  // Most checks come after the length.
  const text = lines
    .map((line) => (/^content-length: \d+$/i.test(line) && below(4) > 0 ? `Content-Length: ${body.length}` : line))
    .join(pick(below, ['\r\n', '\r\n', '\r\n', '\r\n', '\n']));
  const interim = below(10) === 0 ? `${pick(below, STATUS_LINES)}\r\n\r\n`.repeat(1 + below(30)) : '';
  return { bytes: Buffer.concat([Buffer.from(`${interim}${text}\r\n\r\n`, 'latin1'), body]), end };
}

const BER_PARTS = [
  Buffer.from([0x30, 0x84, 0xff, 0xff, 0xff, 0xff]),
  Buffer.from([0x30, 0x80]),
  Buffer.from([0x30, 0x00]),
  Buffer.from([0x02, 0x00]),
  Buffer.from([0x02, 0x09, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
  Buffer.from([0x1f, 0xff, 0xff]),
  Buffer.from('HTTP/1.1 200 OK\r\n\r\n'),
];

/** Damages a message of LDAP. */
export function breakLdapResponse(valid: Buffer, below: Below): BrokenResponse {
  const end = pick(below, ['close', 'keep', 'reset'] as const);
  switch (below(5)) {
    case 0:
      return { bytes: pick(below, BER_PARTS), end };
    case 1:
      return { bytes: Buffer.concat([valid, pick(below, BER_PARTS)]), end };
    case 2:
      return { bytes: Buffer.concat(Array<Buffer>(1 + below(2_000)).fill(valid)), end };
    default:
      return { bytes: mutate(valid, below), end };
  }
}

const RESP_PARTS = [
  '$-1\r\n',
  '*-1\r\n',
  '*-5\r\n',
  '*33554432\r\n',
  '*999999\r\n'.repeat(20),
  '*1\r\n'.repeat(20_000),
  '%4294967296\r\n',
  '$100000000000\r\n',
  '$5\r\nabc',
  '>1\r\n_\r\n',
  '>3\r\n$9\r\nsubscribe\r\n_\r\n_\r\n',
  '>3\r\n$11\r\nunsubscribe\r\n_\r\n:0\r\n',
  '-ERR \x00\xff\r\n',
  '-MOVED 1 [::1\r\n',
  '-MOVED x\r\n',
  '-ASK\r\n',
  '-READONLY x\r\n',
  '-NOSCRIPT x\r\n',
  '-LOADING x\r\n',
  '-\r\n',
  '+\r\n',
  ':9223372036854775808\r\n',
  ':x\r\n',
  ',nan\r\n',
  '_\r\n',
  '#x\r\n',
  '!3\r\nabc\r\n',
  '=4\r\nabcd\r\n',
  '(1e400\r\n',
  '\r\n',
  'HTTP/1.1 400 Bad Request\r\n\r\n',
];

/** Replaces, damages or extends a reply of Redis. */
export function breakRedisReply(valid: Buffer, below: Below): BrokenResponse {
  const end = pick(below, ['keep', 'keep', 'close', 'reset'] as const);
  const part = Buffer.from(pick(below, RESP_PARTS), 'latin1');
  switch (below(4)) {
    case 0:
      return { bytes: part, end };
    case 1:
      return { bytes: Buffer.concat([valid, part]), end };
    case 2:
      return { bytes: Buffer.concat([part, valid]), end };
    default:
      return { bytes: mutate(valid, below), end };
  }
}
