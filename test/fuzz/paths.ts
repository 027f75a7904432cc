import { parseArgs } from 'node:util';
import { eventLoopTurns } from '../support/event-loop-turns.ts';
import { recordFigures } from '../support/figures.ts';
import type { RecordedRequest, RecordingUpstream } from '../support/recording-upstream.ts';
import { createPathCase, type PathCase } from './path-cases.ts';
import { countFallbacks, type Outcome, openPathSide, type PathSide } from './path-side.ts';
import { type ParserOptions, startThirdPartyParsers, type ThirdPartyParser } from './third-party-parsers.ts';

/**
 * Sends the same bytes through both paths: both must forward the same requests in the same form, and third-party servers
 * must parse the same requests from the bytes of the fast path. `npm run fuzz:paths` sends a million messages;
 * `-- --count 5000 --seed 7` chooses others, `-- --only 70000123` a single one.
 */
export interface PathsResult {
  /** Messages sent, and the requests in them. */
  sent: number;
  requests: number;
  /** Requests that the fast path forwarded, and connections that fell back. */
  fast: number;
  fallbacks: number;
  /** How the cases ended on the fast path. */
  completed: number;
  closed: number;
  silent: number;
  /** Cases that differed at first but not when rechecked alone with longer waits. */
  retried: number;
  /** Requests parsed by third-party servers. */
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
/** The slowest third-party server parses only one of this many rounds. */
const SLOW_PARSER = 'python';
const SLOW_ROUNDS = 8;
/** Event-loop iterations without a byte before a connection counts as silent; RETRY_POLLS when a difference is rechecked. */
const QUIET_POLLS = 100;
const RETRY_POLLS = [400, 2_000, 8_000];

async function openPair(): Promise<Pair> {
  const [fast, full] = await Promise.all([openPathSide('fast'), openPathSide('full')]);
  return { fast, full };
}

/** Describes the difference; undefined if there is none. */
async function compare(
  pair: Pair,
  pathCase: PathCase,
  polls: number,
  result?: PathsResult,
): Promise<string | undefined> {
  const [fast, full] = await Promise.all([pair.fast.send(pathCase, polls), pair.full.send(pathCase, polls)]);
  if (result !== undefined) result[fast.ending] += 1;
  if (!(await differs(pair, pathCase, fast, full, polls))) return undefined;
  const format = ({ seen, statuses, ending }: Outcome, other: Outcome): string => {
    const requests = seen.map((request) => (other.seen.includes(request) ? summarize(request) : request));
    return `${requests.join(' + ') || 'nothing'} (${statuses || 'no response'}, ${ending})`;
  };
  return `on the fast path: ${format(fast, full)}\n  on the full path: ${format(full, fast)}`;
}

/** The method and target of a request that both sides have. */
const summarize = (request: string): string => (JSON.parse(request) as string[]).slice(0, 2).join(' ');

async function differs(
  pair: Pair,
  pathCase: PathCase,
  fast: Outcome,
  full: Outcome,
  polls: number,
): Promise<boolean> {
  const isSame = fast.seen.toSorted().join() === full.seen.toSorted().join();
  if (fast.ending === 'completed' && full.ending === 'completed')
    return !isSame || fast.statuses !== full.statuses;
  if (isSame) return false;
  // The full path starts pipelined requests at once. The fast path starts a request only after the previous response, and
  // not at all if that closed the connection.
  const missing = [...full.seen];
  const extra = fast.seen.filter((request) => {
    const index = missing.indexOf(request);
    if (index >= 0) missing.splice(index, 1);
    return index < 0;
  });
  if (extra.length > 0 && !(await sendSeparately(pair.full, pathCase, fast.seen, polls))) return true;
  return missing.length > 0 && !(fast.ending === 'closed' && fast.announcedClose);
}

/** A malformed request may follow a valid one, and the full path reads ahead: sends it each request separately. */
async function sendSeparately(
  full: PathSide,
  pathCase: PathCase,
  wanted: readonly string[],
  polls: number,
): Promise<boolean> {
  const { bytes } = pathCase;
  let found = 0;
  for (let from = 0; found < wanted.length && from < bytes.length; ) {
    const headEnd = bytes.indexOf('\r\n\r\n', from) + 4;
    if (headEnd < 4) return false;
    const [, length = '0'] = /\r\ncontent-length: (\d+)/i.exec(bytes.toString('latin1', from, headEnd)) ?? [];
    const end = headEnd + Number(length);
    full.drop();
    const part = { ...pathCase, bytes: bytes.subarray(from, end), cuts: [] };
    const [seen, ...others] = (await full.send(part, polls)).seen;
    if (seen !== undefined && (others.length > 0 || seen !== wanted[found])) return false;
    if (seen !== undefined) found += 1;
    from = end;
  }
  full.drop();
  return found === wanted.length;
}

/**
 * Rechecks a difference on new connections, and after the same history as on the connections where it occurred. The waits
 * get longer, since a busy machine may only be slow, and on the full path a malformed pipelined request may be handled
 * before or after the requests in front of it.
 */
async function recheck(
  pair: Pair,
  pathCase: PathCase,
  before: readonly PathCase[][],
): Promise<string | undefined> {
  for (const polls of RETRY_POLLS) {
    pair.fast.drop();
    pair.full.drop();
    const difference = await compare(pair, pathCase, polls);
    if (difference === undefined) break;
    if (polls === RETRY_POLLS.at(-1)) return `alone ${difference}`;
  }
  const [fastBefore = [], fullBefore = []] = before;
  for (const polls of RETRY_POLLS) {
    pair.fast.drop();
    pair.full.drop();
    for (const earlier of fastBefore) await pair.fast.send(earlier, polls);
    for (const earlier of fullBefore) await pair.full.send(earlier, polls);
    const difference = await compare(pair, pathCase, polls);
    if (difference === undefined) return undefined;
    if (polls === RETRY_POLLS.at(-1))
      return `after ${fastBefore.map(({ seed }) => seed).join()} and ${fullBefore.map(({ seed }) => seed).join()} ${difference}`;
  }
  return undefined;
}

const describeProblem = (pathCase: PathCase, difference: string): string =>
  `${pathCase.seed}: ${JSON.stringify(pathCase.bytes.toString('latin1'))} split at ${pathCase.cuts.join() || 'no position'}\n  ${difference}`.replace(
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
  const startedAt = performance.now();
  log(`parsed again by ${parsers.map(({ name }) => name).join(', ')}`);
  try {
    for (let next = seed * 10_000_000, round = 0; result.sent < count; round += 1) {
      const end = next + Math.min(ROUND, count - result.sent);
      const problems: string[] = [];
      const runPair = async (pair: Pair): Promise<void> => {
        while (next < end) {
          const pathCase = createPathCase(next++);
          result.sent += 1;
          result.requests += pathCase.requests;
          const before = [[...pair.fast.history], [...pair.full.history]];
          const first = await compare(pair, pathCase, QUIET_POLLS, result);
          if (first === undefined) continue;
          const difference = await recheck(pair, pathCase, before);
          if (difference !== undefined) problems.push(describeProblem(pathCase, difference));
          else {
            result.retried += 1;
            log(`not reproduced: ${describeProblem(pathCase, first)}`);
          }
        }
      };
      await Promise.all(pairs.map(runPair));
      await eventLoopTurns(4);
      const readers = parsers.filter(({ name }) => name !== SLOW_PARSER || round % SLOW_ROUNDS === 0);
      const read = await Promise.all(readers.map((parser) => parseAgain(parser, pairs)));
      for (const { problems: found, requests } of read) {
        problems.push(...found);
        result.thirdParty += requests;
      }
      for (const pair of pairs) problems.push(...findDuplicates(pair));
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
      log(summary(result, performance.now() - startedAt));
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
    `${result.fallbacks} connections fell back to the full path`,
    `ended by: response ${result.completed}, close ${result.closed}, silence ${result.silent}`,
    `${result.retried} not reproduced`,
    `${result.thirdParty} parsed by third-party servers`,
    `${(ms / 1_000).toFixed(0)} s`,
    `CPU ${((user + system) / 1e6).toFixed(0)} s`,
    `${Math.round(process.memoryUsage().rss / 1_048_576)} MB`,
  ].join('; ');
}

/** Reports final requests forwarded more often than sent: no byte may be read twice after a fallback. */
function findDuplicates({ fast, full }: Pair): string[] {
  const problems: string[] = [];
  for (const { upstream, requestCounts } of [fast, full]) {
    const times = new Map<string, number>();
    for (const { target } of upstream.requests)
      if (target.startsWith('/public/last?')) times.set(target, (times.get(target) ?? 0) + 1);
    for (const [target, count] of times)
      if (count > (requestCounts.get(target) ?? 0)) problems.push(`${target} was forwarded ${count} times`);
    requestCounts.clear();
  }
  return problems;
}

const getRequestId = ({ headers }: RecordedRequest): string =>
  headers.find(([name]) => name === 'x-request-id')?.[1] ?? 'without an id';

/** Expects that a third-party server parses the same requests from the bytes of each fast-path connection. */
async function parseAgain(
  parser: ThirdPartyParser,
  pairs: readonly Pair[],
): Promise<{ readonly problems: string[]; readonly requests: number }> {
  const problems: string[] = [];
  let requests = 0;
  for (const { fast } of pairs) {
    const expected = describeRequests(fast.upstream);
    const parsed: string[] = [];
    for (const { bytes, unfinished } of fast.upstream.connectionStreams()) {
      const finished = bytes.slice(0, bytes.length - unfinished.length);
      if (finished !== '') parsed.push(...(await parser.read(finished)));
    }
    parsed.sort();
    requests += parsed.length;
    const at = expected.findIndex((line, index) => line !== parsed[index]);
    if (expected.length !== parsed.length || at >= 0)
      problems.push(
        `${parser.name} parses ${parsed.length} requests where the upstream got ${expected.length}; the first difference is "${parsed[at]}" for "${expected[at]}"`,
      );
  }
  return { problems, requests };
}

const describeRequests = ({ requests }: RecordingUpstream): string[] =>
  requests.map((request) => `${request.method} ${request.target} ${getRequestId(request)}`).sort();

/** Runs a single case with longer waits. */
async function runOnly(seed: number): Promise<void> {
  const pair = await openPair();
  const pathCase = createPathCase(seed);
  const difference = await compare(pair, pathCase, RETRY_POLLS[1] ?? 0);
  process.stdout.write(`${describeProblem(pathCase, difference ?? 'no difference')}\n`);
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
  // Most connections fail here; stack traces would only cost time.
  Error.stackTraceLimit = 0;
  const print = (line: string): void => void process.stdout.write(`${line}\n`);
  if (values.only !== undefined) await runOnly(Number(values.only));
  else {
    print(`seed ${values.seed}`);
    const seed = Number(values.seed);
    const found = await fuzzPaths({ count: Number(values.count), seed, log: print, go: true });
    recordFigures('paths', {
      seed,
      messages: found.sent,
      'requests in them': found.requests,
      'forwarded by the fast path': found.fast,
      'compared with third-party servers': found.thirdParty,
      differences: 0,
    });
  }
}
