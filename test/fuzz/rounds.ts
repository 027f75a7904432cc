import { connect, type Socket } from 'node:net';
import { connect as connectTls } from 'node:tls';
import { readTarget } from '../../src/domain/request-target.ts';
import { writeMessage } from '../attack/framing-cases.ts';
import { matrixSettings } from '../attack/matrix-settings.ts';
import { ALICE, type House, type LogLine, openHouse } from '../support/house.ts';
import { rawRequest } from '../support/raw-client.ts';
import { type Recorded, type RecordingUpstream, recordingUpstream } from '../support/recording-upstream.ts';
import { until } from '../support/serve-process.ts';
import type { ForeignParser } from './foreign-parsers.ts';
import { type Batch, LAST, seedIn } from './grammar.ts';

/** A gateway to throw requests at, and a judge who compares what it says it did with what reached the upstream. */
export interface Target {
  readonly token: string;
  readonly house: House;
  /** Sends the batches and tells everything that must not have happened. */
  round(batches: readonly Batch[]): Promise<Judgement>;
  close(): Promise<void>;
}

export interface Judgement {
  readonly wrongs: readonly string[];
  /** Requests the gateway read, and those it let pass. */
  readonly read: number;
  readonly forwarded: number;
}

export interface TargetOptions {
  readonly tls: boolean;
  readonly parsers: readonly ForeignParser[];
}

/** How many connections at once, and for how long one may be silent before it is given up. */
const PLAIN = { connections: 48, quietMs: 150 } as const;
/** Handshakes take their time. */
const OVER_TLS = { connections: 12, quietMs: 500 } as const;
const SETTLE_SECONDS = 30;

export async function openTarget({ tls, parsers }: TargetOptions): Promise<Target> {
  const { connections, quietMs } = tls ? OVER_TLS : PLAIN;
  const upstream = await recordingUpstream();
  const house = await openHouse(
    matrixSettings(upstream.url, (settings) => {
      const certificates = {
        ...settings.certificates,
        forwardedFrom: ['127.0.0.1'],
        forwardedHeader: 'client-cert' as const,
      };
      return tls ? settings : { ...settings, certificates, listen: { port: 0, behindTls: true } };
    }),
  );
  const token = tls ? (await house.grant()).access_token : await grantBehindTls(house);
  const open = (): Socket =>
    tls
      ? connectTls({ host: '127.0.0.1', port: house.port, ca: house.ca.pem, servername: 'localhost' })
      : connect(house.port, '127.0.0.1');

  return {
    token,
    house,
    async round(batches) {
      upstream.reset();
      house.forgetLog();
      let next = 0;
      const work = async (): Promise<void> => {
        for (let batch = batches[next++]; batch !== undefined; batch = batches[next++])
          await send(open(), batch, quietMs);
      };
      await Promise.all(Array.from({ length: Math.min(connections, batches.length) }, work));
      const wrongs = [
        ...(await settled(house, upstream)),
        ...judge(house.log, upstream, batches),
        ...(await compare(parsers, upstream)),
        ...leaks(house.lines, token),
        ...(await stillServes(open, token)),
      ];
      const lines = requestLines(house.log);
      return { wrongs, read: lines.length, forwarded: lines.filter(wasForwarded).length };
    },
    async close() {
      await house.close();
      await upstream.close();
    },
  };
}

/** Behind a front that has ended TLS, the certificate comes in a header. */
async function grantBehindTls({ port, people }: House): Promise<string> {
  const body = JSON.stringify({ client_id: 'report-runner', scope: 'files:read' });
  const headers = [
    'Content-Type: application/json',
    `Content-Length: ${body.length}`,
    `Client-Cert: :${people.alice.der.toString('base64')}:`,
  ];
  const line = 'POST /authsvc/Authorize/Certificate HTTP/1.1';
  const answer = await rawRequest(port, writeMessage({ line, headers, body, token: null }));
  return String((JSON.parse(answer.body) as Record<string, unknown>)['access_token']);
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
const idOf = (request: Recorded): string =>
  request.headers.find(([name]) => name === 'x-request-id')?.[1] ?? 'without an id';

/** Waits until every request the upstream got has ended at the gateway too; tells those that do not end. */
async function settled(house: House, upstream: RecordingUpstream): Promise<string[]> {
  const open = (): Recorded[] => {
    const logged = new Set(requestLines(house.log).map((line) => line['request_id']));
    return upstream.requests.filter((request) => !logged.has(idOf(request)));
  };
  let seen = -1;
  try {
    await until(
      'the gateway is at rest',
      () => {
        const before = seen;
        seen = house.log.length + upstream.bytes().length;
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
function judge(log: readonly LogLine[], upstream: RecordingUpstream, batches: readonly Batch[]): string[] {
  const wrongs: string[] = [];
  const lines = new Map(requestLines(log).map((line) => [line['request_id'], line]));
  const unauthorised: ReadonlySet<number | undefined> = new Set(
    batches.filter(({ authorised }) => !authorised).map(({ seed }) => seed),
  );
  const arrived = new Set<string>();
  for (const request of upstream.requests) {
    const id = idOf(request);
    const told = `${request.method} ${request.target} (${nonceOf(request)})`;
    const line = lines.get(id);
    if (arrived.has(id)) wrongs.push(`twice upstream: ${told}`);
    arrived.add(id);
    if (line === undefined || !wasForwarded(line)) wrongs.push(`upstream, but not let pass: ${told}`);
    else if (line['method'] !== request.method || canonical(String(line['path'])) !== pathOf(request.target))
      wrongs.push(`upstream as ${told}, asked for as ${String(line['method'])} ${String(line['path'])}`);
    if (!isPlain(pathOf(request.target)))
      wrongs.push(`upstream in a form that can be read otherwise: ${told}`);
    const protectedPath = !request.target.startsWith('/public');
    if (request.target.startsWith('/admin')) wrongs.push(`upstream without the scope: ${told}`);
    if (protectedPath && unauthorised.has(seedIn(nonceOf(request))))
      wrongs.push(`upstream without a token: ${told}`);
    wrongs.push(...fieldWrongs(request, protectedPath).map((wrong) => `${wrong}: ${told}`));
  }
  for (const [id, line] of lines) {
    const status = Number(line['status']);
    const told = `${String(line['method'])} ${String(line['path'])} ${status} ${String(line['reason'])}`;
    if (wasForwarded(line) && status === 200 && line['aborted'] !== true && !arrived.has(String(id)))
      wrongs.push(`answered 200, but never upstream: ${told}`);
    if (status >= 500 && status !== 501 && status !== 505) wrongs.push(`our own failure: ${told}`);
  }
  for (const line of log)
    if (line['level'] === 'error') wrongs.push(`an error of ours: ${JSON.stringify(line).slice(0, 500)}`);
  for (const { unfinished } of upstream.streams())
    if (unfinished.split(/\r\nx-request-id: /i).length > 2)
      wrongs.push(`behind an unfinished request came another: ${unfinished.slice(0, 500)}`);
  return wrongs;
}

const nonceOf = ({ headers }: Recorded): string =>
  headers.find(([name]) => name === 'x-nonce')?.[1] ?? 'no nonce';
const pathOf = (target: string): string => target.split('?', 1)[0] ?? '';
/** Judged without the product's own reader: no dot segment, no empty one, no escape of what needs none, in capitals. */
const isPlain = (path: string): boolean =>
  new URL(`http://x${path}`).pathname === path &&
  !/\/\/|%[0-9A-F]?[a-f]|%(?:2[DE]|3\d|4[1-9A-F]|5[\dAF]|6[1-9A-F]|7[\dAE])/.test(path);
/** The log cuts long paths, and writes them as they were sent. */
function canonical(sent: string): string | undefined {
  const reading = readTarget(sent, { method: 'GET', encodedSlash: true, isOwn: () => true });
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

function fieldWrongs({ headers, target }: Recorded, protectedPath: boolean): string[] {
  const wrongs: string[] = [];
  const folded = headers.map(([name, value]) => [name.replace(/[_.]/g, '-'), value] as const);
  const told = OURS.map((name) =>
    folded
      .filter(([given]) => given === name)
      .map(([, value]) => value)
      .join(),
  );
  const expected = protectedPath ? [ALICE, 'report-runner', 'files:read', ''] : ['', '', '', ''];
  if (told.join('|') !== expected.join('|')) wrongs.push(`told who is calling as ${told.join('|')}`);
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
async function compare(parsers: readonly ForeignParser[], upstream: RecordingUpstream): Promise<string[]> {
  const wrongs: string[] = [];
  const ours = upstream.requests
    .map((request) => `${request.method} ${request.target} ${idOf(request)}`)
    .sort();
  // Of the same moment: on a busy machine a request may still come while parsers read.
  const streams = upstream.streams().map(({ bytes, unfinished }) => ({ bytes, unfinished }));
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
  const answer = await new Promise<string>((resolve) => {
    const socket = open();
    let text = '';
    socket.setTimeout(30_000, () => socket.destroy());
    socket.on('data', (part: Buffer) => (text += part.toString('latin1')));
    socket.on('error', () => {}).on('close', () => resolve(text));
    socket.write(writeMessage({ line: 'GET /files/next HTTP/1.1', headers: ['Connection: close'], token }));
  });
  return answer.startsWith('HTTP/1.1 200 ') ? [] : [`the next good request got: ${answer.slice(0, 100)}`];
}
