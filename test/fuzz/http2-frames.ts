import { matrixSettings } from '../attack/matrix-settings.ts';
import { indexed, literal, NEWEST_ENTRY } from '../support/hpack.ts';
import {
  dataFrame,
  FLAG,
  FRAME,
  type FrameClient,
  frame,
  frameClient,
  headersFrame,
  pingFrame,
  priorityFrame,
  resetFrame,
  SETTING,
  settingsFrame,
  windowUpdateFrame,
} from '../support/http2-frames.ts';
import { type RecordedRequest, type RecordingUpstream, startRecordingUpstream } from '../support/recording-upstream.ts';
import { scrape } from '../support/scrape.ts';
import { ALICE, startGateway, type TestGateway } from '../support/test-gateway.ts';
import { until } from '../support/until.ts';
import { mutate, randomBelow } from './mutations.ts';

/**
 * Connections of valid frames, some of which are damaged, against a live gateway. It must respond or close the connection,
 * send no frame that the state of a stream forbids, forward only authorized requests, and never log an error.
 */
export interface FramesResult {
  connections: number;
  /** Frames sent. */
  frames: number;
  /** Sequences of valid frames only. */
  valid: number;
  /** Connections that the gateway closed. */
  closed: number;
  /** Responses received, and requests that the upstream got. */
  responses: number;
  forwarded: number;
}

/** The frames of one connection. */
export interface FrameSequence {
  readonly seed: number;
  readonly frames: readonly Buffer[];
  readonly isValid: boolean;
  /** The streams of complete requests, and the target of each. */
  readonly complete: ReadonlyMap<number, string>;
  /** The streams of all requests. */
  readonly targets: ReadonlyMap<number, string>;
  /** Where the bytes are split. */
  readonly cuts: readonly number[];
}

type Below = (limit: number) => number;

const PARALLEL = 12;
/** Sequences. */
const ROUND = 1_000;
const MAX_ACTIONS = 24;
const METHODS = ['GET', 'GET', 'GET', 'HEAD', 'DELETE', 'OPTIONS', 'POST', 'PUT'];
const FIELDS = [
  literal('accept', '*/*', 'incremental'),
  literal('x-a', 'b', 'never'),
  literal('user-agent', 'fuzz/1.0', 'incremental', true),
  literal('cookie', 'a=b'),
  literal('cookie', 'c=d'),
  literal('te', 'trailers'),
  literal('x-forwarded-user', 'root'),
  literal('forwarded', 'for=6.6.6.6'),
  indexed(16),
  indexed(NEWEST_ENTRY),
];

function createHead(below: Below, method: string, target: string, token: string): Buffer {
  const parts = [
    method === 'GET' ? indexed(2) : literal(2, method),
    indexed(7),
    literal(1, 'localhost:8443', below(2) === 0 ? 'incremental' : 'none'),
    literal(4, target, 'none', below(2) === 0),
  ];
  // An entry that `indexed(NEWEST_ENTRY)` can refer to.
  parts.push(literal('x-first', 'entry', 'incremental'));
  for (let count = below(4); count > 0; count -= 1) parts.push(FIELDS[below(FIELDS.length)] ?? indexed(16));
  if (target.startsWith('/files') || below(4) === 0)
    parts.push(literal(23, `Bearer ${token}`, below(2) === 0 ? 'never' : 'incremental', below(2) === 0));
  return Buffer.concat(parts);
}

/** HEADERS, or HEADERS and CONTINUATION frames. */
function splitHead(below: Below, stream: number, block: Buffer, end: boolean): Buffer[] {
  if (below(5) > 0) return [headersFrame(stream, block, { end })];
  const cut = below(block.length);
  return [
    headersFrame(stream, block.subarray(0, cut), { end, endHeaders: false }),
    frame(FRAME.continuation, FLAG.endHeaders, stream, block.subarray(cut)),
  ];
}

/** `firstStream`: the lowest id that was not used on the connection. */
export function createSequence(seed: number, token: string, firstStream = 1): FrameSequence {
  const below = randomBelow(seed);
  for (let skipped = 0; skipped < 8; skipped += 1) below(2);
  const pick = <T>(list: readonly T[]): T => list[below(list.length)] as T;
  /** Frames that must not be separated. */
  const groups: Buffer[][] = [];
  const complete = new Map<number, string>();
  const targets = new Map<number, string>();
  const uploading = new Set<number>();
  let nextStream = firstStream;
  for (let actions = 1 + below(MAX_ACTIONS); actions > 0; actions -= 1)
    switch (below(14)) {
      case 0:
        groups.push([pingFrame(below(1_000))]);
        break;
      case 1:
        groups.push([windowUpdateFrame(0, 1 + below(100_000))]);
        break;
      case 2:
        if (nextStream > firstStream)
          groups.push([windowUpdateFrame(firstStream + 2 * below((nextStream - firstStream) / 2), 1 + below(50_000))]);
        break;
      case 3:
        groups.push([priorityFrame(1 + 2 * below(20), 0)]);
        break;
      case 4:
        groups.push([
          settingsFrame([
            pick([
              [SETTING.initialWindowSize, 70_000],
              [SETTING.headerTableSize, 0],
              [0x77, 5],
            ] as const),
          ]),
        ]);
        break;
      case 5:
        groups.push([frame(0x20 + below(200), below(256), below(10), Buffer.alloc(below(30)))]);
        break;
      case 6: {
        const stream = pick([...targets.keys(), 0]);
        if (stream === 0) break;
        groups.push([resetFrame(stream, below(14))]);
        complete.delete(stream);
        uploading.delete(stream);
        break;
      }
      case 7:
      case 8: {
        const stream = pick([...uploading, 0]);
        if (stream === 0) break;
        const end = below(2) === 0;
        const body = 'x'.repeat(below(300));
        if (end && below(4) === 0)
          groups.push([dataFrame(stream, body)], splitHead(below, stream, literal('x-trailer', '1'), true));
        else groups.push([dataFrame(stream, body, below(3) === 0 ? { end, padding: below(100) } : { end })]);
        if (!end) break;
        uploading.delete(stream);
        complete.set(stream, targets.get(stream) ?? '');
        break;
      }
      default: {
        const stream = nextStream;
        nextStream += 2;
        const method = pick(METHODS);
        const target = `${pick(['/public/', '/public/', '/files/', '/admin/'])}${seed}.${stream}`;
        const end = !method.startsWith('P') || below(3) === 0;
        targets.set(stream, target);
        groups.push(splitHead(below, stream, createHead(below, method, target, token), end));
        if (end) complete.set(stream, target);
        else uploading.add(stream);
      }
    }
  const isValid = below(4) === 0;
  const frames = isValid ? groups.flat() : damage(groups.flat(), below);
  const length = frames.reduce((sum, { length: size }) => sum + size, 0);
  const cuts = Array.from({ length: below(4) }, () => below(length + 1)).toSorted((a, b) => a - b);
  return { seed, frames, isValid, complete, targets, cuts };
}

/** Changes, repeats, removes, moves or adds up to three frames. */
function damage(original: readonly Buffer[], below: Below): Buffer[] {
  let frames = [...original];
  for (let left = 1 + below(3); left > 0; left -= 1) {
    const at = below(frames.length + 1);
    const found = frames[at];
    // An earlier change may have truncated it.
    const chosen = found !== undefined && found.length >= 9 ? found : pingFrame(1);
    const head = Buffer.from(chosen);
    switch (below(9)) {
      case 0:
        // Any bytes, mostly with a wrong length.
        frames[at] = mutate(chosen, below);
        break;
      case 1:
        // Other bytes of the same length.
        frames[at] = frame(
          chosen[3] ?? 0,
          chosen[4] ?? 0,
          chosen.readUInt32BE(5),
          chosen.length > 9 ? mutate(chosen.subarray(9), below) : Buffer.from([below(256)]),
        );
        break;
      case 2:
        head[3] = below(12);
        frames[at] = head;
        break;
      case 3:
        head[4] = below(256);
        frames[at] = head;
        break;
      case 4:
        head.writeUInt32BE([0, 1, 2, 3, 5, 7, 101, 0x8000_0001, 0x7fff_ffff, 0x3fff_fffd][below(10)] ?? 0, 5);
        frames[at] = head;
        break;
      case 5:
        frames.splice(at, 0, chosen);
        break;
      case 6:
        frames.splice(at, 1);
        break;
      case 7:
        frames = [...frames.slice(at), ...frames.slice(0, at)];
        break;
      default:
        frames.splice(
          at,
          0,
          frame(below(11), below(64), below(12), Buffer.from(Array.from({ length: below(40) }, () => below(256)))),
        );
    }
  }
  return frames;
}

/** What is wrong with the frames that the gateway has sent on this connection. */
function checkReceived({ frames, ...client }: FrameClient, sequence: FrameSequence): string[] {
  const problems: string[] = [];
  const ended = new Set<number>();
  const withHead = new Set<number>();
  for (const { type, flags, stream, payload } of frames) {
    if (payload.length > 16_384) problems.push(`a frame of ${payload.length} bytes`);
    if (type > FRAME.continuation || type === FRAME.push || type === FRAME.priority)
      problems.push(`a frame of type ${type}`);
    const isOfStream = type === FRAME.data || type === FRAME.headers || type === FRAME.reset;
    if (isOfStream !== (stream !== 0) && type !== FRAME.windowUpdate && type !== FRAME.continuation)
      problems.push(`type ${type} on stream ${stream}`);
    if (type === FRAME.windowUpdate && payload.readUInt32BE(0) === 0) problems.push('a WINDOW_UPDATE of zero');
    if (type === FRAME.data || type === FRAME.headers) {
      if (ended.has(stream)) problems.push(`type ${type} after the end of stream ${stream}`);
      if (type === FRAME.data && !withHead.has(stream)) problems.push(`DATA without a head on stream ${stream}`);
      withHead.add(stream);
      if ((flags & FLAG.endStream) !== 0) ended.add(stream);
    }
    if (type === FRAME.reset) ended.add(stream);
  }
  for (const { code } of client.goAways()) if (code > 13) problems.push(`GOAWAY with code ${code}`);
  if (sequence.isValid) problems.push(...checkValid(client, sequence));
  // A damaged frame may have made it the request of another stream.
  const known = new Set(sequence.targets.values());
  for (const [stream, target] of sequence.targets) {
    const [, seen] = /^[A-Z]+ (\S+)$/.exec(client.body(stream)) ?? [];
    if (seen === undefined || client.outcome(stream)?.status !== 200) continue;
    if (sequence.isValid ? seen !== target : known.has(seen) && seen !== target)
      problems.push(`stream ${stream} with ${target} got the response to ${seen}`);
  }
  return problems;
}

function checkValid(client: Omit<FrameClient, 'frames'>, { complete }: FrameSequence): string[] {
  if (client.isOver()) return [`valid frames: the connection was closed with ${client.goAway()}`];
  return [...complete].flatMap(([stream, target]) => {
    const { status } = client.outcome(stream) ?? {};
    const expected = target.startsWith('/admin') ? [401, 403] : [200];
    return status !== undefined && expected.includes(status) && client.endedCleanly(stream)
      ? []
      : [`valid frames: stream ${stream} with ${target} got ${JSON.stringify(client.outcome(stream))}`];
  });
}

/** What is wrong with a request that was forwarded. */
function checkForwarded({ target, headers }: RecordedRequest): string[] {
  const problems: string[] = [];
  const values = (wanted: string): string =>
    headers.flatMap(([name, value]) => (name === wanted ? [value] : [])).join();
  if (target.startsWith('/admin')) problems.push('forwarded without the scope');
  if (values('x-forwarded-user') !== (target.startsWith('/public') ? '' : ALICE))
    problems.push(`the identity is ${values('x-forwarded-user')}`);
  for (const [name, value] of headers) {
    if (!/^[!#$%&'*+.^_`|~0-9a-z-]+$/.test(name) || /[\0-\x08\x0a-\x1f\x7f]/.test(value))
      problems.push(`a malformed field was forwarded: ${JSON.stringify([name, value])}`);
    if (['te', 'expect', 'upgrade', 'keep-alive', 'proxy-connection', 'authorization', 'trailer'].includes(name))
      problems.push(`${name} was forwarded`);
  }
  return problems.map((problem) => `${problem}: ${target} ${JSON.stringify(headers)}`);
}

interface Target {
  readonly gateway: TestGateway;
  readonly upstream: RecordingUpstream;
  readonly token: string;
  close(): Promise<void>;
}

async function startTarget(): Promise<Target> {
  const upstream = await startRecordingUpstream();
  const gateway = await startGateway(
    matrixSettings(upstream.url, (settings) => ({
      ...settings,
      // Long timeouts, so that a busy machine does not look like an upstream failure.
      upstreams: {
        default: { url: upstream.url, timeouts: { connect: '60s', headers: '60s', idle: '60s' } },
      },
      log: { level: 'info' },
    })),
  );
  const { access_token: token } = await gateway.grant();
  return {
    gateway,
    upstream,
    token,
    async close() {
      await gateway.close();
      await upstream.close();
    },
  };
}

/** A client that uses its connection for several sequences, as long as the gateway does not close it. */
interface FuzzedConnection {
  client: FrameClient | undefined;
  /** The sequences sent on the connection. */
  seeds: number[];
  /** One of them was damaged: it may have changed windows, so that valid requests may get no response. */
  isDamaged: boolean;
}

const SEQUENCES_PER_CONNECTION = 8;
/** More streams than a sequence opens, and higher than the ids of damaged frames. */
const STREAMS_PER_SEQUENCE = 200;

async function send(client: FrameClient, sequence: FrameSequence): Promise<void> {
  const bytes = Buffer.concat(sequence.frames);
  let from = 0;
  for (const end of [...sequence.cuts, bytes.length]) {
    if (end === from || client.closed()) continue;
    const piece = bytes.subarray(from, end);
    from = end;
    await new Promise<void>((resolve) => {
      client.socket.write(piece, () => resolve());
    });
  }
  const streams = [...sequence.complete.keys()];
  if (sequence.isValid)
    await client.until(() =>
      streams.every((stream) => client.endedCleanly(stream) || client.resetCode(stream) !== undefined),
    );
}

async function openClient(gateway: TestGateway): Promise<FrameClient> {
  for (let attempt = 0; ; attempt += 1) {
    const client = await frameClient(gateway.port, {
      ca: gateway.ca.pem,
      settings: [[SETTING.enablePush, 0]],
      // It would be sent within a frame that is split.
      acknowledgeSettings: false,
    });
    await client.until(() => client.settings().size > 0);
    // On a busy machine the handshake may take longer than the gateway waits for it.
    if (!client.closed()) return client;
    if (attempt === 3) throw new Error('the gateway closes new connections');
  }
}

async function runOne(target: Target, fuzzed: FuzzedConnection, seed: number, result: FramesResult): Promise<string[]> {
  const { gateway, token } = target;
  if (fuzzed.client === undefined) {
    fuzzed.client = await openClient(gateway);
    fuzzed.seeds = [];
    fuzzed.isDamaged = false;
    result.connections += 1;
  }
  const { client, seeds } = fuzzed;
  const created = createSequence(seed, token, 1 + seeds.length * STREAMS_PER_SEQUENCE);
  fuzzed.isDamaged ||= !created.isValid;
  const sequence: FrameSequence = { ...created, isValid: !fuzzed.isDamaged };
  seeds.push(seed);
  let isOver = true;
  try {
    await send(client, sequence);
    // Otherwise the last frame announces more bytes than follow.
    const isComplete = hasCompleteFrames(Buffer.concat(sequence.frames));
    if (isComplete) await client.waitForPong();
    isOver = !isComplete || client.isOver() || seeds.length === SEQUENCES_PER_CONNECTION;
    result.frames += sequence.frames.length;
    result.valid += sequence.isValid ? 1 : 0;
    result.closed += client.isOver() ? 1 : 0;
    for (const stream of sequence.targets.keys())
      result.responses += client.outcome(stream)?.status === undefined ? 0 : 1;
    return checkReceived(client, sequence).map((problem) => `sequences ${seeds.join()}: ${problem}`);
  } catch (error) {
    isOver = true;
    return [`sequences ${seeds.join()}: ${(error as Error).message}`];
  } finally {
    if (isOver) {
      client.destroy();
      fuzzed.client = undefined;
    }
  }
}

/** Whether a PING after these bytes is read as such. */
function hasCompleteFrames(bytes: Buffer): boolean {
  let at = 0;
  while (at + 9 <= bytes.length) {
    const isPartialHead =
      [FRAME.headers, FRAME.continuation].includes((bytes[at + 3] ?? 0) as never) &&
      ((bytes[at + 4] ?? 0) & FLAG.endHeaders) === 0;
    at += 9 + bytes.readUIntBE(at, 3);
    if (at === bytes.length && isPartialHead) return true;
  }
  return at === bytes.length;
}

export interface FramesOptions {
  /** Frames to send, approximately. */
  readonly count: number;
  readonly seed: number;
  readonly log?: (line: string) => void;
}

/** Throws after the first round with a problem. */
export async function fuzzFrames({ count, seed, log = () => {} }: FramesOptions): Promise<FramesResult> {
  const target = await startTarget();
  const { gateway, upstream } = target;
  const result: FramesResult = { connections: 0, frames: 0, valid: 0, closed: 0, responses: 0, forwarded: 0 };
  try {
    for (let next = seed * 1_000_003; result.frames < count; ) {
      const end = next + ROUND;
      const problems: string[] = [];
      const run = async (): Promise<void> => {
        const fuzzed: FuzzedConnection = { client: undefined, seeds: [], isDamaged: false };
        while (next < end && result.frames < count) problems.push(...(await runOne(target, fuzzed, next++, result)));
        fuzzed.client?.destroy();
      };
      await Promise.all(Array.from({ length: PARALLEL }, run));
      await until('no request is active', async () => {
        const metrics = await scrape(gateway.adminPort);
        return metrics.value('gatehouse_http_requests_in_flight') === 0;
      });
      problems.push(...upstream.requests.flatMap(checkForwarded));
      for (const line of gateway.log)
        if (line['level'] === 'error') problems.push(`an error was logged: ${JSON.stringify(line).slice(0, 1_000)}`);
      if (gateway.logLines.some((line) => line.includes(target.token))) problems.push('the token is in the log');
      if (problems.length > 0)
        throw new Error(`seed ${seed}: ${problems.length} problems, such as\n  ${problems.slice(0, 6).join('\n  ')}`);
      result.forwarded += upstream.requests.length;
      upstream.reset();
      gateway.clearLog();
      log(
        `${result.frames} frames on ${result.connections} connections, ${result.closed} of them closed; ${result.responses} responses, ${result.forwarded} forwarded; ${Math.round(process.memoryUsage().rss / 1_048_576)} MB`,
      );
    }
    return result;
  } finally {
    await target.close();
  }
}
