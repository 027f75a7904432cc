import type { Socket } from 'node:net';
import { expect, test } from 'vitest';
import { matrixSettings } from '../../attack/matrix-settings.ts';
import { randomBelow } from '../../fuzz/mutations.ts';
import { eventLoopTurns } from '../../support/event-loop-turns.ts';
import {
  dataFrame,
  type Field,
  type FrameClient,
  frameClient,
  headersFrame,
  requestFields,
  resetFrame,
} from '../../support/http2-frames.ts';
import { startRecordingUpstream } from '../../support/recording-upstream.ts';
import { startGateway } from '../../support/test-gateway.ts';

/**
 * H33 over HTTP/2: many streams share few connections on both sides. Each request has a nonce in its target, in a field and
 * in its body, which the upstream returns in a field and in the body of the response.
 */
const CONNECTIONS = 4;
const STREAMS = 60;
const UPSTREAM_CONNECTIONS = 8;

type SendMode = (socket: Socket, head: string, body: string) => void;

const sendSlowly = (socket: Socket, text: string, size: number): void => {
  if (socket.destroyed || text === '') return;
  socket.write(text.slice(0, size), () => setImmediate(sendSlowly, socket, text.slice(size), size));
};
const chunk = (part: string): string => `${part.length.toString(16)}\r\n${part}\r\n`;
const withLength = (head: string, body: string): string =>
  `HTTP/1.1 200 OK\r\n${head}Content-Length: ${body.length}\r\n\r\n${body}`;
const inChunks = (head: string, body: string): string => {
  const half = body.length >> 1;
  return `HTTP/1.1 200 OK\r\n${head}Transfer-Encoding: chunked\r\n\r\n${chunk(body.slice(0, half))}${chunk(body.slice(half))}0\r\n\r\n`;
};

const SEND_MODES: readonly SendMode[] = [
  (socket, head, body) => void socket.write(withLength(head, body)),
  (socket, head, body) => void socket.write(inChunks(head, body)),
  (socket, head, body) => sendSlowly(socket, withLength(head, body), 40),
  (socket, head, body) => sendSlowly(socket, inChunks(head, body), 25),
  (socket, head, body) =>
    void eventLoopTurns(body.length % 23).then(() => socket.destroyed || socket.write(withLength(head, body))),
  (socket, head, body) =>
    void socket.write(`HTTP/1.1 103 Early Hints\r\nX-Nonce: none\r\n\r\n${withLength(head, body)}`),
  (socket, head, body) => void socket.end(withLength(head, body).replace('Content', 'Connection: close\r\nContent')),
];

interface Sent {
  readonly nonce: number;
  readonly body: string;
  readonly isCancelled: boolean;
}

export function testNonces(requests: number): void {
  test(`H33 ${requests} interleaved requests on ${CONNECTIONS} connections: each gets the response to itself`, {
    timeout: 60_000 + requests * 20,
  }, async () => {
    const below = randomBelow(17);
    const upstream = await startRecordingUpstream();
    const gateway = await startGateway(
      matrixSettings(upstream.url, (settings) => ({
        ...settings,
        upstreams: {
          default: { url: upstream.url, connections: UPSTREAM_CONNECTIONS, maxPending: 10_000 },
        },
        log: { level: 'info' },
      })),
    );
    const { access_token: token } = await gateway.grant();
    upstream.respondWith((socket, { target, headers, body }) => {
      const nonce = headers.find(([name]) => name === 'x-nonce')?.[1] ?? '';
      const mode = SEND_MODES[Number(nonce) % SEND_MODES.length] as SendMode;
      mode(socket, `X-Nonce: ${nonce}\r\n`, `<${target}|${nonce}|${body}>`);
    });
    const wrong: string[] = [];
    let next = 0;
    let good = 0;
    let cancelled = 0;

    const begin = (client: FrameClient, running: Map<number, Sent>, stream: number): void => {
      const nonce = next++;
      const body = nonce % 3 === 0 ? `b${nonce}b`.repeat(1 + (nonce % 40)) : '';
      const isCancelled = below(150) === 0;
      const fields: Field[] = [
        ...requestFields(`/files/n${nonce}n`, body === '' ? 'GET' : 'POST'),
        ['x-nonce', String(nonce)],
        ['authorization', `Bearer ${token}`],
        ...(body !== '' && nonce % 2 === 0 ? [['content-length', String(body.length)] as const] : []),
      ];
      running.set(stream, { nonce, body, isCancelled });
      client.send(headersFrame(stream, fields, { end: body === '' }));
      if (body !== '') {
        const half = body.length >> 1;
        client.send(
          dataFrame(stream, body.slice(0, half), nonce % 5 === 0 ? { padding: nonce % 200 } : {}),
          dataFrame(stream, body.slice(half), { end: true }),
        );
      }
    };
    const check = (client: FrameClient, stream: number, { nonce, body, isCancelled }: Sent): void => {
      if (isCancelled) return;
      const expected = `</files/n${nonce}n|${nonce}|${body}>`;
      const fields = client.fields(stream);
      if (
        client.outcome(stream)?.status === 200 &&
        client.body(stream) === expected &&
        fields.find(([name]) => name === 'x-nonce')?.[1] === String(nonce)
      )
        good += 1;
      else
        wrong.push(
          `${nonce} got ${JSON.stringify(client.outcome(stream))} ${JSON.stringify(fields)} ${client.body(stream).slice(0, 200)}`,
        );
    };
    const hasMore = (): boolean => next < requests;
    const runClient = async (): Promise<void> => {
      const client = await frameClient(gateway.port, { ca: gateway.ca.pem, updateWindows: true });
      const running = new Map<number, Sent>();
      let stream = 1;
      try {
        while (hasMore() || running.size > 0) {
          for (; running.size < STREAMS && hasMore(); stream += 2) begin(client, running, stream);
          for (const [id, { isCancelled }] of running)
            if (isCancelled) {
              cancelled += 1;
              client.send(resetFrame(id));
              running.delete(id);
            }
          const isOver = (id: number): boolean => client.endedCleanly(id) || client.resetCode(id) !== undefined;
          await client.until(() => running.size === 0 || [...running.keys()].some(isOver));
          if (client.isOver()) throw new Error(`the connection was closed: ${client.goAway()}`);
          for (const [id, sent] of running)
            if (isOver(id)) {
              running.delete(id);
              check(client, id, sent);
            }
        }
      } finally {
        client.destroy();
      }
    };
    try {
      await Promise.all(Array.from({ length: CONNECTIONS }, runClient));
      expect(wrong.slice(0, 5)).toEqual([]);
      expect(good + cancelled).toBe(requests);
      expect(cancelled).toBeGreaterThan(0);
      // Upstream connections were shared.
      expect(upstream.connectionCount()).toBeLessThan(requests / 2);
      expect(gateway.log.filter(({ level }) => level === 'error')).toEqual([]);
    } finally {
      await gateway.close();
      await upstream.close();
    }
  });
}
