import type { Socket } from 'node:net';
import { expect, test } from 'vitest';
import { recordFigures } from '../support/figures.ts';
import type { ProxyHarness } from '../support/proxy-harness.ts';
import { connectRaw, isCompleteResponse, rawRequest } from '../support/raw-client.ts';
import type { RecordingUpstream, Responder } from '../support/recording-upstream.ts';

/** Tests of the catalogue that take a number of repetitions. */
export interface Harness {
  readonly upstream: () => RecordingUpstream;
  readonly proxy: () => ProxyHarness;
}

const CLIENTS = 8;
const DEADLINE_MS = 30_000;
const limit = (requests: number) => ({ timeout: 60_000 + requests * 30 });

const get = (path: string): string => `GET ${path} HTTP/1.1\r\nHost: gate.test\r\nAuthorization: Bearer A\r\n\r\n`;

const HALF = 'x'.repeat(500);
const TRUNCATIONS: readonly Responder[] = [
  (socket) =>
    void socket.write(`HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n${HALF}`, () => socket.resetAndDestroy()),
  (socket) => void socket.end(`HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n${HALF}`),
  (socket) => void socket.end(`HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1f4\r\n${HALF}\r\n`),
  (socket) =>
    void socket.write(`HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1f4\r\n${HALF}\r\nzz\r\nmore\r\n`),
];

export function testTruncated({ upstream, proxy }: Harness, requests: number): void {
  test(`U01-U04 ${requests} truncated responses: every client sees the truncation`, limit(requests), async () => {
    upstream().respondWith((socket, request) => {
      TRUNCATIONS[Number(request.target.split('/').at(-1)) % TRUNCATIONS.length]?.(socket, request);
    });
    const sendRequest = async (number: number): Promise<'truncated' | 'rejected' | 'complete'> => {
      const client = await connectRaw(proxy().port);
      client.send(get(`/files/${number}`));
      const text = await client.until((all) => isCompleteResponse(all), DEADLINE_MS);
      client.destroy();
      if (!isCompleteResponse(text)) return 'truncated';
      // A reset may arrive before the head is read: then there is no response to truncate.
      return text.startsWith('HTTP/1.1 502') && number % TRUNCATIONS.length === 0 ? 'rejected' : 'complete';
    };
    const counts = { truncated: 0, rejected: 0, complete: 0 };
    for (let from = 0; from < requests; from += CLIENTS)
      for (const result of await Promise.all(Array.from({ length: CLIENTS }, (_, at) => sendRequest(from + at))))
        counts[result] += 1;
    expect(counts.complete).toBe(0);
    expect(counts.truncated).toBeGreaterThanOrEqual((requests * 3) / 4);
    recordFigures('truncations', {
      'truncated responses of the upstream': requests,
      'truncated for the client as well': counts.truncated,
      'reset before the head, hence 502': counts.rejected,
      'passed on as complete': counts.complete,
    });
  });
}

const POISON = 'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\npoisoned';
const EXTRAS: readonly ((socket: Socket, body: string) => void)[] = [
  (socket, body) => void socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${body.length}\r\n\r\n${body}${POISON}`),
  (socket, body) =>
    void socket.write(
      `HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n${body.length.toString(16)}\r\n${body}\r\n0\r\n\r\n${POISON}`,
    ),
  (socket, body) =>
    void socket.write(
      `HTTP/1.1 304 Not Modified\r\nETag: "${body}"\r\nContent-Length: ${POISON.length}\r\n\r\n${POISON}`,
    ),
  (socket, body) => void socket.write(`HTTP/1.1 204 No Content\r\nETag: "${body}"\r\n\r\n${POISON}`),
  (socket, body) => void socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${body.length}\r\n\r\n${body}`),
  (socket, body) => void socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${body.length}\r\n\r\n${body}\r\n\r\n`),
];

/** Distributes the requests over several concurrent clients, each sending sequentially. */
const sendByClients = (requests: number, createSender: (client: number) => Promise<(count: number) => Promise<void>>) =>
  Promise.all(
    Array.from({ length: CLIENTS }, async (_, client) => {
      const send = await createSender(client);
      for (let count = 0; count < requests / CLIENTS; count += 1) await send(count);
    }),
  );

export function testExtraResponses({ upstream, proxy }: Harness, requests: number): void {
  test(
    `U10 ${requests} requests by eight clients: each gets its own nonce and never the extra response`,
    limit(requests),
    async () => {
      upstream().respondWith((socket, { target }) => {
        const nonce = target.split('/').at(-1) ?? '';
        EXTRAS[Number(nonce.split('-')[1]) % EXTRAS.length]?.(socket, nonce);
      });
      await sendByClients(requests, async (client) => async (count) => {
        const nonce = `${client}-${count}-nonce`;
        const { head, body } = await rawRequest(proxy().port, get(`/files/${nonce}`));
        expect(head + body).not.toContain('poisoned');
        expect(head + body).toContain(nonce);
      });
    },
  );
}

export function testPooledEchoes({ upstream, proxy }: Harness, requests: number): void {
  test(
    `H33 ${requests} requests, chunked and without a body, over pooled connections: no response goes to another client`,
    limit(requests),
    async () => {
      upstream().respondWith((socket, { body, target }) => {
        const echo = `${target}|${body}`;
        socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${echo.length}\r\n\r\n${echo}`);
      });
      await sendByClients(requests, async (client) => {
        const connection = await connectRaw(proxy().port);
        return async (count) => {
          const nonce = `${client}-${count}`;
          const before = connection.text().length;
          const chunked = count % 2 === 0;
          if (chunked)
            connection.send(
              `POST /files/${nonce} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer A\r\nTransfer-Encoding: chunked\r\n\r\n` +
                `${nonce.length.toString(16)}\r\n${nonce}\r\n0\r\n\r\n`,
            );
          else connection.send(get(`/files/${nonce}`));
          const text = await connection.until((all) => isCompleteResponse(all.slice(before)), DEADLINE_MS);
          expect(text.slice(before)).toContain(`\r\n\r\n/files/${nonce}|${chunked ? nonce : ''}`);
        };
      });
      expect(upstream().connectionCount()).toBeLessThanOrEqual(2 * CLIENTS);
    },
  );
}
