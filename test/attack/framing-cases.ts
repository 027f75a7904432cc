/**
 * Rows H01–H31 as bytes: messages that are refused, and messages that must be read as a single request. Used by the
 * proxy tests, the gateway tests and the fuzzer.
 */
export interface Message {
  readonly line: string;
  readonly headers?: readonly string[];
  readonly body?: string;
  /** Null: no Authorization field is sent. */
  readonly token?: string | null;
}

/** Serializes a request without normalising it. Adds Authorization, and Host unless the message has one. */
export const writeMessage = ({ line, headers = [], body = '', token = 'A' }: Message): string =>
  [
    line,
    ...(headers.some((header) => /^host:/i.test(header)) ? [] : ['Host: gate.test']),
    ...(token === null ? [] : [`Authorization: Bearer ${token}`]),
    ...headers,
    '',
    body,
  ].join('\r\n');

export const CHUNKED = 'Transfer-Encoding: chunked';
export const chunk = (text: string): string => `${text.length.toString(16)}\r\n${text}\r\n`;
export const END = '0\r\n\r\n';
/** A request that an attacker tries to smuggle to the upstream. */
export const SMUGGLED = 'GET /admin/x HTTP/1.1\r\nHost: a\r\n\r\n';

export interface RefusedRow {
  readonly statuses: readonly number[];
  /** The inputs of the row, with this token. */
  readonly inputs: (token: string) => readonly string[];
}

const POST = 'POST /files/1 HTTP/1.1';
const GET = 'GET /files/1 HTTP/1.1';

/** One request for each list of headers. */
const each =
  (line: string, headers: readonly (readonly string[])[], body = ''): RefusedRow['inputs'] =>
  (token) =>
    headers.map((list) => writeMessage({ line, headers: list, body, token }));

const lines =
  (...list: readonly string[]): RefusedRow['inputs'] =>
  (token) =>
    list.map((line) => writeMessage({ line, token }));

/** Rejected with one of the statuses; the connection is closed and nothing reaches the upstream. */
export const REFUSED_HEADS: Readonly<Record<string, RefusedRow>> = {
  'H01 a length and a transfer coding': {
    statuses: [400],
    inputs: each(POST, [['Content-Length: 6', CHUNKED]], `${END}G`),
  },
  'H02 a transfer coding after chunked': {
    statuses: [400],
    inputs: each(POST, [['Transfer-Encoding: chunked, identity']], END),
  },
  'H03 a transfer coding in addition to chunked': {
    statuses: [400, 501],
    inputs: each(POST, [['Transfer-Encoding: identity, chunked']], END),
  },
  'H03 a transfer coding that is not chunked': {
    statuses: [501],
    inputs: each(
      POST,
      [
        ['Transfer-Encoding: identity'],
        ['Transfer-Encoding: xchunked'],
        ['Transfer-Encoding: "chunked"'],
        ['Transfer-Encoding: chunked;q=1'],
      ],
      END,
    ),
  },
  'H04 a compressed transfer coding': {
    statuses: [501],
    inputs: each(POST, [['Transfer-Encoding: gzip, chunked']], END),
  },
  'H05 two transfer codings in two fields': {
    statuses: [400],
    inputs: each(
      POST,
      [
        [CHUNKED, 'Transfer-Encoding: cow'],
        ['Transfer-Encoding: cow', CHUNKED],
        [CHUNKED, CHUNKED],
      ],
      END,
    ),
  },
  'H06 a transfer coding after a space, a control character or a line break': {
    statuses: [400],
    inputs: each(
      POST,
      [['Transfer-Encoding : chunked'], ['Transfer-Encoding:\x0bchunked'], ['Transfer-Encoding:\r\n chunked']],
      END,
    ),
  },
  'H07 an invalid Content-Length': {
    statuses: [400],
    inputs: each(
      POST,
      [
        ['Content-Length: 1', 'Content-Length: 1'],
        ['Content-Length: 1', 'Content-Length: 2'],
        ['Content-Length: 1, 1'],
        ['Content-Length: +1'],
        ['Content-Length: -1'],
        ['Content-Length: 0x1'],
        ['Content-Length: 1_0'],
        ['Content-Length: '],
        ['Content-Length: 10000000000000000000'],
        ['Content-Length: 1 0'],
      ],
      'x',
    ),
  },
  'H08 lines that do not end in CR LF': {
    statuses: [400],
    inputs: (token) => [
      writeMessage({ line: GET, token }).replaceAll('\r\n', '\n'),
      `${writeMessage({ line: GET, token }).replaceAll('\r\n', '\r')}\r\n\r\n`,
      writeMessage({ line: GET, headers: ['X-A: a\rb'], token }),
      writeMessage({ line: GET, headers: ['X-A: a\nb'], token }),
    ],
  },
  'H09 control characters in a value': {
    statuses: [400],
    inputs: each(GET, [['X-A: a\x00b'], ['X-A: a\x01b'], ['X-A: \x00']]),
  },
  'H10 lines that are not header fields': {
    statuses: [400],
    inputs: (token) => [
      ...each(GET, [['X A: b'], [': b'], ['no colon here']])(token),
      writeMessage({ line: `${GET}\r\n X-A: b`, token }),
    ],
  },
  'H11 a missing, repeated, empty, malformed or overlong Host': {
    statuses: [400],
    inputs: (token) => [
      `${GET}\r\nAuthorization: Bearer ${token}\r\n\r\n`,
      ...each(GET, [
        ['Host: a', 'Host: a'],
        ['Host: a', 'Host: b'],
        ['Host: '],
        ['Host: a/b@c'],
        ['Host: localhost:65536'],
        ['Host: localhost:99999'],
        ['Host: localhost:0'],
        ['Host: localhost:'],
        [`Host: ${'a'.repeat(300)}`],
      ])(token),
    ],
  },
  'H12 a transfer coding on HTTP/1.0': {
    statuses: [400],
    inputs: each('POST /files/1 HTTP/1.0', [[CHUNKED]], END),
  },
  'H13 a version of HTTP that is not served': {
    statuses: [400, 505],
    inputs: lines('GET /files/1 HTTP/2.0', 'GET /files/1 HTTP/1.2', 'GET /files/1 HTTP/0.9', 'GET /files/1 http/1.1'),
  },
  'H21 an unsupported expectation': {
    statuses: [417],
    inputs: each(POST, [
      ['Expect: y 100-continue', 'Content-Length: 0'],
      ['Expect: foo', 'Content-Length: 0'],
    ]),
  },
  'H22 methods that are not served': {
    statuses: [405],
    inputs: lines('TRACE /files/1 HTTP/1.1', 'QUERY /files/1 HTTP/1.1'),
  },
  'H22 unknown methods': { statuses: [400], inputs: lines('FOO /files/1 HTTP/1.1') },
  'H24 an upgrade to WebSocket where none is allowed': {
    statuses: [403],
    inputs: each(GET, [['Connection: Upgrade', 'Upgrade: websocket']]),
  },
};

/** Malformed chunks in the body of an authorized request. */
export const BROKEN_CHUNKS: Readonly<Record<string, string>> = {
  'a plus sign before the size': '+2\r\nab\r\n',
  'a size in C notation': '0x2\r\nab\r\n',
  'a space after the size': '2 \r\nab\r\n',
  'a size of 17 digits': `${'1'.repeat(17)}\r\nab\r\n`,
  'a size line that ends in LF': '2\nab\r\n',
  'no CR LF after the data': '2\r\nabc\r\n',
  'CR in an extension': '2;a\rb\r\nab\r\n',
  'LF in an extension': '2;a\nb\r\nab\r\n',
};

/** Methods whose body other proxies did not frame correctly. */
export const BODIED_METHODS = [
  ['H30', 'DELETE'],
  ['H31', 'OPTIONS'],
  ['H31', 'HEAD'],
  ['H31', 'GET'],
  ['H31', 'PATCH'],
] as const;
