import { connect } from 'node:net';
import { parseArgs } from 'node:util';
import { randomBelow } from '../support/mutations.ts';
import { type ProxyHarness, proxyHarness } from '../support/proxy-harness.ts';
import { type Recorded, type RecordingUpstream, recordingUpstream } from '../support/recording-upstream.ts';
import { type ForeignParser, nginx, python } from './foreign-parsers.ts';
import { LAST, makeBatch } from './grammar.ts';

/**
 * The same bytes through both lanes: whatever one sends on, the other sends on in the same form, and nginx and Python read
 * the same requests in what the fast lane wrote. `npm run fuzz:lanes` sends a million; `-- --count 5000 --seed 7` others.
 */
export interface LanesResult {
  readonly sent: number;
  /** Requests that the fast lane carried itself. */
  readonly fast: number;
  readonly handedOver: number;
}

export interface LanesOptions {
  readonly count: number;
  readonly seed: number;
  readonly tell?: (line: string) => void;
}

/** Two gateways that differ in the lane alone, each with an upstream of its own. */
interface Pair {
  readonly gates: readonly [ProxyHarness, ProxyHarness];
  readonly upstreams: readonly [RecordingUpstream, RecordingUpstream];
}

const PAIRS = 24;
const ROUND = 2_000;
/** For how long a connection may be silent before it is given up. */
const QUIET_MS = 120;
const TRIES = 4;

async function openPair(): Promise<Pair> {
  const open = async (firstLane: 'fast' | 'full') => {
    const upstream = await recordingUpstream();
    const gate = await proxyHarness({
      upstream: upstream.url,
      firstLane,
      publicUrl: 'https://localhost:8443',
    });
    return { upstream, gate };
  };
  const [fast, full] = await Promise.all([open('fast'), open('full')]);
  return { gates: [fast.gate, full.gate], upstreams: [fast.upstream, full.upstream] };
}

/** Sends it, in some pieces, and waits until the other side has closed or fallen silent. */
function send(port: number, bytes: Buffer, cuts: readonly number[], quietMs: number): Promise<string> {
  return new Promise((resolve) => {
    let text = '';
    const socket = connect(port, '127.0.0.1').setNoDelay(true);
    socket.setTimeout(quietMs, () => socket.destroy());
    socket.on('error', () => {}).on('close', () => resolve(text));
    socket.on('data', (part: Buffer) => {
      text += part.toString('latin1');
    });
    const ends = [...cuts, bytes.length];
    const write = (piece: number): void => {
      const end = ends[piece];
      if (socket.destroyed || end === undefined) return;
      const from = piece === 0 ? 0 : (ends[piece - 1] ?? 0);
      socket.write(bytes.subarray(from, end), () => setImmediate(write, piece + 1));
    };
    write(0);
  });
}

const FRESH = new Set(['x-request-id', 'traceparent']);

/** A request as it arrived, without what is drawn anew for each. */
function plain({ method, target, headers, body, trailers }: Recorded): string {
  const fields = headers
    .map(([name, value]) => (FRESH.has(name) ? name : name === 'host' ? 'host' : `${name}: ${value}`))
    .toSorted();
  return JSON.stringify([method, target, fields, body, trailers]);
}

const statuses = (text: string): string => (text.match(/HTTP\/1\.1 \d{3}/g) ?? []).join();

/** Refused, and nothing behind it is looked at. */
const ENDS_THE_CONNECTION = / (?:400|405|408|413|414|417|421|431|501|505)$/;

/** What differs; undefined when nothing does. */
async function compare(
  { gates, upstreams }: Pair,
  bytes: Buffer,
  cuts: readonly number[],
  quietMs = QUIET_MS,
): Promise<string | undefined> {
  const seen: string[][] = [];
  const answers: string[] = [];
  for (const [at, gate] of gates.entries()) {
    const upstream = upstreams[at as 0 | 1];
    const before = upstream.requests.length;
    answers.push(statuses(await send(gate.port, bytes, cuts, quietMs)));
    seen.push(upstream.requests.slice(before).map(plain));
  }
  const [fast = [], full = []] = seen;
  // The full lane begins what is pipelined at once; the fast one only when what comes before was answered, and not at all
  // when that ended the connection.
  const left = [...full];
  const more = fast.filter((one) => {
    const place = left.indexOf(one);
    if (place >= 0) left.splice(place, 1);
    return place < 0;
  });
  const isInFull = more.length === 0 || (await readAlone(gates[1], upstreams[1], bytes, fast, quietMs));
  const hasEnded = ENDS_THE_CONNECTION.test(answers[0] ?? '');
  if (isInFull && (full[0] === undefined || fast.includes(full[0]) || hasEnded)) return undefined;
  return `by the fast lane: ${fast.join(' + ') || 'nothing'} (${answers[0]})\n  by the full lane: ${full.join(' + ') || 'nothing'} (${answers[1]})`;
}

/** Behind a good request stood a broken one: the full lane, which reads ahead, gets each of them for itself. */
async function readAlone(
  gate: ProxyHarness,
  upstream: RecordingUpstream,
  bytes: Buffer,
  wanted: readonly string[],
  quietMs: number,
): Promise<boolean> {
  let found = 0;
  for (let from = 0; found < wanted.length && from < bytes.length; ) {
    const headEnd = bytes.indexOf('\r\n\r\n', from) + 4;
    if (headEnd < 4) return false;
    const [, length = '0'] = /\r\ncontent-length: (\d+)/i.exec(bytes.toString('latin1', from, headEnd)) ?? [];
    const end = headEnd + Number(length);
    const before = upstream.requests.length;
    await send(gate.port, bytes.subarray(from, end), [], quietMs);
    const [seen, ...others] = upstream.requests.slice(before).map(plain);
    if (seen !== undefined && (others.length > 0 || seen !== wanted[found])) return false;
    if (seen !== undefined) found += 1;
    from = end;
  }
  return found === wanted.length;
}

export async function fuzzLanes({ count, seed, tell = () => {} }: LanesOptions): Promise<LanesResult> {
  const parsers = await Promise.all([nginx(), python()]);
  const pairs = await Promise.all(Array.from({ length: PAIRS }, openPair));
  const total = { sent: 0, fast: 0, handedOver: 0 };
  const begun = performance.now();
  try {
    for (let next = seed * 10_000_000; total.sent < count; ) {
      const size = Math.min(ROUND, count - total.sent);
      const end = next + size;
      const wrongs: string[] = [];
      const work = async (pair: Pair): Promise<void> => {
        while (next < end) {
          const one = next++;
          const { bytes, cuts } = makeCase(one);
          let wrong = await compare(pair, bytes, cuts);
          // On a busy machine silence may be slowness; and of what is pipelined in the full lane, a broken end may come
          // before or after the beginning.
          for (let tries = 1; wrong !== undefined && tries < TRIES; tries += 1)
            wrong = await compare(pair, bytes, cuts, QUIET_MS * 4 ** tries);
          if (wrong !== undefined)
            wrongs.push(`${one}: ${JSON.stringify(bytes.toString('latin1'))}\n  ${wrong}`);
        }
      };
      await Promise.all(pairs.map(work));
      for (const { upstreams } of pairs) wrongs.push(...(await readAgain(parsers, upstreams[0])));
      if (wrongs.length > 0)
        throw new Error(`seed ${seed}: ${wrongs.length} wrong\n${wrongs.slice(0, 3).join('\n')}`);
      total.sent += size;
      for (const pair of pairs) {
        for (const upstream of pair.upstreams) upstream.reset();
        for (const gate of pair.gates) {
          gate.notes.length = 0;
          gate.log.length = 0;
        }
      }
      total.fast = sum(pairs, ({ gates: [gate] }) => gate.lane?.counts.fast ?? 0);
      total.handedOver = sum(pairs, ({ gates: [gate] }) =>
        sum(Object.values(gate.lane?.counts.handedOver ?? {}), Number),
      );
      tell(
        `${total.sent} sent, ${total.fast} by the fast lane, ${total.handedOver} handed over, ${((performance.now() - begun) / 1_000).toFixed(0)} s`,
      );
    }
    return total;
  } finally {
    for (const { gates, upstreams } of pairs) {
      for (const gate of gates) await gate.close();
      for (const upstream of upstreams) await upstream.close();
    }
    for (const parser of parsers) await parser.close();
  }
}

const sum = <T>(items: readonly T[], of: (item: T) => number): number =>
  items.reduce((all, item) => all + of(item), 0);

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
  '/files/a%2Fb',
  '/files/é',
];

/** Something ordinary with something a little less so, whole or as the storm of H29 has it; and where it is cut apart. */
function makeCase(seed: number): { readonly bytes: Buffer; readonly cuts: readonly number[] } {
  const below = randomBelow(seed);
  for (let skipped = 0; skipped < 8; skipped += 1) below(2);
  const pick = <T>(list: readonly T[]): T => list[below(list.length)] as T;
  const message = below(2) === 0 ? pick(makeBatch(seed, 'A').messages) : ordinary(below, pick);
  const bytes = Buffer.concat([message, LAST]);
  const cuts = Array.from({ length: below(3) }, () => 1 + below(bytes.length - 1)).toSorted((a, b) => a - b);
  return { bytes, cuts };
}

function ordinary(below: (limit: number) => number, pick: <T>(list: readonly T[]) => T): Buffer {
  let text = '';
  for (let count = 1 + below(3); count > 0; count -= 1) {
    const method = pick(['GET', 'GET', 'POST', 'PUT', 'HEAD', 'DELETE', 'PATCH']);
    const body =
      method.startsWith('P') || below(12) === 0 ? 'b'.repeat(pick([0, 1, 5, 700, 20_000])) : undefined;
    const fields = [
      ...(below(20) === 0 ? [] : ['Host: gate.test']),
      ...(below(10) === 0 ? [] : [`Authorization: ${pick(['Bearer A', 'bearer A', 'Bearer B', 'Basic A'])}`]),
      ...(body === undefined ? [] : [`Content-Length: ${body.length}`]),
      // Each once: nginx takes no second one of some.
      ...new Map(Array.from({ length: below(4) }, () => [pick(NAMES), pick(VALUES)] as const))
        .entries()
        .map(([name, value]) => `${name}: ${value}`),
      ...(below(12) === 0
        ? [`Connection: ${pick(['keep-alive', 'close', 'X-A', 'Keep-Alive', 'close, X-A'])}`]
        : []),
    ];
    while (below(4) === 0)
      fields.splice(below(fields.length), 0, fields.splice(below(fields.length), 1)[0] ?? 'X-A: b');
    text += `${method} ${pick(PATHS)} HTTP/1.1\r\n${fields.join('\r\n')}\r\n\r\n${body ?? ''}`;
  }
  return Buffer.from(text, 'latin1');
}

/** Each connection's bytes, read by servers of others: the same requests, in the same order. */
async function readAgain(parsers: readonly ForeignParser[], upstream: RecordingUpstream): Promise<string[]> {
  const idOf = ({ headers }: Recorded): string =>
    headers.find(([name]) => name === 'x-request-id')?.[1] ?? 'without an id';
  const ours = upstream.requests
    .map((request) => `${request.method} ${request.target} ${idOf(request)}`)
    .toSorted();
  const wrongs: string[] = [];
  for (const parser of parsers) {
    const theirs: string[] = [];
    for (const { bytes, unfinished } of upstream.streams()) {
      const whole = bytes.slice(0, bytes.length - unfinished.length);
      if (whole !== '') theirs.push(...(await parser.read(whole)));
    }
    theirs.sort();
    if (ours.join('\n') !== theirs.join('\n'))
      wrongs.push(`${parser.name} reads ${theirs.length} requests where the upstream got ${ours.length}`);
  }
  return wrongs;
}

if (import.meta.main) {
  const { values } = parseArgs({
    options: {
      count: { type: 'string', default: '1000000' },
      seed: { type: 'string', default: String(Math.trunc(Math.random() * 1_000_000)) },
    },
  });
  const tell = (line: string): void => void process.stdout.write(`${line}\n`);
  tell(`seed ${values.seed}`);
  await fuzzLanes({ count: Number(values.count), seed: Number(values.seed), tell });
}
