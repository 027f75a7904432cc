import { parseArgs } from 'node:util';
import type { Recorded, RecordingUpstream } from '../support/recording-upstream.ts';
import { turns } from '../support/turns.ts';
import { type ForeignParser, foreignParsers, type ParserOptions } from './foreign-parsers.ts';
import { type LaneCase, makeLaneCase } from './lane-cases.ts';
import { handOvers, type LaneSide, type Outcome, openSide } from './lane-side.ts';

/**
 * The same bytes through both lanes: whatever one sends on, the other sends on in the same form, and servers of others read
 * the same requests in what the fast lane wrote. `npm run fuzz:lanes` sends a million messages; `-- --count 5000 --seed 7`
 * others, `-- --only 70000123` one of them.
 */
export interface LanesResult {
  /** Messages, and the requests that were written in them. */
  sent: number;
  requests: number;
  /** Requests that the fast lane carried itself, and connections it gave away. */
  fast: number;
  handedOver: number;
  /** By which sign the end of a message was known in the fast lane. */
  answered: number;
  closed: number;
  silent: number;
  /** Those that differed at first and not when they were looked at for themselves, with patience. */
  again: number;
  /** Read by the servers of others. */
  foreign: number;
}

export interface LanesOptions extends ParserOptions {
  readonly count: number;
  readonly seed: number;
  readonly tell?: (line: string) => void;
}

interface Pair {
  readonly fast: LaneSide;
  readonly full: LaneSide;
}

const PAIRS = 32;
const ROUND = 8_000;
/** The slowest of the servers of others reads one round of so many. */
const SLOW_ONE = 'python';
const SLOW_ROUNDS = 8;
/** Polls of the event loop without a byte before a connection counts as silent; and when a difference is examined alone. */
const QUIET_POLLS = 100;
const PATIENT_POLLS = [400, 2_000, 8_000];

async function openPair(): Promise<Pair> {
  const [fast, full] = await Promise.all([openSide('fast'), openSide('full')]);
  return { fast, full };
}

/** What differs; undefined when nothing does. */
async function compare(
  pair: Pair,
  one: LaneCase,
  polls: number,
  result?: LanesResult,
): Promise<string | undefined> {
  const [fast, full] = await Promise.all([pair.fast.ask(one, polls), pair.full.ask(one, polls)]);
  if (result !== undefined) result[fast.ending] += 1;
  if (!(await differs(pair, one, fast, full, polls))) return undefined;
  const shown = ({ seen, statuses, ending }: Outcome, other: Outcome): string => {
    const requests = seen.map((request) => (other.seen.includes(request) ? brief(request) : request));
    return `${requests.join(' + ') || 'nothing'} (${statuses || 'no answer'}, ${ending})`;
  };
  return `by the fast lane: ${shown(fast, full)}\n  by the full lane: ${shown(full, fast)}`;
}

/** Of a request that both have: its method and target. */
const brief = (request: string): string => (JSON.parse(request) as string[]).slice(0, 2).join(' ');

async function differs(
  pair: Pair,
  one: LaneCase,
  fast: Outcome,
  full: Outcome,
  polls: number,
): Promise<boolean> {
  const isSame = fast.seen.toSorted().join() === full.seen.toSorted().join();
  if (fast.ending === 'answered' && full.ending === 'answered')
    return !isSame || fast.statuses !== full.statuses;
  if (isSame) return false;
  // The full lane begins what is pipelined at once; the fast one only when what comes before was answered, and not at all
  // when that ended the connection.
  const left = [...full.seen];
  const more = fast.seen.filter((request) => {
    const place = left.indexOf(request);
    if (place >= 0) left.splice(place, 1);
    return place < 0;
  });
  if (more.length > 0 && !(await readAlone(pair.full, one, fast.seen, polls))) return true;
  return left.length > 0 && !(fast.ending === 'closed' && fast.saidClose);
}

/** Behind a good request stood a broken one: the full lane, which reads ahead, gets each of them for itself. */
async function readAlone(
  full: LaneSide,
  one: LaneCase,
  wanted: readonly string[],
  polls: number,
): Promise<boolean> {
  const { bytes } = one;
  let found = 0;
  for (let from = 0; found < wanted.length && from < bytes.length; ) {
    const headEnd = bytes.indexOf('\r\n\r\n', from) + 4;
    if (headEnd < 4) return false;
    const [, length = '0'] = /\r\ncontent-length: (\d+)/i.exec(bytes.toString('latin1', from, headEnd)) ?? [];
    const end = headEnd + Number(length);
    full.drop();
    const part = { ...one, bytes: bytes.subarray(from, end), cuts: [] };
    const [seen, ...others] = (await full.ask(part, polls)).seen;
    if (seen !== undefined && (others.length > 0 || seen !== wanted[found])) return false;
    if (seen !== undefined) found += 1;
    from = end;
  }
  full.drop();
  return found === wanted.length;
}

/**
 * A difference is looked at for itself: on connections of its own, and with all that went before it on the connections
 * on which it was seen; ever more patiently, for on a busy machine silence may be slowness, and of what is pipelined in
 * the full lane, a broken end may come before or after the beginning.
 */
async function lookAgain(
  pair: Pair,
  one: LaneCase,
  before: readonly LaneCase[][],
): Promise<string | undefined> {
  for (const polls of PATIENT_POLLS) {
    pair.fast.drop();
    pair.full.drop();
    const wrong = await compare(pair, one, polls);
    if (wrong === undefined) break;
    if (polls === PATIENT_POLLS.at(-1)) return `alone ${wrong}`;
  }
  const [fastBefore = [], fullBefore = []] = before;
  for (const polls of PATIENT_POLLS) {
    pair.fast.drop();
    pair.full.drop();
    for (const earlier of fastBefore) await pair.fast.ask(earlier, polls);
    for (const earlier of fullBefore) await pair.full.ask(earlier, polls);
    const wrong = await compare(pair, one, polls);
    if (wrong === undefined) return undefined;
    if (polls === PATIENT_POLLS.at(-1))
      return `behind ${fastBefore.map(({ seed }) => seed).join()} and ${fullBefore.map(({ seed }) => seed).join()} ${wrong}`;
  }
  return undefined;
}

const told = (one: LaneCase, wrong: string): string =>
  `${one.seed}: ${JSON.stringify(one.bytes.toString('latin1'))} cut at ${one.cuts.join() || 'no place'}\n  ${wrong}`.replace(
    /(.)\1{60,}/g,
    (run, [letter]) => `${letter}…${run.length}`,
  );

export async function fuzzLanes({ count, seed, tell = () => {}, go }: LanesOptions): Promise<LanesResult> {
  const parsers = await foreignParsers({ go });
  const pairs = await Promise.all(Array.from({ length: PAIRS }, openPair));
  const result: LanesResult = {
    sent: 0,
    requests: 0,
    fast: 0,
    handedOver: 0,
    answered: 0,
    closed: 0,
    silent: 0,
    again: 0,
    foreign: 0,
  };
  const begun = performance.now();
  tell(`read again by ${parsers.map(({ name }) => name).join(', ')}`);
  try {
    for (let next = seed * 10_000_000, round = 0; result.sent < count; round += 1) {
      const end = next + Math.min(ROUND, count - result.sent);
      const wrongs: string[] = [];
      const work = async (pair: Pair): Promise<void> => {
        while (next < end) {
          const one = makeLaneCase(next++);
          result.sent += 1;
          result.requests += one.requests;
          const before = [[...pair.fast.history], [...pair.full.history]];
          const first = await compare(pair, one, QUIET_POLLS, result);
          if (first === undefined) continue;
          const wrong = await lookAgain(pair, one, before);
          if (wrong !== undefined) wrongs.push(told(one, wrong));
          else {
            result.again += 1;
            tell(`not again: ${told(one, first)}`);
          }
        }
      };
      await Promise.all(pairs.map(work));
      await turns(4);
      const readers = parsers.filter(({ name }) => name !== SLOW_ONE || round % SLOW_ROUNDS === 0);
      const read = await Promise.all(readers.map((parser) => readAgain(parser, pairs)));
      for (const { wrongs: found, requests } of read) {
        wrongs.push(...found);
        result.foreign += requests;
      }
      for (const pair of pairs) wrongs.push(...lastTwice(pair));
      if (wrongs.length > 0)
        throw new Error(`seed ${seed}: ${wrongs.length} wrong\n${wrongs.slice(0, 5).join('\n')}`);
      result.fast = 0;
      result.handedOver = 0;
      for (const { fast, full } of pairs) {
        result.fast += fast.gate.lane?.counts.fast ?? 0;
        result.handedOver += handOvers(fast.gate);
        for (const { upstream, gate } of [fast, full]) {
          upstream.reset();
          gate.notes.length = 0;
          gate.log.length = 0;
        }
      }
      tell(summary(result, performance.now() - begun));
    }
    return result;
  } finally {
    for (const { fast, full } of pairs) {
      await fast.close();
      await full.close();
    }
    for (const parser of parsers) await parser.close();
  }
}

function summary(result: LanesResult, ms: number): string {
  const { user, system } = process.cpuUsage();
  return [
    `${result.sent} messages with ${result.requests} requests`,
    `${result.fast} carried by the fast lane`,
    `${result.handedOver} connections handed over`,
    `ended by: answer ${result.answered}, close ${result.closed}, silence ${result.silent}`,
    `${result.again} not again`,
    `${result.foreign} read by others`,
    `${(ms / 1_000).toFixed(0)} s`,
    `CPU ${((user + system) / 1e6).toFixed(0)} s`,
    `${Math.round(process.memoryUsage().rss / 1_048_576)} MB`,
  ].join('; ');
}

/** No byte is read twice when a connection changes lanes, not even after its end was known. */
function lastTwice({ fast, full }: Pair): string[] {
  const wrongs: string[] = [];
  for (const { upstream, asked } of [fast, full]) {
    const times = new Map<string, number>();
    for (const { target } of upstream.requests)
      if (target.startsWith('/public/last?')) times.set(target, (times.get(target) ?? 0) + 1);
    for (const [target, count] of times)
      if (count > (asked.get(target) ?? 0)) wrongs.push(`${target} was sent on ${count} times`);
    asked.clear();
  }
  return wrongs;
}

const idOf = ({ headers }: Recorded): string =>
  headers.find(([name]) => name === 'x-request-id')?.[1] ?? 'without an id';

/** Each connection's bytes of the fast lane, read by a server of others: the same requests. */
async function readAgain(
  parser: ForeignParser,
  pairs: readonly Pair[],
): Promise<{ readonly wrongs: string[]; readonly requests: number }> {
  const wrongs: string[] = [];
  let requests = 0;
  for (const { fast } of pairs) {
    const ours = linesOf(fast.upstream);
    const theirs: string[] = [];
    for (const { bytes, unfinished } of fast.upstream.streams()) {
      const whole = bytes.slice(0, bytes.length - unfinished.length);
      if (whole !== '') theirs.push(...(await parser.read(whole)));
    }
    theirs.sort();
    requests += theirs.length;
    const at = ours.findIndex((line, index) => line !== theirs[index]);
    if (ours.length !== theirs.length || at >= 0)
      wrongs.push(
        `${parser.name} reads ${theirs.length} requests where the upstream got ${ours.length}; the first other one is "${theirs[at]}" for "${ours[at]}"`,
      );
  }
  return { wrongs, requests };
}

const linesOf = ({ requests }: RecordingUpstream): string[] =>
  requests.map((request) => `${request.method} ${request.target} ${idOf(request)}`).sort();

/** One of them, looked at with patience. */
async function only(seed: number): Promise<void> {
  const pair = await openPair();
  const one = makeLaneCase(seed);
  const wrong = await compare(pair, one, PATIENT_POLLS[1] ?? 0);
  process.stdout.write(`${told(one, wrong ?? 'no difference')}\n`);
  await pair.fast.close();
  await pair.full.close();
}

if (import.meta.main) {
  const { values } = parseArgs({
    options: {
      count: { type: 'string', default: '1000000' },
      seed: { type: 'string', default: String(Math.trunc(Math.random() * 1_000_000)) },
      only: { type: 'string' },
    },
  });
  // Broken connections are the rule here, and where they broke is not told.
  Error.stackTraceLimit = 0;
  const tell = (line: string): void => void process.stdout.write(`${line}\n`);
  if (values.only !== undefined) await only(Number(values.only));
  else {
    tell(`seed ${values.seed}`);
    await fuzzLanes({ count: Number(values.count), seed: Number(values.seed), tell, go: true });
  }
}
