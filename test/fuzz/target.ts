import { connect, type Socket } from 'node:net';
import { connect as connectTls } from 'node:tls';
import { parseTarget } from '../../src/domain/request-target.ts';
import { writeMessage } from '../attack/framing-cases.ts';
import { matrixSettings } from '../attack/matrix-settings.ts';
import { rawRequest } from '../support/raw-client.ts';
import {
  type RecordedRequest,
  type RecordingUpstream,
  startRecordingUpstream,
} from '../support/recording-upstream.ts';
import { until } from '../support/serve-process.ts';
import { ALICE, type LogLine, startGateway, type TestGateway } from '../support/test-gateway.ts';
import { type Batch, LAST, seedIn } from './grammar.ts';
import type { ThirdPartyParser } from './third-party-parsers.ts';

/** A gateway to throw requests at, and a judge who compares what it says it did with what reached the upstream. */
export interface FuzzTarget {
  readonly token: string;
  readonly gateway: TestGateway;
  /** Sends the batches and tells everything that must not have happened. */
  runRound(batches: readonly Batch[]): Promise<RoundResult>;
  close(): Promise<void>;
}

export interface RoundResult {
  readonly problems: readonly string[];
  /** Requests the gateway read, and those it let pass. */
  readonly read: number;
  readonly forwarded: number;
}

export interface TargetOptions {
  readonly tls: boolean;
  readonly parsers: readonly ThirdPartyParser[];
}

/** How many connections at once, and for how long one may be silent before it is given up. */
const PLAIN = { connections: 48, quietMs: 150 } as const;
/** Handshakes take their time. */
const OVER_TLS = { connections: 12, quietMs: 500 } as const;
const SETTLE_SECONDS = 30;

export async function startTarget({ tls, parsers }: TargetOptions): Promise<FuzzTarget> {
  const { connections, quietMs } = tls ? OVER_TLS : PLAIN;
  const upstream = await startRecordingUpstream();
  const gateway = await startGateway(
    matrixSettings(upstream.url, (settings) => {
      const certificates = {
        ...settings.certificates,
        forwardedFrom: ['127.0.0.1'],
        forwardedHeader: 'client-cert' as const,
      };
      return tls ? settings : { ...settings, certificates, listen: { port: 0, behindTls: true } };
    }),
  );
  const token = tls ? (await gateway.grant()).access_token : await grantBehindTls(gateway);
  const open = (): Socket =>
    tls
      ? connectTls({ host: '127.0.0.1', port: gateway.port, ca: gateway.ca.pem, servername: 'localhost' })
      : connect(gateway.port, '127.0.0.1');

  return {
    token,
    gateway,
    async runRound(batches) {
      upstream.reset();
      gateway.clearLog();
      let next = 0;
      const work = async (): Promise<void> => {
        for (let batch = batches[next++]; batch !== undefined; batch = batches[next++])
          await send(open(), batch, quietMs);
      };
      await Promise.all(Array.from({ length: Math.min(connections, batches.length) }, work));
      const problems = [
        ...(await waitUntilSettled(gateway, upstream)),
        ...checkRound(gateway.log, upstream, batches),
        ...(await compare(parsers, upstream)),
        ...leaks(gateway.logLines, token),
        ...(await stillServes(open, token)),
      ];
      const lines = requestLines(gateway.log);
      return { problems, read: lines.length, forwarded: lines.filter(wasForwarded).length };
    },
    async close() {
      await gateway.close();
      await upstream.close();
    },
  };
}

/** Behind a front that has ended TLS, the certificate comes in a header. */
async function grantBehindTls({ port, users }: TestGateway): Promise<string> {
  const body = JSON.stringify({ client_id: 'report-runner', scope: 'files:read' });
  const headers = [
    'Content-Type: application/json',
    `Content-Length: ${body.length}`,
    `Client-Cert: :${users.alice.der.toString('base64')}:`,
  ];
  const line = 'POST /authsvc/Authorize/Certificate HTTP/1.1';
  const response = await rawRequest(port, writeMessage({ line, headers, body, token: null }));
  return String((JSON.parse(response.body) as Record<string, unknown>)['access_token']);
}

/** One connection: all messages of the batch, a last good one, and whatever comes back until it ends or falls silent. */
function send(socket: Socket, { messages, pieces }: Batch, quietMs: number): Promise<void> {
  const bytes = Buffer.concat([...messages, LAST]);
  const size = Math.ceil(bytes.length / pieces);
  return new Promise((resolve) => {
    socket.setNoDelay(true).setTimeout(quietMs, () => socket.destroy());
    socket.on('error', () => {}).on('close', () => resolve());
    socket.resume();
    const write = (at: number): void => {
      if (socket.destroyed || at >= bytes.length) return;
      socket.write(bytes.subarray(at, at + size), () => setImmediate(write, at + size));
    };
    write(0);
  });
}

const requestLines = (log: readonly LogLine[]): LogLine[] => log.filter(({ event }) => event === 'request');
const wasForwarded = ({ decision }: LogLine): boolean => decision === 'forwarded';
const idOf = (request: RecordedRequest): string =>
  request.headers.find(([name]) => name === 'x-request-id')?.[1] ?? 'without an id';

/** Waits until every request the upstream got has ended at the gateway too; tells those that do not end. */
async function waitUntilSettled(gateway: TestGateway, upstream: RecordingUpstream): Promise<string[]> {
  const open = (): RecordedRequest[] => {
    const logged = new Set(requestLines(gateway.log).map((line) => line['request_id']));
    return upstream.requests.filter((request) => !logged.has(idOf(request)));
  };
  let seen = -1;
  try {
    await until(
      'the gateway is at rest',
      () => {
        const before = seen;
        seen = gateway.log.length + upstream.bytes().length;
        return seen === before && open().length === 0;
      },
      SETTLE_SECONDS,
    );
    return [];
  } catch {
    return open().map((request) => `never ended: ${request.method} ${request.target} (${nonceOf(request)})`);
  }
}

/** What the log says was let pass is what arrived: no more, no less, nothing else, and in nobody else's name. */
function checkRound(
  log: readonly LogLine[],
  upstream: RecordingUpstream,
  batches: readonly Batch[],
): string[] {
  const wrongs: string[] = [];
  const lines = new Map(requestLines(log).map((line) => [line['request_id'], line]));
  const unauthorised: ReadonlySet<number | undefined> = new Set(
    batches.filter(({ authorised }) => !authorised).map(({ seed }) => seed),
  );
  const arrived = new Set<string>();
  for (const request of upstream.requests) {
    const id = idOf(request);
    const reported = `${request.method} ${request.target} (${nonceOf(request)})`;
    const line = lines.get(id);
    if (arrived.has(id)) wrongs.push(`twice upstream: ${reported}`);
    arrived.add(id);
    if (line === undefined || !wasForwarded(line)) wrongs.push(`upstream, but not let pass: ${reported}`);
    else if (line['method'] !== request.method || canonical(String(line['path'])) !== pathOf(request.target))
      wrongs.push(`upstream as ${reported}, asked for as ${String(line['method'])} ${String(line['path'])}`);
    if (!isPlain(pathOf(request.target)))
      wrongs.push(`upstream in a form that can be read otherwise: ${reported}`);
    const protectedPath = !request.target.startsWith('/public');
    if (request.target.startsWith('/admin')) wrongs.push(`upstream without the scope: ${reported}`);
    if (protectedPath && unauthorised.has(seedIn(nonceOf(request))))
      wrongs.push(`upstream without a token: ${reported}`);
    wrongs.push(...headerProblems(request, protectedPath).map((wrong) => `${wrong}: ${reported}`));
  }
  for (const [id, line] of lines) {
    const status = Number(line['status']);
    const reported = `${String(line['method'])} ${String(line['path'])} ${status} ${String(line['reason'])}`;
    if (wasForwarded(line) && status === 200 && line['aborted'] !== true && !arrived.has(String(id)))
      wrongs.push(`answered 200, but never upstream: ${reported}`);
    if (status >= 500 && status !== 501 && status !== 505) wrongs.push(`our own failure: ${reported}`);
  }
  for (const line of log)
    if (line['level'] === 'error') wrongs.push(`an error of ours: ${JSON.stringify(line).slice(0, 500)}`);
  for (const { unfinished } of upstream.connectionStreams())
    if (unfinished.split(/\r\nx-request-id: /i).length > 2)
      wrongs.push(`behind an unfinished request came another: ${unfinished.slice(0, 500)}`);
  return wrongs;
}

const nonceOf = ({ headers }: RecordedRequest): string =>
  headers.find(([name]) => name === 'x-nonce')?.[1] ?? 'no nonce';
const pathOf = (target: string): string => target.split('?', 1)[0] ?? '';
/** Judged without the product's own reader: no dot segment, no empty one, no escape of what needs none, in capitals. */
const isPlain = (path: string): boolean =>
  new URL(`http://x${path}`).pathname === path &&
  !/\/\/|%[0-9A-F]?[a-f]|%(?:2[DE]|3\d|4[1-9A-F]|5[\dAF]|6[1-9A-F]|7[\dAE])/.test(path);
/** The log cuts long paths, and writes them as they were sent. */
function canonical(sent: string): string | undefined {
  const reading = parseTarget(sent, { method: 'GET', encodedSlash: true, isServedAuthority: () => true });
  return reading.kind === 'target' ? reading.target.path : undefined;
}

const OURS = ['x-forwarded-user', 'x-forwarded-client-id', 'x-forwarded-scope', 'x-gatehouse-identity'];
const ENDS_HERE = [
  'te',
  'trailer',
  'keep-alive',
  'proxy-connection',
  'expect',
  'http2-settings',
  'authorization',
];

function headerProblems({ headers, target }: RecordedRequest, protectedPath: boolean): string[] {
  const wrongs: string[] = [];
  const folded = headers.map(([name, value]) => [name.replace(/[_.]/g, '-'), value] as const);
  const reported = OURS.map((name) =>
    folded
      .filter(([given]) => given === name)
      .map(([, value]) => value)
      .join(),
  );
  const expected = protectedPath ? [ALICE, 'report-runner', 'files:read', ''] : ['', '', '', ''];
  if (reported.join('|') !== expected.join('|')) wrongs.push(`told who is calling as ${reported.join('|')}`);
  for (const [name, value] of folded) {
    if (ENDS_HERE.includes(name)) wrongs.push(`${name} went through`);
    if (name === 'upgrade' && target !== '/socket') wrongs.push('an upgrade went through');
    if (name === 'transfer-encoding' && value !== 'chunked')
      wrongs.push(`a transfer coding went through: ${value}`);
  }
  const framings = headers.filter(([name]) => name === 'content-length' || name === 'transfer-encoding');
  if (framings.length > 1) wrongs.push('framed twice');
  return wrongs;
}

/** Each connection's bytes, read again by servers of others: the same requests, in the same order. */
async function compare(parsers: readonly ThirdPartyParser[], upstream: RecordingUpstream): Promise<string[]> {
  const wrongs: string[] = [];
  const ours = upstream.requests
    .map((request) => `${request.method} ${request.target} ${idOf(request)}`)
    .sort();
  // Of the same moment: on a busy machine a request may still come while parsers read.
  const streams = upstream.connectionStreams().map(({ bytes, unfinished }) => ({ bytes, unfinished }));
  for (const parser of parsers) {
    const theirs: string[] = [];
    for (const { bytes, unfinished } of streams) {
      const whole = bytes.slice(0, bytes.length - unfinished.length);
      if (whole !== '') theirs.push(...(await parser.read(whole)));
    }
    theirs.sort();
    const at = ours.findIndex((line, index) => line !== theirs[index]);
    if (ours.length !== theirs.length || at >= 0)
      wrongs.push(
        `${parser.name} reads ${theirs.length} requests where we read ${ours.length}; the first other one is "${theirs[at]}" for our "${ours[at]}"`,
      );
  }
  return wrongs;
}

const leaks = (lines: readonly string[], token: string): string[] =>
  lines
    .filter((line) => line.includes(token))
    .map((line) => `the token is in the log: ${line.slice(0, 200)}`);

async function stillServes(open: () => Socket, token: string): Promise<string[]> {
  const response = await new Promise<string>((resolve) => {
    const socket = open();
    let text = '';
    socket.setTimeout(30_000, () => socket.destroy());
    socket.on('data', (part: Buffer) => (text += part.toString('latin1')));
    socket.on('error', () => {}).on('close', () => resolve(text));
    socket.write(writeMessage({ line: 'GET /files/next HTTP/1.1', headers: ['Connection: close'], token }));
  });
  return response.startsWith('HTTP/1.1 200 ') ? [] : [`the next good request got: ${response.slice(0, 100)}`];
}
