import { connect, type Socket } from 'node:net';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { eventLoopTurns } from '../support/event-loop-turns.ts';
import { type ProxyHarness, startProxyHarness } from '../support/proxy-harness.ts';
import { connectRaw } from '../support/raw-client.ts';
import { type RecordingUpstream, startRecordingUpstream } from '../support/recording-upstream.ts';
import { until } from '../support/serve-process.ts';

/**
 * Wherever the bytes of a connection are split or stop, complete requests are forwarded once, in order and unchanged. An
 * incomplete request is never forwarded as a complete one, and leaves nothing behind on a reused connection.
 */
const DEADLINE_MS = 30_000;
const AT_ONCE = 32;
const HOST = 'Host: gate.test\r\nAuthorization: Bearer A\r\n';
/** Looks like a request to a parser that loses track of the body length. */
const BODY = 'GET /files/hidden HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer A\r\n\r\n';

interface Part {
  readonly text: string;
  /** The text that the upstream echoes. */
  readonly summary: string;
}

const get = (name: string, more = ''): Part => ({
  text: `GET /files/${name} HTTP/1.1\r\n${HOST}${more}\r\n`,
  summary: `GET /files/${name} 0`,
});
const post = (name: string): Part => ({
  text: `POST /files/${name} HTTP/1.1\r\n${HOST}Content-Length: ${BODY.length}\r\n\r\n${BODY}`,
  summary: `POST /files/${name} ${BODY.length}`,
});
const chunked = (name: string): Part => ({
  text: `POST /files/${name} HTTP/1.1\r\n${HOST}Transfer-Encoding: chunked\r\n\r\n${BODY.length.toString(16)}\r\n${BODY}\r\n0\r\n\r\n`,
  summary: `POST /files/${name} ${BODY.length}`,
});

type Parts = (nonce: string) => readonly Part[];
const STREAMS: Readonly<Record<string, Parts>> = {
  'a GET, a POST and a GET': (nonce) => [get(`${nonce}a`), post(`${nonce}b`), get(`${nonce}c`)],
  'a POST, a chunked POST and a GET with TE': (nonce) => [
    post(`${nonce}a`),
    chunked(`${nonce}b`),
    get(`${nonce}c`, 'TE: trailers\r\n'),
  ],
};

const joinText = (parts: readonly Part[]): string => parts.map(({ text }) => text).join('');
const createNonce = (at: number): string => `n${String(at).padStart(4, '0')}`;
const RESPONSE_LINE = /(?:GET|POST) \/files\/\S+ \d+$/gm;
const findResponses = (text: string): string[] => text.match(RESPONSE_LINE) ?? [];

/** `step`: every how many bytes a stream is split. */
export function testSplitReads(step: number): void {
  let upstream: RecordingUpstream;
  let proxy: ProxyHarness;
  beforeAll(async () => {
    upstream = await startRecordingUpstream();
    proxy = await startProxyHarness({
      upstream: upstream.url,
      // Fewer than clients, so that connections are reused.
      upstreamSettings: { connections: 6, maxPending: 10_000 },
    });
  });
  afterAll(async () => {
    await proxy.close();
    await upstream.close();
  });
  beforeEach(() => {
    upstream.reset();
    upstream.respondWith((socket, { method, target, body }) => {
      const summary = `${method} ${target} ${body.length}\n`;
      socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${summary.length}\r\n\r\n${summary}`);
    });
  });

  /** Calls `run` for each split position of the stream, with limited concurrency. */
  async function forEachPosition(
    make: Parts,
    run: (at: number, parts: readonly Part[]) => Promise<void>,
  ): Promise<number> {
    const { length } = joinText(make(createNonce(0)));
    const positions = Array.from({ length: length - 1 }, (_, at) => at + 1).filter((at) => at % step === 0);
    const remaining = positions.values();
    const runNext = async (): Promise<void> => {
      for (const at of remaining) await run(at, make(createNonce(at)));
    };
    await Promise.all(Array.from({ length: AT_ONCE }, runNext));
    return positions.length;
  }

  const getForwarded = (): string[] =>
    upstream.requests.map(({ method, target, body }) => `${method} ${target} ${body.length}`).toSorted();
  const getBodies = (): Set<string> => new Set(upstream.requests.map(({ body }) => body).filter(Boolean));

  /** Summaries of the requests that are complete within the first `at` bytes. */
  function findComplete(parts: readonly Part[], at: number): string[] {
    let end = 0;
    return parts
      .filter(({ text }) => {
        end += text.length;
        return end <= at;
      })
      .map(({ summary }) => summary);
  }

  /** Expects that no upstream connection was used again after an incomplete request, and that no error was logged. */
  async function expectNothingLeft(): Promise<void> {
    await until(
      'connections with incomplete requests are closed',
      () => upstream.connectionStreams().every(({ unfinished, closed }) => unfinished === '' || closed),
      30,
    );
    for (const { unfinished } of upstream.connectionStreams())
      expect(unfinished.match(/x-request-id/gi)?.length ?? 0).toBeLessThanOrEqual(1);
    expect(upstream.bytes()).not.toContain('/files/hidden HTTP/1.1\r\nx-');
    expect(proxy.log.filter((line) => line.includes('"level":"error"'))).toEqual([]);
  }

  for (const [what, make] of Object.entries(STREAMS)) {
    test(`H29 ${what}, split into two reads anywhere: each is forwarded once, complete, with responses in order`, async () => {
      const expected: string[] = [];
      const count = await forEachPosition(make, async (at, parts) => {
        const text = joinText(parts);
        const summaries = parts.map((part) => part.summary);
        expected.push(...summaries);
        const client = await connectRaw(proxy.port);
        client.socket.setNoDelay(true);
        client.send(text.slice(0, at));
        // Once the complete requests have their responses, the rest arrives in a separate read.
        const first = findComplete(parts, at);
        await client.until((all) => findResponses(all).length === first.length, DEADLINE_MS);
        await eventLoopTurns(3);
        client.send(text.slice(at));
        const all = await client.until((given) => findResponses(given).length === summaries.length, DEADLINE_MS);
        expect([at, findResponses(all)]).toEqual([at, summaries]);
        client.destroy();
      });
      expect(count).toBeGreaterThan(Math.floor(250 / step));
      expect(getForwarded()).toEqual(expected.toSorted());
      expect(getBodies()).toEqual(new Set([BODY]));
      await expectNothingLeft();
    });

    test(`X12 ${what}, aborted anywhere: complete requests are forwarded, and nothing else`, async () => {
      const expected: string[] = [];
      await forEachPosition(make, async (at, parts) => {
        const complete = findComplete(parts, at);
        expected.push(...complete);
        const client = await connectRaw(proxy.port);
        client.socket.setNoDelay(true);
        client.send(joinText(parts).slice(0, at));
        const all = await client.until((given) => findResponses(given).length === complete.length, DEADLINE_MS);
        expect([at, findResponses(all)]).toEqual([at, complete]);
        await eventLoopTurns(3);
        client.destroy();
      });
      await expectNothingLeft();
      expect(getForwarded()).toEqual(expected.toSorted());
      expect(getBodies()).toEqual(new Set([BODY]));
    });

    for (const [how, disconnect] of Object.entries<(socket: Socket, bytes: string) => void>({
      'with an immediate close': (socket, bytes) => void socket.write(bytes, 'latin1', () => socket.destroy()),
      'with a reset': (socket, bytes) => void socket.write(bytes, 'latin1', () => socket.resetAndDestroy()),
      'with a half-close': (socket, bytes) => void socket.end(bytes, 'latin1'),
    }))
      test(`X12 ${what}, aborted anywhere ${how}: no incomplete request is forwarded, and other clients get their own responses`, async () => {
        // The client may have disconnected before the response, and other clients wait for the upstream connection.
        upstream.respondWith((socket, { method, target, body }) => {
          const summary = `${method} ${target} ${body.length}\n`;
          void eventLoopTurns(8).then(() => {
            if (!socket.destroyed)
              socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${summary.length}\r\n\r\n${summary}`);
          });
        });
        const allowed = new Set<string>();
        await forEachPosition(make, async (at, parts) => {
          for (const summary of findComplete(parts, at)) allowed.add(summary);
          const socket = connect({ port: proxy.port, host: '127.0.0.1', allowHalfOpen: true });
          let text = '';
          const closed = new Promise<void>((resolve) => {
            socket.on('error', () => {}).on('close', () => resolve());
          });
          socket.on('data', (part: Buffer) => {
            text += part.toString('latin1');
          });
          // Close the other direction once the gateway has closed its own.
          socket.on('end', () => socket.end());
          disconnect(socket, joinText(parts).slice(0, at));
          // A concurrent client.
          const concurrent = get(`${createNonce(at)}-stays`);
          allowed.add(concurrent.summary);
          const other = await connectRaw(proxy.port);
          other.send(concurrent.text);
          const response = await other.until((given) => findResponses(given).length > 0, DEADLINE_MS);
          expect([at, findResponses(response)]).toEqual([at, [concurrent.summary]]);
          other.destroy();
          // After a half-close, only responses to this client's requests may arrive.
          await closed;
          const complete = findComplete(parts, at);
          expect([at, complete.slice(0, findResponses(text).length)]).toEqual([at, findResponses(text)]);
        });
        await expectNothingLeft();
        expect(getForwarded().filter((summary) => !allowed.has(summary))).toEqual([]);
        expect(new Set(getForwarded()).size).toBe(upstream.requests.length);
        expect([...getBodies()].filter((body) => body !== BODY)).toEqual([]);
      });

    test(`X01 ${what}, sent byte by byte, or with a long pause at any position: all requests are forwarded`, async () => {
      const send = async (
        nonce: string,
        positions: readonly number[],
        pause: () => Promise<unknown>,
      ): Promise<void> => {
        const parts = make(nonce);
        const text = joinText(parts);
        const client = await connectRaw(proxy.port);
        client.socket.setNoDelay(true);
        let from = 0;
        for (const at of [...positions, text.length]) {
          client.send(text.slice(from, at));
          from = at;
          if (at < text.length) await pause();
        }
        const summaries = parts.map((part) => part.summary);
        const all = await client.until((given) => findResponses(given).length === summaries.length, DEADLINE_MS);
        expect([positions.length, findResponses(all)]).toEqual([positions.length, summaries]);
        client.destroy();
      };
      const text = joinText(make('n0000'));
      const everyByte = Array.from({ length: text.length - 1 }, (_, at) => at + 1);
      // Inside a method, target, version, name, value, line break, empty line and body, and between requests.
      const splitPoints = [...text.matchAll(/GET|POST|files|HTTP|Host|Bearer|\r\n\r\n|\r\n/g)].map(
        ({ index, 0: found }) => index + Math.ceil(found.length / 2),
      );
      await Promise.all([
        send('n0001', everyByte, () => eventLoopTurns(2)),
        ...splitPoints.map((at, index) => send(`n1${String(index).padStart(3, '0')}`, [at], () => eventLoopTurns(300))),
      ]);
      expect(upstream.requests).toHaveLength(3 * (splitPoints.length + 1));
      expect(getBodies()).toEqual(new Set([BODY]));
      await expectNothingLeft();
    });
  }
}
