import type { Socket } from 'node:net';
import { expect, test } from 'vitest';
import { randomBelow } from '../fuzz/mutations.ts';
import { eventLoopTurns } from '../support/event-loop-turns.ts';
import { startProxyHarness } from '../support/proxy-harness.ts';
import { connectRaw } from '../support/raw-client.ts';
import { startRecordingUpstream } from '../support/recording-upstream.ts';

/**
 * H33: many clients share few connections to an upstream that fails in many ways. No client receives the response of
 * another, and no truncated response looks complete.
 */
const CLIENTS = 40;
const CONNECTIONS = 5;
/** Longer than the gateway waits for its upstream. */
const DEADLINE_MS = 30_000;

type Kind = 'complete' | 'broken' | 'truncated';
/** Sends the text of a response in its own way. */
type SendMode = readonly [
  kind: Kind,
  send: (socket: Socket, text: string, randomInt: (limit: number) => number) => void,
];

const withLength = (text: string): string => `HTTP/1.1 200 OK\r\nContent-Length: ${text.length}\r\n\r\n${text}`;
const inChunks = (text: string, end = '0\r\n\r\n'): string => {
  const half = text.length >> 1;
  const chunk = (part: string): string => `${part.length.toString(16)}\r\n${part}\r\n`;
  return `HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n${chunk(text.slice(0, half))}${chunk(text.slice(half))}${end}`;
};
/** Longer than a request id, which may contain any letters. */
const POISON = 'a-response-to-no-request-at-all';
const EXTRA_RESPONSE = `HTTP/1.1 200 OK\r\nContent-Length: ${POISON.length}\r\n\r\n${POISON}`;
const INTERIM = `HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: <${POISON}>\r\n\r\n`;

/** Writes the pieces one by one, each after the previous one was flushed. */
function sendSlowly(socket: Socket, pieces: readonly string[], end?: () => void): void {
  const [first, ...rest] = pieces;
  if (socket.destroyed) return;
  if (first === undefined) return end?.();
  socket.write(first, () => setImmediate(sendSlowly, socket, rest, end));
}
const pieces = (text: string, size: number): string[] => text.match(new RegExp(`[^]{1,${size}}`, 'g')) ?? [];

const SEND_MODES: Readonly<Record<string, SendMode>> = {
  'with a length': ['complete', (socket, text) => void socket.write(withLength(text))],
  'in chunks': ['complete', (socket, text) => void socket.write(inChunks(text))],
  'until the connection ends': ['complete', (socket, text) => void socket.end(`HTTP/1.1 200 OK\r\n\r\n${text}`)],
  'and the connection ends': ['complete', (socket, text) => void socket.end(withLength(text))],
  'with Connection: close': [
    'complete',
    (socket, text) => void socket.end(withLength(text).replace('Content', 'Connection: close\r\nContent')),
  ],
  'after 1xx responses': ['complete', (socket, text) => void socket.write(INTERIM + withLength(text))],
  'after 1xx responses, in small pieces': [
    'complete',
    (socket, text) => sendSlowly(socket, pieces(INTERIM + withLength(text), 7)),
  ],
  'in chunks, in small pieces': ['complete', (socket, text) => sendSlowly(socket, pieces(inChunks(text), 3))],
  'in two parts': [
    'complete',
    (socket, text, randomInt) => {
      const complete = withLength(text);
      const cut = 1 + randomInt(complete.length - 1);
      sendSlowly(socket, [complete.slice(0, cut), complete.slice(cut)]);
    },
  ],
  late: [
    'complete',
    (socket, text, randomInt) =>
      void eventLoopTurns(1 + randomInt(40)).then(() => socket.destroyed || socket.write(withLength(text))),
  ],
  'with an extra byte': ['complete', (socket, text) => void socket.write(`${withLength(text)}x`)],
  'with an extra response': ['complete', (socket, text) => void socket.write(withLength(text) + EXTRA_RESPONSE)],
  'in chunks, with an extra response': [
    'complete',
    (socket, text) => void socket.write(inChunks(text) + EXTRA_RESPONSE),
  ],
  'with an extra 1xx response': ['complete', (socket, text) => void socket.write(withLength(text) + INTERIM)],
  'not at all': ['broken', (socket) => void socket.end()],
  'with a reset': ['broken', (socket) => void socket.resetAndDestroy()],
  'with two lengths': [
    'broken',
    (socket, text) => void socket.write(withLength(text).replace('Content', 'Content-Length: 1\r\nContent')),
  ],
  'with a length and in chunks': [
    'broken',
    (socket, text) => void socket.write(inChunks(text).replace('Transfer', 'Content-Length: 4\r\nTransfer')),
  ],
  'with an invalid head': ['broken', (socket, text) => void socket.end(`${text}\r\n\r\n`)],
  'with 1xx responses only': ['broken', (socket) => void socket.end(INTERIM)],
  truncated: ['truncated', (socket, text) => void socket.end(withLength(text).slice(0, -3))],
  'truncated by a reset': [
    'truncated',
    (socket, text) => sendSlowly(socket, [withLength(text).slice(0, -3)], () => void socket.resetAndDestroy()),
  ],
  'in chunks that do not end': ['truncated', (socket, text) => void socket.end(inChunks(text, ''))],
  'in malformed chunks': ['truncated', (socket, text) => void socket.write(inChunks(text, 'zz\r\n'))],
  'in chunks, reset before the last': [
    'truncated',
    (socket, text) => sendSlowly(socket, [inChunks(text, '')], () => void socket.resetAndDestroy()),
  ],
};
const NAMES = Object.keys(SEND_MODES);
/** Every other response is well-formed: with faults alone no connection would ever be reused. */
const PLAIN = NAMES.slice(0, 2);
/** Cycles through the modes so that every fault occurs; a retried request gets the next one. */
const nameFor = (nonce: number, attempt: number): string => {
  const names = (nonce + attempt) % 2 === 0 ? PLAIN : NAMES;
  return names[((nonce >> 1) + attempt) % names.length] ?? '';
};

interface ParsedResponse {
  readonly status: number;
  readonly body: string;
}

/** Parses the complete responses in a text; `rest` is what follows them. */
function parseResponses(text: string): { readonly responses: ParsedResponse[]; readonly rest: string } {
  const responses: ParsedResponse[] = [];
  let at = 0;
  while (true) {
    const headEnd = text.indexOf('\r\n\r\n', at);
    if (headEnd < 0) break;
    const head = text.slice(at, headEnd + 2);
    const start = headEnd + 4;
    const length = /\r\ncontent-length: *(\d+)\r/i.exec(head)?.[1];
    let body = '';
    let end = start + Number(length);
    if (length === undefined) {
      // Chunked. A response delimited by the end of the connection does not count as complete.
      const last = text.indexOf('0\r\n\r\n', start);
      if (!/\r\ntransfer-encoding: *chunked\r/i.test(head) || last < 0) break;
      end = last + 5;
      body = text
        .slice(start, last)
        .replace(/(?:^|\r\n)[0-9a-f]+\r\n/gi, '')
        .replace(/\r\n$/, '');
    } else body = text.slice(start, end);
    if (end > text.length) break;
    responses.push({ status: Number(head.split(' ')[1]), body });
    at = end;
  }
  return { responses, rest: text.slice(at) };
}

export function testInterleaved(requests: number): void {
  test(`H33 ${requests} interleaved requests over shared upstream connections, with faults: no client receives the response of another, and no truncated response looks complete`, {
    timeout: 120_000 + requests * 30,
  }, async () => {
    const randomInt = randomBelow(33);
    const upstream = await startRecordingUpstream();
    const proxy = await startProxyHarness({
      upstream: upstream.url,
      upstreamSettings: { connections: CONNECTIONS, maxPending: 10_000 },
    });
    const attempts = new Map<string, number>();
    const used = new Set<string>();
    /** The send mode of each request; of the last attempt, if it was retried. */
    const sendModes = new Map<string, string>();
    upstream.respondWith((socket, { target, body }) => {
      const attempt = attempts.get(target) ?? 0;
      attempts.set(target, attempt + 1);
      const name = nameFor(Number(/n(\d+)n/.exec(target)?.[1]), attempt);
      const [, send] = SEND_MODES[name] as SendMode;
      used.add(name);
      sendModes.set(target, name);
      send(socket, `<${target}|${body}>`, randomInt);
    });
    let next = 0;
    let good = 0;
    let failed = 0;
    let abandoned = 0;
    const wrong: string[] = [];

    const describeRequests = (request: readonly { readonly target: string }[]): string =>
      request.map(({ target }) => `${target} (${sendModes.get(target)})`).join();
    const hasMore = (): boolean => next < requests;
    const runClient = async (): Promise<void> => {
      let client = await connectRaw(proxy.port);
      while (hasMore()) {
        // Some requests are pipelined.
        const count = randomInt(5) === 0 ? 3 : 1;
        const requested = Array.from({ length: count }, () => {
          const nonce = next++;
          const body = nonce % 3 === 0 ? `b${nonce}b` : '';
          const target = `/files/n${nonce}n`;
          const framing = nonce % 2 === 0 ? 'chunked' : 'length';
          return { target, body, text: request(target, body, framing) };
        });
        const seen = client.text().length;
        client.send(requested.map(({ text }) => text).join(''));
        // Some clients disconnect before the response.
        if (randomInt(17) === 0) {
          abandoned += count;
          await eventLoopTurns(randomInt(20));
          client.destroy();
          client = await connectRaw(proxy.port);
          continue;
        }
        const all = await client
          .until((given) => parseResponses(given.slice(seen)).responses.length >= count, DEADLINE_MS)
          .catch(() => client.text());
        const text = all.slice(seen);
        if (client.closeKind() === undefined && parseResponses(text).responses.length < count)
          wrong.push(`${describeRequests(requested)} got no response after ${text.slice(-300)}`);
        const { responses, rest } = parseResponses(text);
        for (const [at, { status, body }] of responses.entries()) {
          const ownRequest = requested[at];
          if (ownRequest === undefined) wrong.push(`one response too many: ${text.slice(-300)}`);
          else if (status === 200) {
            if (body !== `<${ownRequest.target}|${ownRequest.body}>`)
              wrong.push(`${describeRequests([ownRequest])} got ${body.slice(0, 300)}`);
            else if (SEND_MODES[sendModes.get(ownRequest.target) ?? '']?.[0] !== 'complete')
              wrong.push(`${describeRequests([ownRequest])} was accepted as complete`);
            else good += 1;
          } else if (status === 502 || status === 504) failed += 1;
          else wrong.push(`${describeRequests([ownRequest])} got ${status}`);
        }
        // A truncated response may contain only the target of the request it belongs to.
        const otherTargets = [...rest.matchAll(/\/files\/n\d+n/g)].filter(
          ([nonce]) => requested[responses.length]?.target !== nonce,
        );
        if (otherTargets.length > 0 || text.includes(POISON) || /HTTP\/1\.1 1\d\d/.test(text))
          wrong.push(`${describeRequests(requested)} got ${text.slice(-300)}`);
        if (client.closeKind() === undefined && responses.length === count) continue;
        client.destroy();
        client = await connectRaw(proxy.port);
      }
      client.destroy();
    };
    try {
      await Promise.all(Array.from({ length: CLIENTS }, runClient));
      expect(wrong.slice(0, 5)).toEqual([]);
      expect(good).toBeGreaterThan(requests / 2);
      expect(failed).toBeGreaterThan(requests / 40);
      expect(abandoned).toBeGreaterThan(0);
      expect([...used].toSorted()).toEqual(NAMES.toSorted());
      // Connections were shared.
      expect(upstream.connectionCount()).toBeLessThan(upstream.requests.length / 1.5);
      expect(proxy.log.filter((line) => line.includes('"level":"error"'))).toEqual([]);
    } finally {
      await proxy.close();
      await upstream.close();
    }
  });
}

function request(target: string, body: string, framing: 'length' | 'chunked'): string {
  const head = `${body === '' ? 'GET' : 'POST'} ${target} HTTP/1.1\r\nHost: gate.test\r\nAuthorization: Bearer A\r\n`;
  if (body === '') return `${head}\r\n`;
  return framing === 'length'
    ? `${head}Content-Length: ${body.length}\r\n\r\n${body}`
    : `${head}Transfer-Encoding: chunked\r\n\r\n${body.length.toString(16)}\r\n${body}\r\n0\r\n\r\n`;
}
