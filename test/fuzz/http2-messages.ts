import { METHODS as METHODS_OF_NODE } from 'node:http';
import { createSecureServer, type ServerHttp2Stream } from 'node:http2';
import { connect, type TLSSocket } from 'node:tls';
import { CODE, dataFrame, type Field, type FrameClient, frameClient } from '../support/http2-frames.ts';
import { createCa, type IssuedCertificate, issueServer } from '../support/pki.ts';
import { type ProxyHarness, RULES, rule, startProxyHarness } from '../support/proxy-harness.ts';
import { isCompleteResponse, parseRawResponse } from '../support/raw-client.ts';
import { type RecordingUpstream, startRecordingUpstream } from '../support/recording-upstream.ts';
import { listenTcp } from '../support/tcp-server.ts';
import { createEventWaiter } from '../support/until.ts';
import { randomBelow } from './mutations.ts';
import { normalizeForwarded } from './parsed-request.ts';

/**
 * The same message over HTTP/2 and over HTTP/1.1: the decision and the bytes that reach the upstream are the same. A message
 * that is forwarded has the same method, path and body for Node's HTTP/2 server. A message that RFC 9113 calls malformed is
 * rejected, whatever Node's server does.
 */
export interface MessagesResult {
  messages: number;
  forwarded: number;
  rejected: number;
  malformed: number;
  /** Messages that could be sent over HTTP/1.1, too. */
  overHttp1: number;
}

export interface Message {
  readonly seed: number;
  /** With pseudo-header fields. */
  readonly fields: readonly Field[];
  /** Undefined if the header section ends the stream. */
  readonly body: string | undefined;
}

interface Outcome {
  readonly status?: number | undefined;
  readonly reset?: number | undefined;
  /** The requests that the upstream received. */
  readonly seen: readonly string[];
}

type Below = (limit: number) => number;

const PARALLEL = 8;
const METHODS = ['GET', 'GET', 'GET', 'POST', 'POST', 'PUT', 'HEAD', 'DELETE', 'PATCH', 'OPTIONS'];
const ODD_METHODS = ['get', 'FOO', 'PROPFIND', 'TRACE', 'CONNECT', 'G T', 'GET\0', '', 'X'.repeat(33), 'M-SEARCH', 'É'];
const PATHS = [
  '/files/1',
  '/files/a%20b',
  '/files/x?y=z&%2e',
  '/public/a',
  '/public/',
  '/admin/x',
  '/nowhere',
  '/other/1',
  '/files/A/',
];
const ODD_PATHS = [
  '*',
  '',
  'files/1',
  '//files/1',
  '/files/../admin/x',
  '/files/%2e%2e/x',
  '/files/a%2Fb',
  '/files//x',
  '/files/é',
  '/files/a b',
  '/files/\t',
  '/files/#x',
  '/files/1\r\nX: y',
  'https://gate.test/files/1',
  '/files/\\1',
  '/files/%zz',
  '/files/"<>',
  `/public/${'a'.repeat(9_000)}`,
];
const AUTHORITIES = ['localhost:8443', 'localhost:8443', 'localhost:8443', 'LOCALHOST:8443', 'gate.test'];
const ODD_AUTHORITIES = [
  '',
  'a@localhost:8443',
  'localhost:8443/x',
  'localhost:8443, b',
  'a b',
  'x\r\ny',
  '[::1]:8443',
  'localhost:99999',
  'é',
];
const NAMES = [
  'accept',
  'x-a',
  'x_b',
  'user-agent',
  'cookie',
  'cookie',
  'x-forwarded-for',
  'x-real-ip',
  'content-type',
  'traceparent',
  'forwarded',
  'range',
  'if-none-match',
  'via',
  'origin',
  'x-request-id',
];
const ODD_NAMES = [
  'X-Upper',
  '',
  'a b',
  'a:b',
  'x\r\ny',
  'é',
  'connection',
  'keep-alive',
  'proxy-connection',
  'transfer-encoding',
  'upgrade',
  'http2-settings',
  'te',
  'expect',
  ':path',
  ':status',
  ':protocol',
  ':unknown',
  'host',
  'content-length',
  'trailer',
  'x.forwarded.user',
  'x+forwarded+user',
  'content_length',
  'authorization',
];
const VALUES = [
  '*/*',
  'a b',
  'a=b; __Host-gatehouse=x; c=d',
  '6.6.6.6',
  '"x"',
  'bytes=0-1',
  '',
  'trailers',
  'chunked',
  ',',
  `00-${'1'.repeat(32)}-${'2'.repeat(16)}-01`,
  'x'.repeat(300),
];
const ODD_VALUES = [
  ' a',
  'a ',
  'a\tb',
  '\t',
  'a\r\nb: c',
  'a\0b',
  '\x7f',
  '\x80\xff',
  'close',
  '100-continue',
  '5',
  '0',
  '-1',
  '5, 5',
  '1e1',
  'localhost:8443',
  'evil.test',
  'x'.repeat(9_000),
];

export function createMessage(seed: number): Message {
  const below = randomBelow(seed);
  for (let skipped = 0; skipped < 8; skipped += 1) below(2);
  const pick = <T>(list: readonly T[]): T => list[below(list.length)] as T;
  const oddPart = below(3) === 0 ? below(8) : -1;
  const method = pick(oddPart === 0 ? ODD_METHODS : METHODS);
  const body = method.startsWith('P') || below(24) === 0 ? 'b'.repeat(pick([0, 1, 5, 5, 300, 9_000])) : undefined;
  const fields: Field[] = [
    [':method', method],
    [':scheme', oddPart === 1 ? pick(['http', 'ftp', '', 'HTTPS', 'h t']) : 'https'],
    ...(below(20) === 0
      ? []
      : ([[':authority', pick(oddPart === 2 ? ODD_AUTHORITIES : AUTHORITIES)]] satisfies Field[])),
    [':path', pick(oddPart === 3 ? ODD_PATHS : PATHS)],
  ];
  if (oddPart === 4) damagePseudoFields(fields, below);
  if (below(8) > 0)
    fields.push(['authorization', pick(['Bearer A', 'Bearer A', 'Bearer A', 'bearer A', 'Bearer B', 'Basic A'])]);
  if (body !== undefined && below(2) === 0) fields.push(['content-length', String(body.length)]);
  if (below(20) === 0) fields.push(['host', pick([...AUTHORITIES, ...ODD_AUTHORITIES])]);
  for (let count = below(4); count > 0; count -= 1) fields.push([pick(NAMES), pick(VALUES)]);
  if (oddPart >= 5)
    fields.push([
      pick(oddPart === 5 ? ODD_NAMES : NAMES),
      pick(oddPart === 6 ? ODD_VALUES : [...VALUES, ...ODD_VALUES]),
    ]);
  while (below(4) === 0) {
    // Another order of the fields that are not pseudo-header fields.
    const first = fields.findIndex(([name]) => !name.startsWith(':'));
    if (first < 0) break;
    const [moved] = fields.splice(first + below(fields.length - first), 1);
    if (moved !== undefined) fields.splice(first + below(fields.length - first + 1), 0, moved);
  }
  fields.push(['x-nonce', String(seed)]);
  return { seed, fields, body };
}

/** Removes, repeats or moves one. */
function damagePseudoFields(fields: Field[], below: Below): void {
  const at = below(fields.length);
  const [name, value] = fields[at] ?? [':path', '/files/1'];
  switch (below(3)) {
    case 0:
      fields.splice(at, 1);
      break;
    case 1:
      fields.splice(below(fields.length), 0, [name, below(2) === 0 ? value : '/admin/x']);
      break;
    default:
      fields.splice(at, 1);
      fields.push(['x-before', '1'], [name, value]);
  }
}

const PSEUDO = [':method', ':scheme', ':authority', ':path'];
const CONNECTION_SPECIFIC = ['connection', 'keep-alive', 'proxy-connection', 'transfer-encoding', 'upgrade'];
const TOKEN = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/;

/** RFC 9113 §8.1.1, §8.2 and §8.3, and RFC 9110 §5.5: such a message must not be processed. */
export function isMalformed({ fields, body = '' }: Message): boolean {
  const names = fields.map(([name]) => name);
  const pseudo = names.filter((name) => name.startsWith(':'));
  const lengths = fields.filter(([name]) => name === 'content-length').map(([, value]) => value);
  return (
    pseudo.some((name) => !PSEUDO.includes(name)) ||
    new Set(pseudo).size < pseudo.length ||
    names.slice(0, pseudo.length).some((name) => !name.startsWith(':')) ||
    [':method', ':scheme', ':path'].some((name) => fields.find(([given]) => given === name)?.[1] === undefined) ||
    fields.some(([name, value]) => name === ':path' && value === '') ||
    names.some((name) => !name.startsWith(':') && (!TOKEN.test(name) || /[A-Z]/.test(name))) ||
    names.some((name) => CONNECTION_SPECIFIC.includes(name)) ||
    fields.some(([name, value]) => name === 'te' && value !== 'trailers') ||
    fields.some(([, value]) => /[\0-\x08\x0a-\x1f\x7f]|^[ \t]|[ \t]$/.test(value)) ||
    // RFC 3986 §3.1.
    fields.some(([name, value]) => name === ':scheme' && !/^[A-Za-z][A-Za-z0-9+.-]*$/.test(value)) ||
    lengths.some((length) => length !== String(body.length)) ||
    lengths.length > 1
  );
}

/** Two values for the host are ambiguous. Node's server drops a second one that is invalid. */
const hasTwoHosts = ({ fields }: Message): boolean =>
  new Set(fields.filter(([name]) => name === ':authority' || name === 'host').map(([, value]) => value)).size > 1;

/** Node's parser rejects others. */
const HTTP1_METHODS: ReadonlySet<string> = new Set(METHODS_OF_NODE);

/** The message as HTTP/1.1; undefined if it cannot be written as one, or means something else there. */
export function toHttp1({ fields, body }: Message): string | undefined {
  const value = (name: string): string | undefined => fields.find(([given]) => given === name)?.[1];
  const [method = '', path = '', authority] = [':method', ':path', ':authority'].map(value);
  const regular = fields.filter(([name]) => !name.startsWith(':'));
  const cookies = regular.filter(([name]) => name === 'cookie').map(([, cookie]) => cookie);
  // An absolute target is a valid form there; HTTP/2 has no interim `Expect`, and TE needs Connection.
  if (
    !HTTP1_METHODS.has(method) ||
    !/^[!-~\x80-\xff]+$/.test(path) ||
    /^https?:/.test(path) ||
    value(':scheme') !== 'https'
  )
    return undefined;
  if (regular.some(([name]) => ['te', 'http2-settings', 'expect', 'trailer'].includes(name))) return undefined;
  if (fields.some(([, text]) => /[\0-\x08\x0a-\x1f\x7f]/.test(text))) return undefined;
  const isSameHost = value('host') === undefined || authority === undefined || value('host') === authority;
  const lines = [
    `${method} ${path} HTTP/1.1`,
    ...(authority === undefined ? [] : [`host: ${authority}`]),
    ...regular
      .filter(([name]) => name !== 'cookie' && !(name === 'host' && authority !== undefined && isSameHost))
      .map(([name, text]) => `${name}: ${text}`),
    // RFC 9113 §8.2.3.
    ...(cookies.length === 0 ? [] : [`cookie: ${cookies.join('; ')}`]),
  ];
  if (body === undefined || value('content-length') !== undefined) return `${lines.join('\r\n')}\r\n\r\n${body ?? ''}`;
  const chunks = body === '' ? '' : `${body.length.toString(16)}\r\n${body}\r\n`;
  return `${lines.join('\r\n')}\r\ntransfer-encoding: chunked\r\n\r\n${chunks}0\r\n\r\n`;
}

/** A gateway with its upstream. */
interface Side {
  readonly proxy: ProxyHarness;
  /** The requests with this nonce; they are removed. */
  takeSeen(nonce: number): string[];
  /** Requests without a nonce, which no message has. */
  unexpected(): string[];
  close(): Promise<void>;
}

async function openSide(): Promise<Side> {
  const upstream: RecordingUpstream = await startRecordingUpstream();
  const proxy = await startProxyHarness({
    upstream: upstream.url,
    publicUrl: 'https://localhost:8443',
    rules: [...RULES, rule('/*/1', 'public')],
    // Long timeouts, so that a busy machine does not look like an upstream failure.
    upstreamSettings: { timeouts: { connect: 60, headers: 60, idle: 60 } },
    tls: true,
    http2: true,
  });
  return {
    proxy,
    takeSeen(nonce) {
      const seen: string[] = [];
      for (let at = upstream.requests.length - 1; at >= 0; at -= 1) {
        const request = upstream.requests[at];
        if (request?.headers.some(([name, value]) => name === 'x-nonce' && value === String(nonce)) !== true) continue;
        seen.push(normalizeForwarded(request));
        upstream.requests.splice(at, 1);
      }
      return seen;
    },
    unexpected: () => upstream.requests.map(normalizeForwarded),
    async close() {
      await proxy.close();
      await upstream.close();
    },
  };
}

/** Node's HTTP/2 server: the messages that it has read completely. */
interface NodeServer {
  readonly port: number;
  readonly ca: IssuedCertificate;
  /** Method, path and body of the message with this nonce; it is removed. */
  takeRead(nonce: number): string | undefined;
  close(): Promise<void>;
}

async function openNodeServer(): Promise<NodeServer> {
  const ca = await createCa();
  const { pem: cert, keyPem: key } = await issueServer(ca);
  const read = new Map<string, string>();
  // Its limits must not be lower than gatehouse's.
  const server = createSecureServer({
    cert,
    key,
    maxHeaderListPairs: 1_000,
    settings: { maxHeaderListSize: 65_536 },
  });
  server.on('stream', (stream: ServerHttp2Stream, fields) => {
    let body = '';
    stream.setEncoding('latin1').on('error', () => {});
    stream.on('data', (part: string) => {
      body += part;
    });
    stream.on('end', () => {
      read.set(String(fields['x-nonce']), JSON.stringify([fields[':method'], fields[':path'], body]));
      if (!stream.destroyed) stream.respond({ ':status': 200 }, { endStream: true });
    });
  });
  const { port, close } = await listenTcp(server);
  return {
    port,
    ca,
    takeRead(nonce) {
      const found = read.get(String(nonce));
      read.delete(String(nonce));
      return found;
    },
    close,
  };
}

/** Sends messages on one HTTP/2 connection, and opens another when it was closed. */
function createHttp2Sender(port: number, ca: IssuedCertificate) {
  let client: FrameClient | undefined;
  let sent = 0;
  return {
    async send({ fields, body }: Message): Promise<Omit<Outcome, 'seen'>> {
      if (client === undefined || client.isOver() || sent > 60) {
        client?.destroy();
        client = await frameClient(port, { ca: ca.pem });
        sent = 0;
      }
      sent += 1;
      const stream = client.request(fields, { end: body === undefined });
      // In two parts, unless it is empty.
      const half = (body?.length ?? 0) >> 1;
      if (body !== undefined) {
        if (half > 0) client.send(dataFrame(stream, body.slice(0, half)));
        client.send(dataFrame(stream, body.slice(half), { end: true }));
      }
      const { status, reset } = (await client.waitForEnd(stream)) ?? {};
      return { status, reset };
    },
    close: () => client?.destroy(),
  };
}

function createHttp1Sender(side: Side) {
  let socket: TLSSocket | undefined;
  let received = '';
  const { wake, until } = createEventWaiter(() => `received ${JSON.stringify(received.slice(0, 400))}`);
  const open = (): TLSSocket => {
    const opened = connect({
      port: side.proxy.port,
      host: '127.0.0.1',
      servername: 'localhost',
      ca: side.proxy.ca.pem,
      ALPNProtocols: ['http/1.1'],
    });
    opened.setEncoding('latin1').on('data', (text: string) => {
      received += text;
      wake();
    });
    return opened.on('error', () => {}).on('close', wake);
  };
  return {
    async send(seed: number, message: string): Promise<Outcome> {
      socket ??= open();
      const current = socket;
      received = '';
      current.write(message, 'latin1');
      const toHead = message.startsWith('HEAD ');
      await until(() => isCompleteResponse(received, toHead) || current.destroyed);
      const isComplete = isCompleteResponse(received, toHead);
      if (!isComplete || /\r\nconnection: close\r\n/i.test(received)) {
        current.destroy();
        socket = undefined;
      }
      const status = isComplete ? parseRawResponse(received).status : undefined;
      return { status, seen: side.takeSeen(seed) };
    },
    close: () => socket?.destroy(),
  };
}

const format = ({ status, reset, seen }: Outcome): string =>
  `${status ?? (reset === undefined ? 'closed' : `reset ${reset}`)} and forwarded ${seen.join(' + ') || 'nothing'}`;

/** What Node must have read if gatehouse forwards the message. */
const formatMessage = ({ fields, body = '' }: Message): string =>
  JSON.stringify([...[':method', ':path'].map((name) => fields.find(([given]) => given === name)?.[1]), body]);

/** Both are rejected, or both are forwarded alike. */
const isSame = (one: Outcome, other: Outcome): boolean =>
  one.seen.join() === other.seen.join() &&
  (one.status === undefined || other.status === undefined ? one.seen.length === 0 : one.status === other.status);

const isRejected = ({ status, reset, seen }: Outcome): boolean =>
  seen.length === 0 && (reset === CODE.protocolError || (status !== undefined && status >= 400 && status < 500));

export interface MessagesOptions {
  readonly count: number;
  readonly seed: number;
  readonly log?: (line: string) => void;
}

/** Throws at the end, with the first messages whose outcomes differ. */
export async function fuzzMessages({ count, seed, log = () => {} }: MessagesOptions): Promise<MessagesResult> {
  const [own, node, http1] = await Promise.all([openSide(), openNodeServer(), openSide()]);
  const result: MessagesResult = { messages: 0, forwarded: 0, rejected: 0, malformed: 0, overHttp1: 0 };
  const problems: string[] = [];
  let next = seed * 1_000_003;
  const end = next + count;
  const runClients = async (): Promise<void> => {
    const ownSender = createHttp2Sender(own.proxy.port, own.proxy.ca);
    const nodeSender = createHttp2Sender(node.port, node.ca);
    const http1Sender = createHttp1Sender(http1);
    while (next < end && problems.length < 10) {
      const message = createMessage(next++);
      const text = toHttp1(message);
      const malformed = isMalformed(message);
      const isComparable = text !== undefined && !malformed;
      const [sent, , http1s] = await Promise.all([
        ownSender.send(message),
        nodeSender.send(message),
        isComparable ? http1Sender.send(message.seed, text) : undefined,
      ]);
      const ours: Outcome = { ...sent, seen: own.takeSeen(message.seed) };
      const readByNode = node.takeRead(message.seed);
      result.messages += 1;
      result.overHttp1 += isComparable ? 1 : 0;
      result.malformed += malformed ? 1 : 0;
      if (ours.seen.length > 0) result.forwarded += 1;
      else result.rejected += 1;
      const isDifferent =
        (ours.seen.length > 0 && readByNode !== formatMessage(message)) ||
        (http1s !== undefined && !isSame(ours, http1s));
      const isWrong = malformed || hasTwoHosts(message) ? !isRejected(ours) : isDifferent;
      if (isWrong) problems.push(describeProblem(message, malformed, ours, readByNode, http1s));
      if (result.messages % 5_000 === 0) log(JSON.stringify(result));
    }
    ownSender.close();
    nodeSender.close();
    http1Sender.close();
  };
  try {
    await Promise.all(Array.from({ length: PARALLEL }, runClients));
    for (const side of [own, http1]) {
      problems.push(...side.unexpected().map((request) => `no message is ${request}`));
      problems.push(...side.proxy.log.filter((line) => line.includes('"level":"error"')));
    }
    if (problems.length > 0) throw new Error(`seed ${seed}:\n${problems.slice(0, 10).join('\n')}`);
    return result;
  } finally {
    for (const side of [own, node, http1]) await side.close();
  }
}

const describeProblem = (
  { seed, fields, body }: Message,
  malformed: boolean,
  ours: Outcome,
  readByNode: string | undefined,
  http1s: Outcome | undefined,
): string =>
  [
    `message ${seed}${malformed ? ' (malformed)' : ''}: ${JSON.stringify(fields)} ${body === undefined ? '' : `and ${body.length} bytes`}`,
    `  over HTTP/2: ${format(ours)}`,
    `  Node's server reads ${readByNode ?? 'nothing'}`,
    ...(http1s === undefined ? [] : [`  over HTTP/1.1: ${format(http1s)}`]),
  ]
    .join('\n')
    .replace(/(.)\1{60,}/g, (run, [letter]) => `${letter}…${run.length}`);
