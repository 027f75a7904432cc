import { once } from 'node:events';
import { connect, createServer, type TLSSocket } from 'node:tls';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { FrameWriter } from '../../src/http2/frame-writer.ts';
import { openConnectionAccount } from '../support/connection-account.ts';
import { eventLoopTurns } from '../support/event-loop-turns.ts';
import { createFrameReader, FLAG, FRAME, type Frame } from '../support/http2-frames.ts';
import { createCa, issueServer } from '../support/pki.ts';
import { listenTcp, type TcpServer } from '../support/tcp-server.ts';
import { until } from '../support/until.ts';

let server: TcpServer;
let ca: string;
const accepted: TLSSocket[] = [];
beforeAll(async () => {
  const issuer = await createCa();
  ca = issuer.pem;
  const { pem, keyPem } = await issueServer(issuer);
  server = await listenTcp(
    createServer({ cert: pem, key: keyPem }, (socket) => void accepted.push(socket.on('error', () => {}))),
  );
});
afterAll(() => server.close());

const clients: TLSSocket[] = [];
afterEach(() => {
  for (const client of clients.splice(0)) client.destroy();
});

/** Both ends of a connection. */
async function openConnection(): Promise<{ readonly client: TLSSocket; readonly socket: TLSSocket }> {
  const client = connect({ port: server.port, host: '127.0.0.1', servername: 'localhost', ca });
  clients.push(client.on('error', () => {}));
  await once(client, 'secureConnect');
  const socket = await until('it is accepted', () =>
    accepted.find(({ remotePort }) => remotePort === client.localPort),
  );
  return { client, socket };
}

test('a destroyed socket does not count as drained, although its last write succeeded', async () => {
  const { socket } = await openConnection();
  let drains = 0;
  const writer = new FrameWriter(socket, openConnectionAccount(), () => (drains += 1));
  const part = Buffer.alloc(16_384);
  while (!writer.needsDrain) writer.data(1, 0, part, 0, part.length);
  socket.destroy();
  await once(socket, 'close');
  await eventLoopTurns(10);
  expect(drains).toBe(0);
});

test('clients that read at different speeds, stop reading or disconnect get their own frames, in order and to the end', async () => {
  const FRAMES = 600;
  const random = createRandom(1);
  const connections = await Promise.all(Array.from({ length: 12 }, openConnection));
  const results = connections.map(async ({ client, socket }, index) => {
    const isAborted = index % 4 === 3;
    const frames: Frame[] = [];
    const readFrames = createFrameReader((received) => void frames.push(received));
    client.on('data', (part: Buffer) => {
      readFrames(part);
      if (isAborted && frames.length > FRAMES / 2) client.destroy();
      if (random() < 0.3) {
        client.pause();
        void eventLoopTurns(1 + Math.trunc(random() * 30)).then(() => client.resume());
      }
    });
    const ended = once(client, 'close');
    let next = 0;
    const writer = new FrameWriter(socket, openConnectionAccount(), () => writeMore());
    const writeMore = (): void => {
      while (next < FRAMES && !writer.needsDrain && !socket.destroyed) {
        const body = createBody(index, next);
        // Alternating streams, so that no two parts share a frame.
        writer.data(1 + 2 * (next % 2), 0, body, 0, body.length);
        next += 1;
        if (next === FRAMES) {
          writer.goaway(1, 0);
          writer.end();
        } else if (random() < 0.2) return void setImmediate(writeMore);
      }
    };
    writeMore();
    await ended;
    return { index, isAborted, frames };
  });
  for (const { index, isAborted, frames } of await Promise.all(results)) {
    const last = isAborted ? undefined : frames.pop();
    if (!isAborted) expect([last?.type, frames.length]).toEqual([FRAME.goAway, FRAMES]);
    frames.forEach(({ type, flags, stream, payload }, at) => {
      expect([type, flags & FLAG.endStream, stream]).toEqual([FRAME.data, 0, 1 + 2 * (at % 2)]);
      expect(payload.equals(createBody(index, at)), `frame ${at} of connection ${index}`).toBe(true);
    });
  }
});

const createBody = (connection: number, at: number): Buffer =>
  Buffer.alloc((connection * 7_919 + at * 104_729) % 16_385, `${connection}.${at} `);

/** Reproducible (mulberry32). */
function createRandom(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
  };
}
