import { connect, type Socket } from 'node:net';
import { connect as connectTls } from 'node:tls';
import { parseTarget } from '../../src/domain/request-target.ts';
import { writeMessage } from '../attack/framing-cases.ts';
import { matrixSettings } from '../attack/matrix-settings.ts';
import { rawRequest } from '../support/raw-client.ts';
import { type RecordedRequest, type RecordingUpstream, startRecordingUpstream } from '../support/recording-upstream.ts';
import { until } from '../support/serve-process.ts';
import { ALICE, type LogLine, startGateway, type TestGateway } from '../support/test-gateway.ts';
import { type Batch, FINAL_REQUEST, parseNonce } from './grammar.ts';
import type { ThirdPartyParser } from './third-party-parsers.ts';

/** A gateway under test, with checks that compare its log with what reached the upstream. */
export interface FuzzTarget {
  readonly token: string;
  readonly gateway: TestGateway;
  /** Sends the batches and reports all problems. */
  runRound(batches: readonly Batch[]): Promise<RoundResult>;
  close(): Promise<void>;
}

export interface RoundResult {
  readonly problems: readonly string[];
  /** Requests the gateway parsed, and those it forwarded. */
  readonly read: number;
  readonly forwarded: number;
}

export interface TargetOptions {
  readonly tls: boolean;
  readonly parsers: readonly ThirdPartyParser[];
}

/** Concurrent connections, and how long one may be silent, after everything was sent, before it is closed. */
const PLAIN = { connections: 48, quietMs: 150 } as const;
const OVER_TLS = { connections: 12, quietMs: 500 } as const;
/** For the handshake, and for sending. */
const SEND_MS = 30_000;
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
      const runClient = async (): Promise<void> => {
        for (let batch = batches[next++]; batch !== undefined; batch = batches[next++])
          await send(open(), batch, quietMs);
      };
      await Promise.all(Array.from({ length: Math.min(connections, batches.length) }, runClient));
      const problems = [
        ...(await waitUntilSettled(gateway, upstream)),
        ...checkRound(gateway.log, upstream, batches),
        ...(await compare(parsers, upstream)),
        ...findLeaks(gateway.logLines, token),
        ...(await checkStillServing(open, token)),
      ];
      const lines = getRequestLines(gateway.log);
      return { problems, read: lines.length, forwarded: lines.filter(wasForwarded).length };
    },
    async close() {
      await gateway.close();
      await upstream.close();
    },
  };
}

/** Behind a front proxy that terminates TLS, the certificate is sent in a header. */
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

/** Sends a batch and a final valid request on one connection, and reads until it is closed or silent. */
function send(socket: Socket, { messages, pieces }: Batch, quietMs: number): Promise<void> {
  const bytes = Buffer.concat([...messages, FINAL_REQUEST]);
  const size = Math.ceil(bytes.length / pieces);
  return new Promise((resolve) => {
    socket.setNoDelay(true).setTimeout(SEND_MS, () => socket.destroy());
    socket.on('error', () => {}).on('close', () => resolve());
    socket.resume();
    const write = (at: number): void => {
      if (socket.destroyed) return;
      if (at >= bytes.length) return void socket.setTimeout(quietMs);
      socket.write(bytes.subarray(at, at + size), () => setImmediate(write, at + size));
    };
    write(0);
  });
}

const getRequestLines = (log: readonly LogLine[]): LogLine[] => log.filter(({ event }) => event === 'request');
const wasForwarded = ({ decision }: LogLine): boolean => decision === 'forwarded';
const getRequestId = (request: RecordedRequest): string =>
  request.headers.find(([name]) => name === 'x-request-id')?.[1] ?? 'without an id';

/** Waits until the gateway has logged every request that the upstream received; reports those that do not end. */
async function waitUntilSettled(gateway: TestGateway, upstream: RecordingUpstream): Promise<string[]> {
  const open = (): RecordedRequest[] => {
    const logged = new Set(getRequestLines(gateway.log).map((line) => line['request_id']));
    return upstream.requests.filter((request) => !logged.has(getRequestId(request)));
  };
  let seen = -1;
  try {
    await until(
      'the gateway is idle',
      () => {
        const before = seen;
        seen = gateway.log.length + upstream.bytes().length;
        return seen === before && open().length === 0;
      },
      SETTLE_SECONDS,
    );
    return [];
  } catch {
    return open().map((request) => `never ended: ${request.method} ${request.target} (${getNonce(request)})`);
  }
}

/** Expects that the upstream received exactly the requests that the log reports as forwarded, with the right identity. */
function checkRound(log: readonly LogLine[], upstream: RecordingUpstream, batches: readonly Batch[]): string[] {
  const problems: string[] = [];
  const lines = new Map(getRequestLines(log).map((line) => [line['request_id'], line]));
  const unauthorised: ReadonlySet<number | undefined> = new Set(
    batches.filter(({ authorised }) => !authorised).map(({ seed }) => seed),
  );
  const arrived = new Set<string>();
  for (const request of upstream.requests) {
    const id = getRequestId(request);
    const summary = `${request.method} ${request.target} (${getNonce(request)})`;
    const line = lines.get(id);
    if (arrived.has(id)) problems.push(`forwarded twice: ${summary}`);
    arrived.add(id);
    if (line === undefined || !wasForwarded(line)) problems.push(`forwarded, but not authorized: ${summary}`);
    else if (line['method'] !== request.method || parseCanonicalPath(String(line['path'])) !== getPath(request.target))
      problems.push(`forwarded as ${summary}, requested as ${String(line['method'])} ${String(line['path'])}`);
    if (!isCanonicalPath(getPath(request.target))) problems.push(`forwarded in an ambiguous form: ${summary}`);
    const protectedPath = !request.target.startsWith('/public');
    if (request.target.startsWith('/admin')) problems.push(`forwarded without the scope: ${summary}`);
    if (protectedPath && unauthorised.has(parseNonce(getNonce(request))))
      problems.push(`forwarded without a token: ${summary}`);
    problems.push(...headerProblems(request, protectedPath).map((wrong) => `${wrong}: ${summary}`));
  }
  for (const [id, line] of lines) {
    const status = Number(line['status']);
    const summary = `${String(line['method'])} ${String(line['path'])} ${status} ${String(line['reason'])}`;
    if (wasForwarded(line) && status === 200 && line['aborted'] !== true && !arrived.has(String(id)))
      problems.push(`status 200, but never forwarded: ${summary}`);
    if (status >= 500 && status !== 501 && status !== 505) problems.push(`internal error: ${summary}`);
  }
  for (const line of log)
    if (line['level'] === 'error') problems.push(`an error was logged: ${JSON.stringify(line).slice(0, 500)}`);
  for (const { unfinished } of upstream.connectionStreams())
    if (unfinished.split(/\r\nx-request-id: /i).length > 2)
      problems.push(`a request follows an unfinished one: ${unfinished.slice(0, 500)}`);
  return problems;
}

const getNonce = ({ headers }: RecordedRequest): string =>
  headers.find(([name]) => name === 'x-nonce')?.[1] ?? 'no nonce';
const getPath = (target: string): string => target.split('?', 1)[0] ?? '';
/** Checked without gatehouse's own parser: no dot or empty segment, no unnecessary escape, and upper-case escapes. */
const isCanonicalPath = (path: string): boolean =>
  new URL(`http://x${path}`).pathname === path &&
  !/\/\/|%[0-9A-F]?[a-f]|%(?:2[DE]|3\d|4[1-9A-F]|5[\dAF]|6[1-9A-F]|7[\dAE])/.test(path);
/** The log contains paths as they were sent. */
function parseCanonicalPath(sent: string): string | undefined {
  const parsed = parseTarget(sent, { method: 'GET', encodedSlash: true, isServedAuthority: () => true });
  return parsed.kind === 'target' ? parsed.target.path : undefined;
}

const IDENTITY_HEADERS = ['x-forwarded-user', 'x-forwarded-client-id', 'x-forwarded-scope', 'x-gatehouse-identity'];
const NOT_FORWARDED = ['te', 'trailer', 'keep-alive', 'proxy-connection', 'expect', 'http2-settings', 'authorization'];

function headerProblems({ headers, target }: RecordedRequest, protectedPath: boolean): string[] {
  const problems: string[] = [];
  const folded = headers.map(([name, value]) => [name.replace(/[_.]/g, '-'), value] as const);
  const identityValues = IDENTITY_HEADERS.map((name) =>
    folded
      .filter(([given]) => given === name)
      .map(([, value]) => value)
      .join(),
  );
  const expected = protectedPath ? [ALICE, 'report-runner', 'files:read', ''] : ['', '', '', ''];
  if (identityValues.join('|') !== expected.join('|'))
    problems.push(`identity headers are ${identityValues.join('|')}`);
  for (const [name, value] of folded) {
    if (NOT_FORWARDED.includes(name)) problems.push(`${name} was forwarded`);
    if (name === 'upgrade' && target !== '/socket') problems.push('an upgrade was forwarded');
    if (name === 'transfer-encoding' && value !== 'chunked') problems.push(`a transfer coding was forwarded: ${value}`);
  }
  const framings = headers.filter(([name]) => name === 'content-length' || name === 'transfer-encoding');
  if (framings.length > 1) problems.push('framed twice');
  return problems;
}

/** Expects that third-party servers parse the same requests from the bytes of each connection. */
async function compare(parsers: readonly ThirdPartyParser[], upstream: RecordingUpstream): Promise<string[]> {
  const problems: string[] = [];
  const expected = upstream.requests
    .map((request) => `${request.method} ${request.target} ${getRequestId(request)}`)
    .sort();
  // A snapshot: on a busy machine a request may still arrive while the parsers run.
  const streams = upstream.connectionStreams().map(({ bytes, unfinished }) => ({ bytes, unfinished }));
  for (const parser of parsers) {
    const parsedLines: string[] = [];
    for (const { bytes, unfinished } of streams) {
      const finished = bytes.slice(0, bytes.length - unfinished.length);
      if (finished !== '') parsedLines.push(...(await parser.read(finished)));
    }
    parsedLines.sort();
    const at = expected.findIndex((line, index) => line !== parsedLines[index]);
    if (expected.length !== parsedLines.length || at >= 0)
      problems.push(
        `${parser.name} parses ${parsedLines.length} requests where the upstream got ${expected.length}; the first difference is "${parsedLines[at]}" instead of "${expected[at]}"`,
      );
  }
  return problems;
}

const findLeaks = (lines: readonly string[], token: string): string[] =>
  lines.filter((line) => line.includes(token)).map((line) => `the token is in the log: ${line.slice(0, 200)}`);

async function checkStillServing(open: () => Socket, token: string): Promise<string[]> {
  const response = await new Promise<string>((resolve) => {
    const socket = open();
    let text = '';
    socket.setTimeout(30_000, () => socket.destroy());
    socket.on('data', (part: Buffer) => (text += part.toString('latin1')));
    socket.on('error', () => {}).on('close', () => resolve(text));
    socket.write(writeMessage({ line: 'GET /files/next HTTP/1.1', headers: ['Connection: close'], token }));
  });
  return response.startsWith('HTTP/1.1 200 ') ? [] : [`the next valid request got: ${response.slice(0, 100)}`];
}
