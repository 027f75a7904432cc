import type { Socket } from 'node:net';
import { afterEach, describe, expect, test } from 'vitest';
import { lentBuffers } from '../../src/proxy/fast/lent-buffers.ts';
import { randomBelow } from '../fuzz/mutations.ts';
import { type ProxyHarness, proxyHarness } from '../support/proxy-harness.ts';
import { type RawClient, rawClient, rawTlsClient } from '../support/raw-client.ts';
import { recordingUpstream } from '../support/recording-upstream.ts';

/**
 * Long answers go through memory that is used again. Whatever becomes of a client meanwhile, every byte it gets is its own.
 */
const REQUESTS = Number(process.env['ROW_COUNT'] ?? 600);
const CLIENTS = 24;
const STALLED = 8;
const LENGTHS = [3_000, 4_096, 9_000, 65_400, 65_536, 102_400, 300_000];

const cleanups: (() => Promise<void> | void)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup();
});

/** Text of which every few letters say whose it is. */
const bodyOf = (nonce: number, length: number): string =>
  `<${String(nonce).padStart(7, '0')}>`.repeat(Math.ceil(length / 9)).slice(0, length);

const inChunks = (text: string): string =>
  (text.match(/[^]{1,20000}/g) ?? []).map((part) => `${part.length.toString(16)}\r\n${part}\r\n`).join('');

const answer = (text: string, chunked: boolean): string =>
  chunked
    ? `HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n${inChunks(text)}0\r\n\r\n`
    : `HTTP/1.1 200 OK\r\nContent-Length: ${text.length}\r\n\r\n${text}`;

/** The body of the one answer in a text; undefined while it is not whole. */
function bodyIn(text: string): string | undefined {
  const start = text.indexOf('\r\n\r\n') + 4;
  if (start < 4) return undefined;
  const length = /\r\ncontent-length: *(\d+)\r/i.exec(text.slice(0, start))?.[1];
  if (length !== undefined) return text.length < start + Number(length) ? undefined : text.slice(start);
  let body = '';
  for (let at = start; ; ) {
    const line = text.indexOf('\r\n', at);
    if (line < 0) return undefined;
    const size = Number.parseInt(text.slice(at, line), 16);
    // What is no chunk ends the reading, and is no body that anybody expects.
    if (Number.isNaN(size)) return `no chunk: ${text.slice(at, at + 40)}`;
    if (size === 0) return text.length < line + 4 ? undefined : body + text.slice(line + 4);
    if (text.length < line + 4 + size) return undefined;
    body += text.slice(line + 2, line + 2 + size);
    at = line + 4 + size;
  }
}

const connectTo =
  (gate: ProxyHarness, transport: 'plain' | 'TLS'): (() => Promise<RawClient>) =>
  () =>
    transport === 'TLS' ? rawTlsClient(gate.port, gate.ca.pem) : rawClient(gate.port);

describe.each(['plain', 'TLS'] as const)('to clients over %s', (transport) => {
  test(`H33 ${REQUESTS} long answers to clients that are slow or leave: every byte is its own`, {
    timeout: 120_000 + REQUESTS * 30,
  }, async () => {
    const below = randomBelow(transport === 'TLS' ? 7 : 8);
    const upstream = await recordingUpstream();
    cleanups.push(() => upstream.close());
    const gate = await proxyHarness({
      upstream: upstream.url,
      firstLane: 'fast',
      tls: transport === 'TLS',
      upstreamSettings: { connections: 6, maxPending: 10_000 },
    });
    cleanups.push(() => gate.close());
    upstream.reply((socket: Socket, { target }) => {
      const [, nonce, length, chunked] = /n(\d+)-(\d+)-(\d)/.exec(target) ?? [];
      const text = answer(bodyOf(Number(nonce), Number(length)), chunked === '1');
      // In two parts, so that reads end anywhere.
      const cut = 1 + below(text.length - 1);
      socket.write(
        text.slice(0, cut),
        'latin1',
        () => socket.destroyed || socket.write(text.slice(cut), 'latin1'),
      );
    });
    const connect = connectTo(gate, transport);
    let next = 0;
    let whole = 0;
    let left = 0;
    const wrong: string[] = [];
    const work = async (): Promise<void> => {
      let client = await connect();
      for (let nonce = next++; nonce < REQUESTS; nonce = next++) {
        const length = LENGTHS[below(LENGTHS.length)] ?? 0;
        const chunked = below(3) === 0;
        const expected = bodyOf(nonce, length);
        const seen = client.text().length;
        client.send(
          `GET /files/n${nonce}-${length}-${chunked ? 1 : 0} HTTP/1.1\r\nHost: gate.test\r\nAuthorization: Bearer A\r\n\r\n`,
        );
        const way = below(8);
        if (way === 0) {
          // Takes nothing for a while.
          client.socket.pause();
          await new Promise((resolve) => setTimeout(resolve, below(20)));
          client.socket.resume();
        } else if (way === 1) {
          // Leaves when some of it has come.
          const some = await client.until((text) => text.length - seen >= Math.min(length, 2_000));
          const begun = some.slice(seen);
          const body = begun.slice(begun.indexOf('\r\n\r\n') + 4);
          if (/<\d{7}>/.exec(body)?.[0] !== expected.slice(0, 9))
            wrong.push(`${nonce} began with ${body.slice(0, 40)}`);
          if (transport === 'plain' && below(2) === 0) client.socket.resetAndDestroy();
          else client.destroy();
          left += 1;
          client = await connect();
          continue;
        }
        const text = await client.until((given) => bodyIn(given.slice(seen)) !== undefined, 30_000);
        if (bodyIn(text.slice(seen)) === expected) whole += 1;
        else wrong.push(`${nonce} of ${length} got something else`);
      }
      client.destroy();
    };
    await Promise.all(Array.from({ length: CLIENTS }, work));
    expect(wrong.slice(0, 5)).toEqual([]);
    expect(left).toBeGreaterThan(REQUESTS / 20);
    expect(whole).toBe(REQUESTS - left);
    expect(gate.lane?.counts.fast).toBeGreaterThan(REQUESTS * 0.9);
    expect(gate.log.filter((line) => line.includes('"level":"error"'))).toEqual([]);
  });
});

/** Reads the one answer on a connection; says whether every byte of its body is as it should be, and none is missing. */
function isAnswered(socket: Socket, expected: string): Promise<boolean> {
  return new Promise((resolve) => {
    let head = '';
    let at = -1;
    socket.on('data', (part: string) => {
      let rest = part;
      if (at < 0) {
        head += part;
        const end = head.indexOf('\r\n\r\n');
        if (end < 0) return;
        rest = head.slice(end + 4);
        at = 0;
      }
      const right = expected.startsWith(rest, at);
      at += rest.length;
      if (!right || at === expected.length) resolve(right);
    });
    socket.on('close', () => resolve(false));
  });
}

describe.each(['plain', 'TLS'] as const)('to clients over %s', (transport) => {
  test('H33 answers that fill every buffer on the way, to clients that take nothing for a while: every byte is its own', {
    timeout: 120_000,
  }, async () => {
    const upstream = await recordingUpstream();
    cleanups.push(() => upstream.close());
    const gate = await proxyHarness({
      upstream: upstream.url,
      firstLane: 'fast',
      tls: transport === 'TLS',
      upstreamSettings: { connections: STALLED, maxPending: 100 },
    });
    cleanups.push(() => gate.close());
    upstream.reply((socket: Socket, { target }) => {
      const nonce = Number(/n(\d+)/.exec(target)?.[1]);
      socket.write(answer(bodyOf(nonce, 9_000_000), false), 'latin1');
    });
    const connect = connectTo(gate, transport);
    const results = Array.from({ length: STALLED }, async (_, nonce) => {
      const { socket } = await connect();
      socket.removeAllListeners('data');
      const answered = isAnswered(socket, bodyOf(nonce, 9_000_000));
      socket.write(`GET /files/n${nonce} HTTP/1.1\r\nHost: gate.test\r\nAuthorization: Bearer A\r\n\r\n`);
      for (let pauses = 0; pauses < 3; pauses += 1) {
        socket.pause();
        await new Promise((resolve) => setTimeout(resolve, 100 + 20 * nonce));
        socket.resume();
        await new Promise((resolve) => setImmediate(resolve));
      }
      const right = await answered;
      socket.destroy();
      return right;
    });
    expect(await Promise.all(results)).toEqual(Array.from({ length: STALLED }, () => true));
    expect(gate.lane?.counts.fast).toBe(STALLED);
  });
});

describe('memory that is lent', () => {
  test('X04 is lent again only after it was said to be written, and never after an error', () => {
    const buffers = lentBuffers();
    const first = buffers.borrow(10_000);
    const second = buffers.borrow(10_000);
    expect(first).toBeDefined();
    expect(second?.bytes).not.toBe(first?.bytes);
    first?.written();
    expect(buffers.borrow(10_000)?.bytes).toBe(first?.bytes);
    second?.written(new Error('the client has left'));
    expect(buffers.borrow(10_000)?.bytes).not.toBe(second?.bytes);
  });

  test('X04 is as large as was asked for, or there is none', () => {
    const buffers = lentBuffers();
    for (const size of [4_096, 65_536, 73_728])
      expect(buffers.borrow(size)?.bytes.length).toBeGreaterThanOrEqual(size);
    expect(buffers.borrow(100)).toBeUndefined();
    expect(buffers.borrow(73_729)).toBeUndefined();
  });

  test('X04 does not pile up when many come back at once', () => {
    const buffers = lentBuffers();
    const lent = Array.from({ length: 500 }, () => buffers.borrow(70_000));
    for (const loan of lent) loan?.written();
    const known = new Set(lent.map((loan) => loan?.bytes));
    const again = Array.from({ length: 500 }, () => buffers.borrow(70_000)?.bytes);
    const kept = again.filter((bytes) => known.has(bytes)).length;
    expect(kept).toBeGreaterThan(0);
    expect(kept * 73_728).toBeLessThan(6_400_000);
  });

  test('X04 is at most three times what was asked for', () => {
    const buffers = lentBuffers();
    for (let size = 4_096; size <= 73_728; size += 512)
      expect((buffers.borrow(size)?.bytes.length ?? Infinity) / size).toBeLessThanOrEqual(3);
  });
});
