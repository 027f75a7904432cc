import { parseArgs } from 'node:util';
import { eventLoopTurns } from '../support/event-loop-turns.ts';
import type { RecordedRequest, RecordingUpstream } from '../support/recording-upstream.ts';
import { createPathCase, type PathCase } from './path-cases.ts';
import { countFallbacks, type Outcome, openPathSide, type PathSide } from './path-side.ts';
import { type ParserOptions, startThirdPartyParsers, type ThirdPartyParser } from './third-party-parsers.ts';

/**
 * The same bytes through both paths: whatever one sends on, the other sends on in the same form, and servers of others read
 * the same requests in what the fast path wrote. `npm run fuzz:paths` sends a million messages; `-- --count 5000 --seed 7`
 * others, `-- --only 70000123` one of them.
 */
export interface PathsResult {
  /** Messages, and the requests that were written in them. */
  sent: number;
  requests: number;
  /** Requests that the fast path carried itself, and connections it gave away. */
  fast: number;
  fallbacks: number;
  /** By which sign the end of a message was known in the fast path. */
  completed: number;
  closed: number;
  silent: number;
  /** Those that differed at first and not when they were looked at for themselves, with patience. */
  retried: number;
  /** Read by the servers of others. */
  thirdParty: number;
}

export interface PathsOptions extends ParserOptions {
  readonly count: number;
  readonly seed: number;
  readonly log?: (line: string) => void;
}

interface Pair {
  readonly fast: PathSide;
  readonly full: PathSide;
}

const PAIRS = 32;
const ROUND = 8_000;
/** The slowest of the servers of others reads one round of so many. */
const SLOW_ONE = 'python';
const SLOW_ROUNDS = 8;
/** Polls of the event loop without a byte before a connection counts as silent; and when a difference is examined alone. */
const QUIET_POLLS = 100;
const RETRY_POLLS = [400, 2_000, 8_000];

async function openPair(): Promise<Pair> {
  const [fast, full] = await Promise.all([openPathSide('fast'), openPathSide('full')]);
  return { fast, full };
}

/** What differs; undefined when nothing does. */
async function compare(
  pair: Pair,
  one: PathCase,
  polls: number,
  result?: PathsResult,
): Promise<string | undefined> {
  const [fast, full] = await Promise.all([pair.fast.send(one, polls), pair.full.send(one, polls)]);
  if (result !== undefined) result[fast.ending] += 1;
  if (!(await differs(pair, one, fast, full, polls))) return undefined;
  const shown = ({ seen, statuses, ending }: Outcome, other: Outcome): string => {
    const requests = seen.map((request) => (other.seen.includes(request) ? brief(request) : request));
    return `${requests.join(' + ') || 'nothing'} (${statuses || 'no answer'}, ${ending})`;
  };
  return `on the fast path: ${shown(fast, full)}\n  on the full path: ${shown(full, fast)}`;
}

/** Of a request that both have: its method and target. */
const brief = (request: string): string => (JSON.parse(request) as string[]).slice(0, 2).join(' ');

async function differs(
  pair: Pair,
  one: PathCase,
  fast: Outcome,
  full: Outcome,
  polls: number,
): Promise<boolean> {
  const isSame = fast.seen.toSorted().join() === full.seen.toSorted().join();
  if (fast.ending === 'completed' && full.ending === 'completed')
    return !isSame || fast.statuses !== full.statuses;
  if (isSame) return false;
  // The full path begins what is pipelined at once; the fast one only when what comes before was answered, and not at all
  // when that ended the connection.
  const left = [...full.seen];
  const more = fast.seen.filter((request) => {
    const place = left.indexOf(request);
    if (place >= 0) left.splice(place, 1);
    return place < 0;
  });
  if (more.length > 0 && !(await readAlone(pair.full, one, fast.seen, polls))) return true;
  return left.length > 0 && !(fast.ending === 'closed' && fast.announcedClose);
}

/** Behind a good request stood a broken one: the full path, which reads ahead, gets each of them for itself. */
async function readAlone(
  full: PathSide,
  one: PathCase,
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
    const [seen, ...others] = (await full.send(part, polls)).seen;
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
 * the full path, a broken end may come before or after the beginning.
 */
async function recheck(
  pair: Pair,
  one: PathCase,
  before: readonly PathCase[][],
): Promise<string | undefined> {
  for (const polls of RETRY_POLLS) {
    pair.fast.drop();
    pair.full.drop();
    const wrong = await compare(pair, one, polls);
    if (wrong === undefined) break;
    if (polls === RETRY_POLLS.at(-1)) return `alone ${wrong}`;
  }
  const [fastBefore = [], fullBefore = []] = before;
  for (const polls of RETRY_POLLS) {
    pair.fast.drop();
    pair.full.drop();
    for (const earlier of fastBefore) await pair.fast.send(earlier, polls);
    for (const earlier of fullBefore) await pair.full.send(earlier, polls);
    const wrong = await compare(pair, one, polls);
    if (wrong === undefined) return undefined;
    if (polls === RETRY_POLLS.at(-1))
      return `behind ${fastBefore.map(({ seed }) => seed).join()} and ${fullBefore.map(({ seed }) => seed).join()} ${wrong}`;
  }
  return undefined;
}

const describeProblem = (one: PathCase, wrong: string): string =>
  `${one.seed}: ${JSON.stringify(one.bytes.toString('latin1'))} cut at ${one.cuts.join() || 'no place'}\n  ${wrong}`.replace(
    /(.)\1{60,}/g,
    (run, [letter]) => `${letter}…${run.length}`,
  );

export async function fuzzPaths({ count, seed, log = () => {}, go }: PathsOptions): Promise<PathsResult> {
  const parsers = await startThirdPartyParsers({ go });
  const pairs = await Promise.all(Array.from({ length: PAIRS }, openPair));
  const result: PathsResult = {
    sent: 0,
    requests: 0,
    fast: 0,
    fallbacks: 0,
    completed: 0,
    closed: 0,
    silent: 0,
    retried: 0,
    thirdParty: 0,
  };
  const begun = performance.now();
  log(`read again by ${parsers.map(({ name }) => name).join(', ')}`);
  try {
    for (let next = seed * 10_000_000, round = 0; result.sent < count; round += 1) {
      const end = next + Math.min(ROUND, count - result.sent);
      const problems: string[] = [];
      const work = async (pair: Pair): Promise<void> => {
        while (next < end) {
          const one = createPathCase(next++);
          result.sent += 1;
          result.requests += one.requests;
          const before = [[...pair.fast.history], [...pair.full.history]];
          const first = await compare(pair, one, QUIET_POLLS, result);
          if (first === undefined) continue;
          const wrong = await recheck(pair, one, before);
          if (wrong !== undefined) problems.push(describeProblem(one, wrong));
          else {
            result.retried += 1;
            log(`not again: ${describeProblem(one, first)}`);
          }
        }
      };
      await Promise.all(pairs.map(work));
      await eventLoopTurns(4);
      const readers = parsers.filter(({ name }) => name !== SLOW_ONE || round % SLOW_ROUNDS === 0);
      const read = await Promise.all(readers.map((parser) => readAgain(parser, pairs)));
      for (const { problems: found, requests } of read) {
        problems.push(...found);
        result.thirdParty += requests;
      }
      for (const pair of pairs) problems.push(...lastTwice(pair));
      if (problems.length > 0)
        throw new Error(`seed ${seed}: ${problems.length} wrong\n${problems.slice(0, 5).join('\n')}`);
      result.fast = 0;
      result.fallbacks = 0;
      for (const { fast, full } of pairs) {
        result.fast += fast.proxy.fastPath?.counts.served ?? 0;
        result.fallbacks += countFallbacks(fast.proxy);
        for (const { upstream, proxy } of [fast, full]) {
          upstream.reset();
          proxy.notes.length = 0;
          proxy.log.length = 0;
        }
      }
      log(summary(result, performance.now() - begun));
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

function summary(result: PathsResult, ms: number): string {
  const { user, system } = process.cpuUsage();
  return [
    `${result.sent} messages with ${result.requests} requests`,
    `${result.fast} forwarded by the fast path`,
    `${result.fallbacks} connections handed to the full path`,
    `ended by: answer ${result.completed}, close ${result.closed}, silence ${result.silent}`,
    `${result.retried} not again`,
    `${result.thirdParty} read by others`,
    `${(ms / 1_000).toFixed(0)} s`,
    `CPU ${((user + system) / 1e6).toFixed(0)} s`,
    `${Math.round(process.memoryUsage().rss / 1_048_576)} MB`,
  ].join('; ');
}

/** No byte is read twice when a connection falls back to the full path, not even after its end was known. */
function lastTwice({ fast, full }: Pair): string[] {
  const problems: string[] = [];
  for (const { upstream, requestCounts } of [fast, full]) {
    const times = new Map<string, number>();
    for (const { target } of upstream.requests)
      if (target.startsWith('/public/last?')) times.set(target, (times.get(target) ?? 0) + 1);
    for (const [target, count] of times)
      if (count > (requestCounts.get(target) ?? 0)) problems.push(`${target} was sent on ${count} times`);
    requestCounts.clear();
  }
  return problems;
}

const idOf = ({ headers }: RecordedRequest): string =>
  headers.find(([name]) => name === 'x-request-id')?.[1] ?? 'without an id';

/** Each connection's bytes of the fast path, read by a server of others: the same requests. */
async function readAgain(
  parser: ThirdPartyParser,
  pairs: readonly Pair[],
): Promise<{ readonly problems: string[]; readonly requests: number }> {
  const problems: string[] = [];
  let requests = 0;
  for (const { fast } of pairs) {
    const ours = linesOf(fast.upstream);
    const theirs: string[] = [];
    for (const { bytes, unfinished } of fast.upstream.connectionStreams()) {
      const whole = bytes.slice(0, bytes.length - unfinished.length);
      if (whole !== '') theirs.push(...(await parser.read(whole)));
    }
    theirs.sort();
    requests += theirs.length;
    const at = ours.findIndex((line, index) => line !== theirs[index]);
    if (ours.length !== theirs.length || at >= 0)
      problems.push(
        `${parser.name} reads ${theirs.length} requests where the upstream got ${ours.length}; the first other one is "${theirs[at]}" for "${ours[at]}"`,
      );
  }
  return { problems, requests };
}

const linesOf = ({ requests }: RecordingUpstream): string[] =>
  requests.map((request) => `${request.method} ${request.target} ${idOf(request)}`).sort();

/** One of them, looked at with patience. */
async function only(seed: number): Promise<void> {
  const pair = await openPair();
  const one = createPathCase(seed);
  const wrong = await compare(pair, one, RETRY_POLLS[1] ?? 0);
  process.stdout.write(`${describeProblem(one, wrong ?? 'no difference')}\n`);
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
  const print = (line: string): void => void process.stdout.write(`${line}\n`);
  if (values.only !== undefined) await only(Number(values.only));
  else {
    print(`seed ${values.seed}`);
    await fuzzPaths({ count: Number(values.count), seed: Number(values.seed), log: print, go: true });
  }
}
