import { connect, type Socket } from 'node:net';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { type ProxyHarness, proxyHarness } from '../support/proxy-harness.ts';
import { rawClient } from '../support/raw-client.ts';
import { type RecordingUpstream, recordingUpstream } from '../support/recording-upstream.ts';
import { until } from '../support/serve-process.ts';

/**
 * However the bytes of a connection come, and wherever they stop: what was whole is carried once, in its order and to the
 * byte; what was not is never taken for a request, and leaves nothing behind on a connection that is used again.
 */
const AT_ONCE = 32;
const HOST = 'Host: gate.test\r\nAuthorization: Bearer A\r\n';
/** What a small request would look like to whoever lost count of a body. */
const BODY = 'GET /files/hidden HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer A\r\n\r\n';

interface Part {
  readonly text: string;
  /** As the upstream tells it. */
  readonly says: string;
}

const get = (name: string, more = ''): Part => ({
  text: `GET /files/${name} HTTP/1.1\r\n${HOST}${more}\r\n`,
  says: `GET /files/${name} 0`,
});
const post = (name: string): Part => ({
  text: `POST /files/${name} HTTP/1.1\r\n${HOST}Content-Length: ${BODY.length}\r\n\r\n${BODY}`,
  says: `POST /files/${name} ${BODY.length}`,
});
const chunked = (name: string): Part => ({
  text: `POST /files/${name} HTTP/1.1\r\n${HOST}Transfer-Encoding: chunked\r\n\r\n${BODY.length.toString(16)}\r\n${BODY}\r\n0\r\n\r\n`,
  says: `POST /files/${name} ${BODY.length}`,
});

type Parts = (nonce: string) => readonly Part[];
const STREAMS: Readonly<Record<string, Parts>> = {
  'a GET, a POST and a GET': (nonce) => [get(`${nonce}a`), post(`${nonce}b`), get(`${nonce}c`)],
  'a POST, a POST in chunks and a GET that is not for the fast lane': (nonce) => [
    post(`${nonce}a`),
    chunked(`${nonce}b`),
    get(`${nonce}c`, 'TE: trailers\r\n'),
  ],
};

const textOf = (parts: readonly Part[]): string => parts.map(({ text }) => text).join('');
const nonceAt = (at: number): string => `n${String(at).padStart(4, '0')}`;
const TOLD = /(?:GET|POST) \/files\/\S+ \d+$/gm;
const answersIn = (text: string): string[] => text.match(TOLD) ?? [];

describe.each(['fast', 'full'] as const)('by the %s lane', (firstLane) => {
  let upstream: RecordingUpstream;
  let gate: ProxyHarness;
  beforeAll(async () => {
    upstream = await recordingUpstream();
    gate = await proxyHarness({
      upstream: upstream.url,
      firstLane,
      // Fewer than clients: connections are used by one after the other.
      upstreamSettings: { connections: 6, maxPending: 10_000 },
    });
  });
  afterAll(async () => {
    await gate.close();
    await upstream.close();
  });
  beforeEach(() => {
    upstream.reset();
    upstream.reply((socket, { method, target, body }) => {
      const told = `${method} ${target} ${body.length}\n`;
      socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${told.length}\r\n\r\n${told}`);
    });
  });

  /** Does it for every place in the stream, some at once. */
  async function everywhere(
    make: Parts,
    does: (at: number, parts: readonly Part[]) => Promise<void>,
  ): Promise<number> {
    const { length } = textOf(make(nonceAt(0)));
    let next = 1;
    const work = async (): Promise<void> => {
      for (let at = next++; at < length; at = next++) await does(at, make(nonceAt(at)));
    };
    await Promise.all(Array.from({ length: AT_ONCE }, work));
    return length - 1;
  }

  const carried = (): string[] =>
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
      .map(({ says }) => says);
  }

  /** On no connection to the upstream came another request behind one that was broken off; and all is at rest. */
  async function nothingIsLeft(): Promise<void> {
    await until('what was broken off has ended upstream', () =>
      upstream.streams().every(({ unfinished, closed }) => unfinished === '' || closed),
    );
    for (const { unfinished } of upstream.streams())
      expect(unfinished.match(/x-request-id/gi)?.length ?? 0).toBeLessThanOrEqual(1);
    expect(upstream.bytes()).not.toContain('/files/hidden HTTP/1.1\r\nx-');
    expect(gate.log.filter((line) => line.includes('"level":"error"'))).toEqual([]);
  }

  for (const [what, make] of Object.entries(STREAMS)) {
    test(`H29 ${what}, cut in two at every place: each is carried once, whole, and answered in its order`, async () => {
      const expected: string[] = [];
      const count = await everywhere(make, async (at, parts) => {
        const text = textOf(parts);
        const says = parts.map((part) => part.says);
        expected.push(...says);
        const client = await rawClient(gate.port);
        client.socket.setNoDelay(true);
        client.send(text.slice(0, at));
        // What is whole is answered, so that it was read; and then the rest is a read of its own.
        const first = wholeIn(parts, at);
        await client.until((all) => answersIn(all).length === first.length, 30_000);
        await new Promise((resolve) => setTimeout(resolve, 2));
        client.send(text.slice(at));
        const all = await client.until((given) => answersIn(given).length === says.length, 30_000);
        expect([at, answersIn(all)]).toEqual([at, says]);
        client.destroy();
      });
      expect(count).toBeGreaterThan(250);
      expect(carried()).toEqual(expected.toSorted());
      expect(bodies()).toEqual(new Set([BODY]));
      await nothingIsLeft();
    });

    test(`X12 ${what}, broken off at every place: what was whole was carried, and nothing else`, async () => {
      const expected: string[] = [];
      await everywhere(make, async (at, parts) => {
        const whole = wholeIn(parts, at);
        expected.push(...whole);
        const client = await rawClient(gate.port);
        client.socket.setNoDelay(true);
        client.send(textOf(parts).slice(0, at));
        const all = await client.until((given) => answersIn(given).length === whole.length, 30_000);
        expect([at, answersIn(all)]).toEqual([at, whole]);
        await new Promise((resolve) => setTimeout(resolve, 2));
        client.destroy();
      });
      await nothingIsLeft();
      expect(carried()).toEqual(expected.toSorted());
      expect(bodies()).toEqual(new Set([BODY]));
    });

    for (const [how, leave] of Object.entries<(socket: Socket, bytes: string) => void>({
      'and left at once': (socket, bytes) => void socket.write(bytes, 'latin1', () => socket.destroy()),
      'and left with a reset': (socket, bytes) =>
        void socket.write(bytes, 'latin1', () => socket.resetAndDestroy()),
      'and half-closed': (socket, bytes) => void socket.end(bytes, 'latin1'),
    }))
      test(`X12 ${what}, broken off at every place ${how}: nothing that was not whole is carried, and who stays gets their own`, async () => {
        // The answer comes when who asked may have left; the connection it comes on is wanted by others.
        upstream.reply((socket, { method, target, body }) => {
          const told = `${method} ${target} ${body.length}\n`;
          setTimeout(() => {
            if (!socket.destroyed)
              socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${told.length}\r\n\r\n${told}`);
          }, 2);
        });
        const allowed = new Set<string>();
        await everywhere(make, async (at, parts) => {
          for (const says of wholeIn(parts, at)) allowed.add(says);
          const socket = connect({ port: gate.port, host: '127.0.0.1', allowHalfOpen: true });
          let text = '';
          const closed = new Promise<void>((resolve) => {
            socket.on('error', () => {}).on('close', () => resolve());
          });
          socket.on('data', (part: Buffer) => {
            text += part.toString('latin1');
          });
          leave(socket, textOf(parts).slice(0, at));
          // Somebody else, at the same time.
          const stays = get(`${nonceAt(at)}-stays`);
          allowed.add(stays.says);
          const other = await rawClient(gate.port);
          other.send(stays.text);
          const answer = await other.until((given) => answersIn(given).length > 0, 30_000);
          expect([at, answersIn(answer)]).toEqual([at, [stays.says]]);
          other.destroy();
          // Who half-closed may still be owed answers, and gets none that are not theirs.
          await Promise.race([closed, new Promise((resolve) => setTimeout(resolve, 20))]);
          socket.destroy();
          const whole = wholeIn(parts, at);
          expect([at, whole.slice(0, answersIn(text).length)]).toEqual([at, answersIn(text)]);
        });
        await nothingIsLeft();
        expect(carried().filter((one) => !allowed.has(one))).toEqual([]);
        expect(new Set(carried()).size).toBe(upstream.requests.length);
        expect([...bodies()].filter((body) => body !== BODY)).toEqual([]);
      });

    test(`X01 ${what}, byte by byte and with a long pause in every part: all the same`, async () => {
      const pauses = async (nonce: string, places: readonly number[], ms: number): Promise<void> => {
        const parts = make(nonce);
        const text = textOf(parts);
        const client = await rawClient(gate.port);
        client.socket.setNoDelay(true);
        let from = 0;
        for (const at of [...places, text.length]) {
          client.send(text.slice(from, at));
          from = at;
          await new Promise((resolve) => setTimeout(resolve, ms));
        }
        const says = parts.map((part) => part.says);
        const all = await client.until((given) => answersIn(given).length === says.length, 30_000);
        expect([places.length, answersIn(all)]).toEqual([places.length, says]);
        client.destroy();
      };
      const text = textOf(make('n0000'));
      const everyByte = Array.from({ length: text.length - 1 }, (_, at) => at + 1);
      // In a method, a target, the version, a name, a value, a line's end, the empty line, a body, and between two.
      const telling = [...text.matchAll(/GET|POST|files|HTTP|Host|Bearer|\r\n\r\n|\r\n/g)].map(
        ({ index, 0: found }) => index + Math.ceil(found.length / 2),
      );
      await Promise.all([
        pauses('n0001', everyByte, 1),
        // Longer than the fast lane waits for a head.
        ...telling.map((at, index) => pauses(`n1${String(index).padStart(3, '0')}`, [at], 650)),
      ]);
      expect(upstream.requests).toHaveLength(3 * (telling.length + 1));
      expect(bodies()).toEqual(new Set([BODY]));
      await nothingIsLeft();
    });
  }
});
