import { connect, type Socket } from 'node:net';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { eventLoopTurns } from '../support/event-loop-turns.ts';
import { type ProxyHarness, startProxyHarness } from '../support/proxy-harness.ts';
import { connectRaw } from '../support/raw-client.ts';
import { type RecordingUpstream, startRecordingUpstream } from '../support/recording-upstream.ts';
import { until } from '../support/serve-process.ts';

/**
 * However the bytes of a connection are split, and wherever they stop: complete requests are forwarded once, in order and
 * byte for byte; an incomplete one is never taken for a request, and leaves nothing behind on a reused connection.
 */
const DEADLINE_MS = 30_000;
const AT_ONCE = 32;
const HOST = 'Host: gate.test\r\nAuthorization: Bearer A\r\n';
/** What a small request would look like to whoever lost count of a body. */
const BODY = 'GET /files/hidden HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer A\r\n\r\n';

interface Part {
  readonly text: string;
  /** As the upstream echoes it. */
  readonly summary: string;
  /** The fast path hands the connection over. */
  readonly remainder: boolean;
}

const get = (name: string, more = ''): Part => ({
  text: `GET /files/${name} HTTP/1.1\r\n${HOST}${more}\r\n`,
  summary: `GET /files/${name} 0`,
  remainder: more !== '',
});
const post = (name: string): Part => ({
  text: `POST /files/${name} HTTP/1.1\r\n${HOST}Content-Length: ${BODY.length}\r\n\r\n${BODY}`,
  summary: `POST /files/${name} ${BODY.length}`,
  remainder: false,
});
const chunked = (name: string): Part => ({
  text: `POST /files/${name} HTTP/1.1\r\n${HOST}Transfer-Encoding: chunked\r\n\r\n${BODY.length.toString(16)}\r\n${BODY}\r\n0\r\n\r\n`,
  summary: `POST /files/${name} ${BODY.length}`,
  remainder: true,
});

type Parts = (nonce: string) => readonly Part[];
const STREAMS: Readonly<Record<string, Parts>> = {
  'a GET, a POST and a GET': (nonce) => [get(`${nonce}a`), post(`${nonce}b`), get(`${nonce}c`)],
  'a POST, a chunked POST and a GET that leaves the fast path': (nonce) => [
    post(`${nonce}a`),
    chunked(`${nonce}b`),
    get(`${nonce}c`, 'TE: trailers\r\n'),
  ],
};

/** Whether a pause here is a pause in a head that the fast path reads. */
function splitsHead(parts: readonly Part[], at: number): boolean {
  let from = 0;
  for (const { text, remainder } of parts) {
    if (at < from + text.indexOf('\r\n\r\n') + 4) return at > from;
    if (remainder) return false;
    from += text.length;
  }
  return false;
}

const textOf = (parts: readonly Part[]): string => parts.map(({ text }) => text).join('');
const nonceAt = (at: number): string => `n${String(at).padStart(4, '0')}`;
const RESPONSE_LINE = /(?:GET|POST) \/files\/\S+ \d+$/gm;
const responsesIn = (text: string): string[] => text.match(RESPONSE_LINE) ?? [];

/** `step`: of the places where a stream can be split, every so many. */
export function testSplitReads(proxyPath: 'fast' | 'full', step: number): void {
  let upstream: RecordingUpstream;
  let proxy: ProxyHarness;
  beforeAll(async () => {
    upstream = await startRecordingUpstream();
    proxy = await startProxyHarness({
      upstream: upstream.url,
      proxyPath,
      // Fewer than clients: connections are used by one after the other.
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
      const reported = `${method} ${target} ${body.length}\n`;
      socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${reported.length}\r\n\r\n${reported}`);
    });
  });

  /** Does it for the places in the stream, some at once. */
  async function everywhere(
    make: Parts,
    does: (at: number, parts: readonly Part[]) => Promise<void>,
  ): Promise<number> {
    const { length } = textOf(make(nonceAt(0)));
    const places = Array.from({ length: length - 1 }, (_, at) => at + 1).filter((at) => at % step === 0);
    const left = places.values();
    const work = async (): Promise<void> => {
      for (const at of left) await does(at, make(nonceAt(at)));
    };
    await Promise.all(Array.from({ length: AT_ONCE }, work));
    return places.length;
  }

  const forwarded = (): string[] =>
    upstream.requests.map(({ method, target, body }) => `${method} ${target} ${body.length}`).toSorted();
  const bodies = (): Set<string> => new Set(upstream.requests.map(({ body }) => body).filter(Boolean));

  /** Those that are whole in the first bytes of a stream. */
  function wholeIn(parts: readonly Part[], at: number): string[] {
    let end = 0;
    return parts
      .filter(({ text }) => {
        end += text.length;
        return end <= at;
      })
      .map(({ summary }) => summary);
  }

  /** On no connection to the upstream came another request behind one that was broken off; and all is at rest. */
  async function nothingIsLeft(): Promise<void> {
    await until(
      'what was broken off has ended upstream',
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
      const count = await everywhere(make, async (at, parts) => {
        const text = textOf(parts);
        const says = parts.map((part) => part.summary);
        expected.push(...says);
        const client = await connectRaw(proxy.port);
        client.socket.setNoDelay(true);
        client.send(text.slice(0, at));
        // Complete requests are answered, so they were read; the rest is a read of its own.
        const first = wholeIn(parts, at);
        await client.until((all) => responsesIn(all).length === first.length, DEADLINE_MS);
        await eventLoopTurns(3);
        client.send(text.slice(at));
        const all = await client.until((given) => responsesIn(given).length === says.length, DEADLINE_MS);
        expect([at, responsesIn(all)]).toEqual([at, says]);
        client.destroy();
      });
      expect(count).toBeGreaterThan(Math.floor(250 / step));
      expect(forwarded()).toEqual(expected.toSorted());
      expect(bodies()).toEqual(new Set([BODY]));
      await nothingIsLeft();
    });

    test(`X12 ${what}, aborted anywhere: complete requests are forwarded, and nothing else`, async () => {
      const expected: string[] = [];
      await everywhere(make, async (at, parts) => {
        const whole = wholeIn(parts, at);
        expected.push(...whole);
        const client = await connectRaw(proxy.port);
        client.socket.setNoDelay(true);
        client.send(textOf(parts).slice(0, at));
        const all = await client.until((given) => responsesIn(given).length === whole.length, DEADLINE_MS);
        expect([at, responsesIn(all)]).toEqual([at, whole]);
        await eventLoopTurns(3);
        client.destroy();
      });
      await nothingIsLeft();
      expect(forwarded()).toEqual(expected.toSorted());
      expect(bodies()).toEqual(new Set([BODY]));
    });

    for (const [how, leave] of Object.entries<(socket: Socket, bytes: string) => void>({
      'with an immediate close': (socket, bytes) =>
        void socket.write(bytes, 'latin1', () => socket.destroy()),
      'with a reset': (socket, bytes) => void socket.write(bytes, 'latin1', () => socket.resetAndDestroy()),
      'with a half-close': (socket, bytes) => void socket.end(bytes, 'latin1'),
    }))
      test(`X12 ${what}, aborted anywhere ${how}: no incomplete request is forwarded, and other clients get their own responses`, async () => {
        // The response comes when its client may be gone, on a connection that other clients wait for.
        upstream.respondWith((socket, { method, target, body }) => {
          const reported = `${method} ${target} ${body.length}\n`;
          void eventLoopTurns(8).then(() => {
            if (!socket.destroyed)
              socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${reported.length}\r\n\r\n${reported}`);
          });
        });
        const allowed = new Set<string>();
        await everywhere(make, async (at, parts) => {
          for (const says of wholeIn(parts, at)) allowed.add(says);
          const socket = connect({ port: proxy.port, host: '127.0.0.1', allowHalfOpen: true });
          let text = '';
          const closed = new Promise<void>((resolve) => {
            socket.on('error', () => {}).on('close', () => resolve());
          });
          socket.on('data', (part: Buffer) => {
            text += part.toString('latin1');
          });
          // The other half is closed when the gateway has closed its own.
          socket.on('end', () => socket.end());
          leave(socket, textOf(parts).slice(0, at));
          // Another client at the same time.
          const stays = get(`${nonceAt(at)}-stays`);
          allowed.add(stays.summary);
          const other = await connectRaw(proxy.port);
          other.send(stays.text);
          const response = await other.until((given) => responsesIn(given).length > 0, DEADLINE_MS);
          expect([at, responsesIn(response)]).toEqual([at, [stays.summary]]);
          other.destroy();
          // After a half-close, responses may still come: to this client's requests only.
          await closed;
          const whole = wholeIn(parts, at);
          expect([at, whole.slice(0, responsesIn(text).length)]).toEqual([at, responsesIn(text)]);
        });
        await nothingIsLeft();
        expect(forwarded().filter((one) => !allowed.has(one))).toEqual([]);
        expect(new Set(forwarded()).size).toBe(upstream.requests.length);
        expect([...bodies()].filter((body) => body !== BODY)).toEqual([]);
      });

    test(`X01 ${what}, byte by byte, and with a long pause in every part: forwarded all the same`, async () => {
      const send = async (
        nonce: string,
        places: readonly number[],
        pause: () => Promise<unknown>,
      ): Promise<void> => {
        const parts = make(nonce);
        const text = textOf(parts);
        const client = await connectRaw(proxy.port);
        client.socket.setNoDelay(true);
        let from = 0;
        for (const at of [...places, text.length]) {
          client.send(text.slice(from, at));
          from = at;
          if (at < text.length) await pause();
        }
        const says = parts.map((part) => part.summary);
        const all = await client.until((given) => responsesIn(given).length === says.length, DEADLINE_MS);
        expect([places.length, responsesIn(all)]).toEqual([places.length, says]);
        client.destroy();
      };
      const parts = make('n0000');
      const text = textOf(parts);
      const everyByte = Array.from({ length: text.length - 1 }, (_, at) => at + 1);
      // In a method, a target, the version, a name, a value, a line end, the empty line, a body, and between two.
      const splitPoints = [...text.matchAll(/GET|POST|files|HTTP|Host|Bearer|\r\n\r\n|\r\n/g)].map(
        ({ index, 0: found }) => index + Math.ceil(found.length / 2),
      );
      // The fast path waits for the rest of a head and then falls back: each of these does, and the one byte by byte.
      const heads = (): number => proxy.fastPath?.counts.fallbacks.head ?? 0;
      const fallenBack = heads() + splitPoints.filter((at) => splitsHead(parts, at)).length + 1;
      await Promise.all([
        send('n0001', everyByte, () => eventLoopTurns(2)),
        ...splitPoints.map((at, index) =>
          send(`n1${String(index).padStart(3, '0')}`, [at], () =>
            proxyPath === 'fast' && splitsHead(parts, at)
              ? until('the fast path falls back', () => heads() >= fallenBack, 30)
              : eventLoopTurns(3),
          ),
        ),
      ]);
      expect(upstream.requests).toHaveLength(3 * (splitPoints.length + 1));
      expect(bodies()).toEqual(new Set([BODY]));
      await nothingIsLeft();
    });
  }
}
