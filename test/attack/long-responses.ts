import type { Socket } from 'node:net';
import { expect, onTestFinished, test } from 'vitest';
import { randomBelow } from '../fuzz/mutations.ts';
import { eventLoopTurns, waitUntilStable } from '../support/event-loop-turns.ts';
import { startProxyHarness } from '../support/proxy-harness.ts';
import { connectRaw, connectRawTls } from '../support/raw-client.ts';
import { startRecordingUpstream } from '../support/recording-upstream.ts';

/** Long responses use pooled buffers. A client must never receive bytes of another response, whatever clients do. */
export type Transport = 'plain' | 'TLS';
const CLIENTS = 24;
const LENGTHS = [3_000, 4_096, 9_000, 65_400, 65_536, 102_400, 300_000];
/** More than the kernel's socket buffers hold. */
const STALLING_LENGTH = 9_000_000;
const DEADLINE_MS = 30_000;

/** A body in which every nine characters identify the request. */
const createBody = (nonce: number, length: number): string =>
  `<${String(nonce).padStart(7, '0')}>`.repeat(Math.ceil(length / 9)).slice(0, length);

const inChunks = (text: string): string =>
  (text.match(/[^]{1,20000}/g) ?? []).map((part) => `${part.length.toString(16)}\r\n${part}\r\n`).join('');

const formatResponse = (text: string, chunked: boolean): string =>
  chunked
    ? `HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n${inChunks(text)}0\r\n\r\n`
    : `HTTP/1.1 200 OK\r\nContent-Length: ${text.length}\r\n\r\n${text}`;

/** Parses the body of the single response in a text; undefined while it is incomplete. */
function parseBody(text: string): string | undefined {
  const start = text.indexOf('\r\n\r\n') + 4;
  if (start < 4) return undefined;
  const length = /\r\ncontent-length: *(\d+)\r/i.exec(text.slice(0, start))?.[1];
  if (length !== undefined) return text.length < start + Number(length) ? undefined : text.slice(start);
  let body = '';
  for (let at = start; ; ) {
    const line = text.indexOf('\r\n', at);
    if (line < 0) return undefined;
    const size = Number.parseInt(text.slice(at, line), 16);
    // An invalid chunk: return a text that equals no expected body.
    if (Number.isNaN(size)) return `no chunk: ${text.slice(at, at + 40)}`;
    if (size === 0) return text.length < line + 4 ? undefined : body + text.slice(line + 4);
    if (text.length < line + 4 + size) return undefined;
    body += text.slice(line + 2, line + 2 + size);
    at = line + 4 + size;
  }
}

export function testLongResponses(transport: Transport, requests: number): void {
  test(`H33 ${requests} long responses to clients that read slowly or disconnect: every byte belongs to the request`, {
    timeout: 120_000 + requests * 30,
  }, async () => {
    const randomInt = randomBelow(transport === 'TLS' ? 7 : 8);
    const upstream = await startRecordingUpstream();
    onTestFinished(() => upstream.close());
    const proxy = await startProxyHarness({
      upstream: upstream.url,
      tls: transport === 'TLS',
      upstreamSettings: { connections: 6, maxPending: 10_000 },
    });
    onTestFinished(() => proxy.close());
    upstream.respondWith((socket: Socket, { target }) => {
      const [, nonce, length, chunked] = /n(\d+)-(\d+)-(\d)/.exec(target) ?? [];
      const text = formatResponse(createBody(Number(nonce), Number(length)), chunked === '1');
      // Split at a random byte, so that reads end anywhere.
      const cut = 1 + randomInt(text.length - 1);
      socket.write(text.slice(0, cut), 'latin1', () => socket.destroyed || socket.write(text.slice(cut), 'latin1'));
    });
    const connect = () => (transport === 'TLS' ? connectRawTls(proxy.port, proxy.ca.pem) : connectRaw(proxy.port));
    let next = 0;
    let complete = 0;
    let aborted = 0;
    const wrong: string[] = [];
    const runClient = async (): Promise<void> => {
      let client = await connect();
      for (let nonce = next++; nonce < requests; nonce = next++) {
        const length = LENGTHS[randomInt(LENGTHS.length)] ?? 0;
        const chunked = randomInt(3) === 0;
        const expected = createBody(nonce, length);
        const seen = client.text().length;
        client.send(
          `GET /files/n${nonce}-${length}-${chunked ? 1 : 0} HTTP/1.1\r\nHost: gate.test\r\nAuthorization: Bearer A\r\n\r\n`,
        );
        if (nonce % 8 === 0) {
          // The client reads nothing for a while.
          client.socket.pause();
          await eventLoopTurns(1 + randomInt(100));
          client.socket.resume();
        } else if (nonce % 8 === 1) {
          // The client disconnects after part of the response.
          const some = await client.until((text) => text.length - seen >= Math.min(length, 2_000), DEADLINE_MS);
          const partial = some.slice(seen);
          const body = partial.slice(partial.indexOf('\r\n\r\n') + 4);
          if (/<\d{7}>/.exec(body)?.[0] !== expected.slice(0, 9))
            wrong.push(`${nonce} began with ${body.slice(0, 40)}`);
          if (transport === 'plain' && randomInt(2) === 0) client.socket.resetAndDestroy();
          else client.destroy();
          aborted += 1;
          client = await connect();
          continue;
        }
        const text = await client.until((given) => parseBody(given.slice(seen)) !== undefined, DEADLINE_MS);
        if (parseBody(text.slice(seen)) === expected) complete += 1;
        else wrong.push(`${nonce} of ${length} got something else`);
      }
      client.destroy();
    };
    await Promise.all(Array.from({ length: CLIENTS }, runClient));
    expect(wrong.slice(0, 5)).toEqual([]);
    expect(aborted).toBe(Math.floor((requests + 6) / 8));
    expect(complete).toBe(requests - aborted);
    expect(proxy.log.filter((line) => line.includes('"level":"error"'))).toEqual([]);
  });
}

/** Reads the single response on a connection; resolves to whether its body equals `expected`. */
function receivesResponse(socket: Socket, expected: string): Promise<boolean> {
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
      const isExpected = expected.startsWith(rest, at);
      at += rest.length;
      if (!isExpected || at === expected.length) resolve(isExpected);
    });
    socket.on('close', () => resolve(false));
  });
}

/** Writes in parts, each after the previous one was flushed, and counts the flushed bytes. */
function writeInParts(socket: Socket, text: string, count: (bytes: number) => void): void {
  const part = text.slice(0, 65_536);
  if (part === '' || socket.destroyed) return;
  socket.write(part, 'latin1', (error) => {
    count(part.length);
    if (!error) writeInParts(socket, text.slice(part.length), count);
  });
}

export function testStalledReaders(transport: Transport, clients: number): void {
  test(`H33 responses that fill every buffer, to ${clients} clients that stop reading and continue: every byte belongs to the request`, {
    timeout: 120_000,
  }, async () => {
    const upstream = await startRecordingUpstream();
    onTestFinished(() => upstream.close());
    const proxy = await startProxyHarness({
      upstream: upstream.url,
      tls: transport === 'TLS',
      upstreamSettings: { connections: clients, maxPending: 100 },
    });
    onTestFinished(() => proxy.close());
    const flushed = Array.from({ length: clients }, () => 0);
    upstream.respondWith((socket: Socket, { target }) => {
      const nonce = Number(/n(\d+)/.exec(target)?.[1]);
      writeInParts(socket, formatResponse(createBody(nonce, STALLING_LENGTH), false), (bytes) => {
        flushed[nonce] = (flushed[nonce] ?? 0) + bytes;
      });
    });
    const connect = () => (transport === 'TLS' ? connectRawTls(proxy.port, proxy.ca.pem) : connectRaw(proxy.port));
    const results = Array.from({ length: clients }, async (_, nonce) => {
      const { socket } = await connect();
      onTestFinished(() => void socket.destroy());
      socket.removeAllListeners('data');
      const responded = receivesResponse(socket, createBody(nonce, STALLING_LENGTH));
      socket.write(`GET /files/n${nonce} HTTP/1.1\r\nHost: gate.test\r\nAuthorization: Bearer A\r\n\r\n`);
      for (let pauses = 0; pauses < 3; pauses += 1) {
        socket.pause();
        await waitUntilStable(() => flushed[nonce] ?? 0);
        socket.resume();
        await eventLoopTurns(1);
      }
      return responded;
    });
    expect(await Promise.all(results)).toEqual(Array.from({ length: clients }, () => true));
  });
}
