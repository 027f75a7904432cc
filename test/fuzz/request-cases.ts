import { makeBatch } from './grammar.ts';
import { randomBelow } from './mutations.ts';

/**
 * Ordinary requests with some unusual parts, the same with one or two damaged bytes, and the malformed requests of H29. The
 * same for the same seed.
 */
export interface RequestCase {
  readonly seed: number;
  readonly bytes: Buffer;
  /** Where the bytes are split. */
  readonly cuts: readonly number[];
  /** The methods of the requests, each of which gets a response; undefined if they are not known. */
  readonly methods: readonly string[] | undefined;
  /** The target of the final request, whose response ends the case. Empty if responses are counted instead. */
  readonly last: string;
  /** The number of requests, without the final one. */
  readonly requests: number;
}

const NAMES = [
  'Accept',
  'X-A',
  'x_b',
  'User-Agent',
  'Cookie',
  'X-Forwarded-For',
  'X-Real-IP',
  'Content-Type',
  'traceparent',
  'Forwarded',
  'X.Forwarded.User',
  'X+Forwarded+User',
  'XForwardedScope',
  'Content+Length',
  'Range',
  'If-None-Match',
  'Via',
];
const VALUES = [
  '*/*',
  'a b',
  'a=b; __Host-gatehouse=x; c=d',
  '6.6.6.6',
  'text/plain; charset="a\\"b"',
  '"x"',
  'bytes=0-1',
  `00-${'1'.repeat(32)}-${'2'.repeat(16)}-01`,
  '%00',
  ',',
  ':',
  'x'.repeat(300),
];
const PATHS = [
  '/files/1',
  '/files/a%20b',
  '/files/%7Ex',
  '/files/a;b=c',
  '/files/x?y=z&%2e',
  '/public/a',
  '/files/',
  '/files',
  '/admin/x',
  '/nowhere',
  '/Files/1',
  '/files/A/',
  '/%41dmin/1',
  '/other/1',
];
const ODD_PATHS = ['/files/a%2Fb', '/files/é', '/files/../admin/x', '/files//x', '/files/%2e%2e/x', '*'];

type Below = (limit: number) => number;
type Pick = <T>(list: readonly T[]) => T;

export function createRequestCase(seed: number): RequestCase {
  const below = randomBelow(seed);
  for (let skipped = 0; skipped < 8; skipped += 1) below(2);
  const pick: Pick = (list) => list[below(list.length)] as never;
  const kind = below(8);
  if (kind < 1) {
    const message = pick(makeBatch(seed, 'A').messages);
    return withLast(seed, message, 1, below);
  }
  const { text, methods } = createOrdinary(below, pick);
  const bytes = Buffer.from(text, 'latin1');
  if (kind < 3) return withLast(seed, createNearlyOrdinary(bytes, below, pick), methods.length, below);
  // The next case on the connection shows that it is still synchronized; sometimes a final request does.
  if (below(4) === 0) return withLast(seed, bytes, methods.length, below);
  return { seed, bytes, cuts: createCuts(bytes, below), methods, last: '', requests: methods.length };
}

function withLast(seed: number, message: Buffer, requests: number, below: Below): RequestCase {
  const last = `/public/last?${seed}`;
  const fields = below(8) === 0 ? 'Host: gate.test\r\nConnection: close' : 'Host: gate.test';
  const bytes = Buffer.concat([message, Buffer.from(`GET ${last} HTTP/1.1\r\n${fields}\r\n\r\n`)]);
  return { seed, bytes, cuts: createCuts(bytes, below), methods: undefined, last, requests };
}

const createCuts = (bytes: Buffer, below: Below): number[] =>
  Array.from({ length: below(3) }, () => 1 + below(bytes.length - 1)).toSorted((a, b) => a - b);

function createOrdinary(below: Below, pick: Pick): { readonly text: string; readonly methods: string[] } {
  let text = '';
  const methods: string[] = [];
  for (let count = pick([1, 1, 2, 2, 2, 3, 4]); count > 0; count -= 1) {
    const method = pick(['GET', 'GET', 'POST', 'PUT', 'HEAD', 'DELETE', 'PATCH']);
    const body = method.startsWith('P') || below(24) === 0 ? 'b'.repeat(pick([0, 1, 5, 5, 300, 9_000])) : undefined;
    const fields = [
      ...(below(48) === 0 ? [] : ['Host: gate.test']),
      ...(below(10) === 0
        ? []
        : [`Authorization: ${pick(['Bearer A', 'Bearer A', 'Bearer A', 'bearer A', 'Bearer B', 'Basic A'])}`]),
      ...(body === undefined ? [] : [`Content-Length: ${body.length}`]),
      // Each name once: nginx rejects duplicates of some.
      ...new Map(Array.from({ length: below(4) }, () => [pick(NAMES), pick(VALUES)] as const))
        .entries()
        .map(([name, value]) => `${name}: ${value}`),
      ...(below(24) === 0 ? [`Connection: ${pick(['keep-alive', 'close', 'X-A', 'Keep-Alive', 'close, X-A'])}`] : []),
    ];
    while (below(4) === 0)
      fields.splice(below(fields.length), 0, fields.splice(below(fields.length), 1)[0] ?? 'X-A: b');
    const path = pick(below(32) === 0 ? ODD_PATHS : PATHS);
    text += `${method} ${path} HTTP/1.1\r\n${fields.join('\r\n')}\r\n\r\n${body ?? ''}`;
    methods.push(method);
  }
  return { text, methods };
}

const SIGNIFICANT_BYTES = [0x00, 0x09, 0x0a, 0x0b, 0x0d, 0x20, 0x22, 0x2b, 0x2c, 0x3a, 0x5f, 0x7f, 0x80, 0xa0, 0xff];

/** Changes, adds or removes one or two bytes, to test the boundary between valid and invalid. */
function createNearlyOrdinary(original: Buffer, below: Below, pick: Pick): Buffer {
  let bytes = original;
  // Within a head rather than a long body.
  const limit = Math.min(bytes.length, bytes.lastIndexOf('\r\n\r\n') + 6);
  for (let count = below(4) === 0 ? 2 : 1; count > 0; count -= 1) {
    const at = below(limit);
    // Mostly printable characters.
    const other = below(4) === 0 ? pick(SIGNIFICANT_BYTES) : 0x20 + below(0x5f);
    switch (below(5)) {
      case 0:
        bytes = Buffer.concat([bytes.subarray(0, at), bytes.subarray(at + 1)]);
        break;
      case 1:
        bytes = Buffer.concat([bytes.subarray(0, at), Buffer.from([other]), bytes.subarray(at)]);
        break;
      case 2:
        // Flip the case of a letter.
        bytes = Buffer.from(bytes);
        bytes[at] = (bytes[at] ?? 0) ^ 0x20;
        break;
      case 3:
        // Flip one bit.
        bytes = Buffer.from(bytes);
        bytes[at] = (bytes[at] ?? 0) ^ (1 << below(8));
        break;
      default:
        bytes = Buffer.from(bytes);
        bytes[at] = other;
    }
  }
  return bytes;
}
