import { hash } from 'node:crypto';
import {
  BROKEN_CHUNKS,
  CHUNKED,
  chunk,
  END,
  type Message,
  REFUSED_HEADS,
  writeMessage,
} from '../attack/framing-cases.ts';
import { PATH_ROWS } from '../attack/path-cases.ts';
import { mutations, randomBelow } from './mutations.ts';

/**
 * Malformed requests: rows H01–H28 and valid requests, changed according to the grammar as an attacker would, or by
 * random damage to bytes. The same for the same seed.
 */
export interface Batch {
  readonly seed: number;
  /** Whether the messages have a valid token; otherwise none of them has one. */
  readonly authorised: boolean;
  /** Pipelined on one connection. */
  readonly messages: readonly Buffer[];
  /** The number of writes. */
  readonly pieces: number;
}

/** Placeholder for the token while messages are created. */
const TOKEN = 'T0KEN';

const computeChecksum = (text: string): string => hash('sha256', text, 'hex').slice(0, 8);
/** Identifies a message; the checksum detects a damaged nonce. */
const createNonce = (seed: number, count: number): string => `${seed}.${count}.${computeChecksum(`${seed}.${count}`)}`;

/** The seed in a nonce; undefined if the nonce was damaged. */
export function parseNonce(text: string): number | undefined {
  const [, seed, count, check] = /^(\d+)\.(\d+)\.([0-9a-f]{8})$/.exec(text) ?? [];
  return check !== undefined && check === computeChecksum(`${seed}.${count}`) ? Number(seed) : undefined;
}

const nested = `GET /files/nested HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ${TOKEN}\r\nX-Nonce: nested\r\n\r\n`;
const smuggled = `GET /admin/x HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ${TOKEN}\r\n\r\n`;

const HANDSHAKE = [
  'Connection: Upgrade',
  'Upgrade: websocket',
  'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==',
  'Sec-WebSocket-Version: 13',
];
const GOOD: readonly Message[] = [
  { line: 'GET /files/1 HTTP/1.1' },
  { line: 'GET /public/a?b=c HTTP/1.1' },
  { line: 'HEAD /files/1 HTTP/1.1' },
  { line: 'GET /files/1 HTTP/1.0', headers: ['Connection: keep-alive'] },
  { line: 'POST /files/1 HTTP/1.1', headers: ['Content-Length: 5'], body: 'hello' },
  { line: 'PUT /files/1 HTTP/1.1', headers: [CHUNKED], body: `${chunk('hello')}${END}` },
  { line: 'POST /files/1 HTTP/1.1', headers: [CHUNKED], body: `5;a=b\r\nhello\r\n0\r\nX-Trailer: 1\r\n\r\n` },
  { line: 'DELETE /files/1 HTTP/1.1', headers: [CHUNKED], body: `${chunk(nested)}${END}` },
  { line: 'OPTIONS /files/1 HTTP/1.1', headers: [CHUNKED], body: `${chunk(smuggled)}${END}` },
  { line: 'PATCH /files/1 HTTP/1.1', headers: [`Content-Length: ${nested.length}`], body: nested },
  { line: 'POST /files/1 HTTP/1.1', headers: ['Expect: 100-continue', 'Content-Length: 2'], body: 'ok' },
  { line: 'GET /socket HTTP/1.1', headers: HANDSHAKE },
  { line: 'GET /socket HTTP/1.1', headers: HANDSHAKE, body: nested },
  { line: 'GET /packages/@a%2fb HTTP/1.1' },
  { line: 'GET https://localhost:8443/files/1 HTTP/1.1' },
];

const WELL_FORMED: readonly string[] = GOOD.map((message) => writeMessage({ ...message, token: TOKEN }));
const REFUSED: readonly string[] = [
  ...Object.values(REFUSED_HEADS).flatMap(({ inputs }) => inputs(TOKEN)),
  ...Object.values(BROKEN_CHUNKS).map((body) =>
    writeMessage({ line: 'POST /files/1 HTTP/1.1', headers: [CHUNKED], body: body + END, token: TOKEN }),
  ),
];

const TARGETS = Object.values(PATH_ROWS)
  .flatMap((cases) => Object.keys(cases))
  .concat('*', 'http://evil.test/', 'https://localhost:8443/files/2', '/files/2?a="b"&c=\\');
const METHODS = ['GET', 'HEAD', 'POST', 'DELETE', 'OPTIONS', 'PATCH', 'TRACE', 'CONNECT', 'M-SEARCH', 'get', 'GE T'];
const VERSIONS = ['HTTP/1.1', 'HTTP/1.0', 'HTTP/2.0', 'HTTP/1.2', 'HTTP/1.1 ', 'HTTP/11', ''];
const LINE_ENDS = ['\n', '\r', '\r\r\n', '\n\r', '\r\n ', '\r\n\t', '\x00\r\n', '\r\n\r\n', '\x0b\r\n', '\x85\r\n'];
const FIELDS = [
  CHUNKED,
  'Transfer-Encoding: identity',
  'Transfer-Encoding: chunked, chunked',
  'transfer-encoding:chunked',
  'Transfer_Encoding: chunked',
  'Transfer-Encoding: xchunked',
  'Content-Length: 0',
  'Content-Length: 5',
  'Content-Length: 05',
  'content-length : 5',
  'Content_Length: 5',
  'Content-Length: 999',
  'Host: evil.test',
  'Connection: close',
  'Connection: keep-alive, X-Forwarded-User',
  'Connection: content-length',
  'Expect: 100-continue',
  'Upgrade: h2c',
  'TE: trailers',
  'Trailer: X-Forwarded-User',
  'X-Forwarded-User: evil',
  'X_Forwarded_User: evil',
  'X-Gatehouse-Identity: evil',
  'Forwarded: for=6.6.6.6',
  'X-Original-URL: /admin',
  `Authorization: Bearer ${TOKEN}`,
  'Cookie: a=b',
  `X-Long: ${'x'.repeat(9_000)}`,
  'X-Bytes: \xe4\xff\x80',
  'Proxy-Connection: keep-alive',
  'HTTP2-Settings: AAMAAABk',
];
const VALUES = ['', '0', '1', '+5', '0x5', '5,5', 'chunked', ' chunked', '\tchunked', 'close', 'a\x00b', '%00', ','];
const BODIES = [
  nested,
  smuggled,
  `${chunk(nested)}${END}`,
  `${chunk('hello')}${END}${nested}`,
  `5\r\nhello\r\n0\r\nContent-Length: 5\r\nX-Forwarded-User: evil\r\n\r\n`,
  `005\r\nhello\r\n${END}`,
  `5;${'a'.repeat(300)}\r\nhello\r\n${END}`,
  ...Object.values(BROKEN_CHUNKS),
];

interface Draft {
  line: string;
  fields: string[];
  /** The terminator of each line of the head, including the empty line. */
  ends: string[];
  body: string;
}

function parseDraft(message: string): Draft {
  const end = message.indexOf('\r\n\r\n');
  const [line = '', ...fields] = (end < 0 ? message : message.slice(0, end)).split('\r\n');
  const ends = Array<string>(fields.length + 2).fill('\r\n');
  return { line, fields, ends, body: end < 0 ? '' : message.slice(end + 4) };
}

const serialize = ({ line, fields, ends, body }: Draft): string =>
  [line, ...fields, ''].map((text, at) => text + (ends[at] ?? '\r\n')).join('') + body;

type Below = (limit: number) => number;
type Change = (draft: Draft, below: Below, pick: <T>(list: readonly T[]) => T) => void;

const splitLine = (line: string): [string, string, string] => {
  const [method = '', target = '', version = ''] = line.split(' ');
  return [method, target, version];
};

const CHANGES: readonly Change[] = [
  // A field is duplicated, removed, moved or added.
  ({ fields }, below) => void fields.splice(below(fields.length + 1), 0, fields[below(fields.length)] ?? ''),
  ({ fields }, below) => void fields.splice(below(fields.length), 1),
  ({ fields }, below) => {
    const [moved = ''] = fields.splice(below(fields.length), 1);
    fields.splice(below(fields.length + 1), 0, moved);
  },
  ({ fields }, below, pick) => void fields.splice(below(fields.length + 1), 0, pick(FIELDS)),
  ({ fields }, below, pick) => void fields.splice(below(fields.length + 1), 0, pick(FIELDS), pick(FIELDS)),
  // The same name in another spelling; another value.
  ({ fields }, below, pick) => {
    const at = below(fields.length);
    const respell = pick<(name: string) => string>([
      (name) => name.toUpperCase(),
      (name) => name.replaceAll('-', '_'),
      (name) => `${name} `,
      (name) => ` ${name}`,
      (name) => `${name}\t`,
      (name) => `${name}\x00`,
      (name) => `\xff${name}`,
    ]);
    fields[at] = (fields[at] ?? '').replace(/^[^:]*/, respell);
  },
  ({ fields }, below, pick) => {
    const at = below(fields.length);
    fields[at] = (fields[at] ?? '').replace(/:.*$/s, () => `: ${pick(VALUES)}`);
  },
  ({ ends }, below, pick) => void (ends[below(ends.length)] = pick(LINE_ENDS)),
  // The request line.
  (draft, _below, pick) => {
    const [, target, version] = splitLine(draft.line);
    draft.line = `${pick(METHODS)} ${target} ${version}`;
  },
  (draft, _below, pick) => {
    const [method, , version] = splitLine(draft.line);
    draft.line = `${method} ${pick(TARGETS)} ${version}`;
  },
  (draft, _below, pick) => {
    const [method, target] = splitLine(draft.line);
    draft.line = `${method} ${target} ${pick(VERSIONS)}`;
  },
  // The body, and its length.
  (draft, _below, pick) => void (draft.body = pick(BODIES)),
  (draft, below) => {
    const length = `Content-Length: ${Math.max(0, draft.body.length + below(5) - 2)}`;
    draft.fields = [...draft.fields.filter((field) => !/^(?:content-length|transfer-encoding):/i.test(field)), length];
  },
  (draft, below) => void (draft.body = draft.body.slice(0, below(draft.body.length + 1))),
  (draft, _below, pick) => void (draft.body += pick([nested, smuggled, '\r\n', '\x00', 'GET '])),
];

export function makeBatch(seed: number, token: string): Batch {
  const below = randomBelow(seed);
  const pick = <T>(list: readonly T[]): T => list[below(list.length)] as T;
  // The first numbers of neighbouring seeds are similar.
  for (let skipped = 0; skipped < 8; skipped += 1) below(2);
  const authorised = below(4) > 0;
  const presentedToken = authorised ? token : 'forged';
  const messages: Buffer[] = [];
  for (let count = 1 + below(3); count > 0; count -= 1) {
    // A refused request closes the connection, so most messages start as valid ones.
    const draft = parseDraft(pick(below(8) === 0 ? REFUSED : WELL_FORMED));
    draft.fields.push(`X-Nonce: ${createNonce(seed, count)}`);
    const damage = below(3);
    for (let changes = damage === 0 ? below(2) : 1 + below(2); changes > 0; changes -= 1)
      pick(CHANGES)(draft, below, pick);
    const bytes = Buffer.from(serialize(draft).replaceAll(TOKEN, presentedToken), 'latin1');
    const [damaged = bytes] = damage === 0 ? mutations(bytes, 1, below(2 ** 31)) : [];
    messages.push(damaged);
  }
  return { seed, authorised, messages, pieces: 1 + below(3) };
}

/** The last request, which closes a connection that is still synchronized. */
export const FINAL_REQUEST = Buffer.from(
  `GET /public/last HTTP/1.1\r\nHost: gate.test\r\nConnection: close\r\n\r\n`,
  'latin1',
);
