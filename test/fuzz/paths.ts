import { parseArgs } from 'node:util';
import { eventLoopTurns } from '../support/event-loop-turns.ts';
import { recordFigures } from '../support/figures.ts';
import type { RecordedRequest, RecordingUpstream } from '../support/recording-upstream.ts';
import type { CaseClient, Ending } from './case-client.ts';
import { openNodeServer, openOwnListener, openProxy, type ParsingServer, type ProxyServer } from './http1-servers.ts';
import { formatRequest, hasUpgrade, isForwardOf, type ParsedRequest } from './parsed-request.ts';
import { createRequestCase, type RequestCase } from './request-cases.ts';
import { type ParserOptions, startThirdPartyParsers, type ThirdPartyParser } from './third-party-parsers.ts';

/**
 * Sends the same bytes to gatehouse's listener and to Node's HTTP server: a request that gatehouse accepts has the same method,
 * target, fields and body for Node. Also sends them through a proxy: what it forwards is what Node has read, and third-party
 * servers parse the same requests from the forwarded bytes. `npm run fuzz:paths` sends a million messages;
 * `-- --count 5000 --seed 7` chooses others, `-- --only 70000123` a single one.
 */
export interface PathsResult {
  /** Messages sent, and the requests in them. */
  sent: number;
  requests: number;
  /** Requests that gatehouse and Node accepted alike. */
  accepted: number;
  /** Requests that only Node accepted. */
  stricter: number;
  /** Requests that the proxy forwarded. */
  forwarded: number;
  /** How the cases ended for gatehouse. */
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

/** Servers that get the same cases. */
interface Servers {
  readonly own: ParsingServer;
  readonly node: ParsingServer;
  readonly proxy: ProxyServer;
  /** How often the proxy was sent each final request. */
  readonly lastRequests: Map<string, number>;
}

/** What each of the servers has read of a case. */
interface Outcome {
  readonly own: readonly ParsedRequest[];
  readonly node: readonly ParsedRequest[];
  readonly forwarded: readonly RecordedRequest[];
  readonly endings: readonly [own: Ending, node: Ending];
}

const SERVERS = 32;
const ROUND = 8_000;
/** The slowest third-party server parses only one of this many rounds. */
const SLOW_PARSER = 'python';
const SLOW_ROUNDS = 8;
/** Event-loop iterations without a byte before a connection counts as silent; RETRY_POLLS when a difference is rechecked. */
const QUIET_POLLS = 100;
const RETRY_POLLS = [400, 2_000, 8_000];

async function openServers(): Promise<Servers> {
  const [own, node, proxy] = await Promise.all([openOwnListener(), openNodeServer(), openProxy()]);
  return { own, node, proxy, lastRequests: new Map() };
}

const getClients = ({ own, node, proxy }: Servers): readonly CaseClient[] => [own.client, node.client, proxy.client];

async function closeServers({ own, node, proxy }: Servers): Promise<void> {
  for (const server of [own, node, proxy]) await server.close();
}

async function send(servers: Servers, requestCase: RequestCase, polls: number): Promise<Outcome> {
  const { own, node, proxy, lastRequests } = servers;
  const { last } = requestCase;
  if (last !== '') lastRequests.set(last, (lastRequests.get(last) ?? 0) + 1);
  const before = proxy.upstream.requests.length;
  const [ownEnding, nodeEnding] = await Promise.all(
    getClients(servers).map((client) => client.send(requestCase, polls)),
  );
  return {
    own: own.requests.splice(0),
    node: node.requests.splice(0),
    forwarded: proxy.upstream.requests.slice(before),
    endings: [ownEnding ?? 'silent', nodeEnding ?? 'silent'],
  };
}

/** Describes the difference; undefined if there is none. */
function findDifference({ own, node, forwarded, endings }: Outcome): string | undefined {
  const read = { own: own.map(formatRequest), node: node.map(formatRequest) };
  const list = (requests: readonly string[]): string => requests.join(' + ') || 'nothing';
  const isSame =
    read.own.every((request, index) => request === read.node[index]) &&
    (endings.some((ending) => ending !== 'completed') || own.length === node.length);
  if (!isSame)
    return `gatehouse reads ${list(read.own)} (${endings[0]})\n  Node reads ${list(read.node)} (${endings[1]})`;
  // Requests are forwarded in their order; some are refused.
  let at = 0;
  for (const request of forwarded) {
    while (at < node.length && !isForwardOf(request, node[at] as ParsedRequest)) at += 1;
    if (at === node.length && node.some(hasUpgrade)) return undefined;
    if (at === node.length)
      return `the proxy forwards ${JSON.stringify([request.method, request.target, request.body])}\n  Node reads ${list(read.node)}`;
    at += 1;
  }
  return undefined;
}

/**
 * Rechecks a difference on new connections, and after the same history as on the connections where it occurred. The waits get
 * longer, since a busy machine may only be slow.
 */
async function recheck(
  servers: Servers,
  requestCase: RequestCase,
  before: readonly (readonly RequestCase[])[],
): Promise<string | undefined> {
  const clients = getClients(servers);
  for (const [name, histories] of [
    ['alone', clients.map(() => [])],
    ['after the same cases', before],
  ] as const)
    for (const polls of RETRY_POLLS) {
      for (const [index, client] of clients.entries()) {
        client.drop();
        for (const earlier of histories[index] ?? []) await client.send(earlier, polls);
      }
      for (const { requests } of [servers.own, servers.node]) requests.length = 0;
      const difference = findDifference(await send(servers, requestCase, polls));
      if (difference === undefined) break;
      if (polls === RETRY_POLLS.at(-1)) return `${name}, ${difference}`;
    }
  return undefined;
}

const describeProblem = (requestCase: RequestCase, difference: string): string =>
  `${requestCase.seed}: ${JSON.stringify(requestCase.bytes.toString('latin1'))} split at ${requestCase.cuts.join() || 'no position'}\n  ${difference}`.replace(
    /(.)\1{60,}/g,
    (run, [letter]) => `${letter}…${run.length}`,
  );

export async function fuzzPaths({ count, seed, log = () => {}, go }: PathsOptions): Promise<PathsResult> {
  const parsers = await startThirdPartyParsers({ go });
  const all = await Promise.all(Array.from({ length: SERVERS }, openServers));
  const result: PathsResult = {
    sent: 0,
    requests: 0,
    accepted: 0,
    stricter: 0,
    forwarded: 0,
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
      const runServers = async (servers: Servers): Promise<void> => {
        while (next < end) {
          const requestCase = createRequestCase(next++);
          const before = getClients(servers).map(({ history }) => [...history]);
          const outcome = await send(servers, requestCase, QUIET_POLLS);
          countOutcome(result, requestCase, outcome);
          const first = findDifference(outcome);
          if (first === undefined) continue;
          const difference = await recheck(servers, requestCase, before);
          if (difference !== undefined) problems.push(describeProblem(requestCase, difference));
          else {
            result.retried += 1;
            log(`not reproduced: ${describeProblem(requestCase, first)}`);
          }
        }
      };
      await Promise.all(all.map(runServers));
      await eventLoopTurns(4);
      const readers = parsers.filter(({ name }) => name !== SLOW_PARSER || round % SLOW_ROUNDS === 0);
      const read = await Promise.all(readers.map((parser) => parseAgain(parser, all)));
      for (const { problems: found, requests } of read) {
        problems.push(...found);
        result.thirdParty += requests;
      }
      for (const { proxy, lastRequests } of all) {
        problems.push(...findDuplicates(proxy.upstream, lastRequests));
        problems.push(...proxy.proxy.log.filter((line) => line.includes('"level":"error"')));
        lastRequests.clear();
        proxy.upstream.reset();
        proxy.proxy.notes.length = 0;
        proxy.proxy.log.length = 0;
      }
      if (problems.length > 0)
        throw new Error(`seed ${seed}: ${problems.length} wrong\n${problems.slice(0, 5).join('\n')}`);
      log(summarize(result, performance.now() - startedAt));
    }
    return result;
  } finally {
    for (const servers of all) await closeServers(servers);
    for (const parser of parsers) await parser.close();
  }
}

function countOutcome(
  result: PathsResult,
  { requests }: RequestCase,
  { own, node, forwarded, endings }: Outcome,
): void {
  result.sent += 1;
  result.requests += requests;
  result.accepted += own.length;
  result.stricter += Math.max(0, node.length - own.length);
  result.forwarded += forwarded.length;
  result[endings[0]] += 1;
}

function summarize(result: PathsResult, ms: number): string {
  const { user, system } = process.cpuUsage();
  return [
    `${result.sent} messages with ${result.requests} requests`,
    `${result.accepted} accepted, and ${result.stricter} by Node only`,
    `${result.forwarded} forwarded`,
    `ended by: response ${result.completed}, close ${result.closed}, silence ${result.silent}`,
    `${result.retried} not reproduced`,
    `${result.thirdParty} parsed by third-party servers`,
    `${(ms / 1_000).toFixed(0)} s`,
    `CPU ${((user + system) / 1e6).toFixed(0)} s`,
    `${Math.round(process.memoryUsage().rss / 1_048_576)} MB`,
  ].join('; ');
}

/** Reports final requests that were forwarded more often than sent: no byte may be read twice. */
function findDuplicates({ requests }: RecordingUpstream, lastRequests: ReadonlyMap<string, number>): string[] {
  const times = new Map<string, number>();
  for (const { target } of requests)
    if (target.startsWith('/public/last?')) times.set(target, (times.get(target) ?? 0) + 1);
  return [...times]
    .filter(([target, forwarded]) => forwarded > (lastRequests.get(target) ?? 0))
    .map(([target, forwarded]) => `${target} was forwarded ${forwarded} times`);
}

const getRequestId = ({ headers }: RecordedRequest): string =>
  headers.find(([name]) => name === 'x-request-id')?.[1] ?? 'without an id';

/** Expects that a third-party server parses the same requests from the bytes of each upstream connection. */
async function parseAgain(
  parser: ThirdPartyParser,
  all: readonly Servers[],
): Promise<{ readonly problems: string[]; readonly requests: number }> {
  const problems: string[] = [];
  let requests = 0;
  for (const {
    proxy: { upstream },
  } of all) {
    const expected = describeRequests(upstream);
    const parsed: string[] = [];
    for (const { bytes, unfinished } of upstream.connectionStreams()) {
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
  const servers = await openServers();
  const requestCase = createRequestCase(seed);
  const difference = findDifference(await send(servers, requestCase, RETRY_POLLS[1] ?? 0));
  process.stdout.write(`${describeProblem(requestCase, difference ?? 'no difference')}\n`);
  await closeServers(servers);
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
      'accepted, and read alike by Node': found.accepted,
      forwarded: found.forwarded,
      'compared with third-party servers': found.thirdParty,
      differences: 0,
    });
  }
}
