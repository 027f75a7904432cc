import { once } from 'node:events';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { expect, onTestFinished, test } from 'vitest';
import type { ResponseHandler } from '../../../../src/proxy/upstream/connection.ts';
import { Http2Pool } from '../../../../src/proxy/upstream/http2/pool.ts';
import type { UpstreamStream } from '../../../../src/proxy/upstream/stream.ts';
import {
  CODE,
  createFrameReader,
  dataFrame,
  FLAG,
  FRAME,
  type Frame,
  headersFrame,
  PREFACE,
  resetFrame,
  settingsFrame,
} from '../../../support/http2-frames.ts';
import { until } from '../../../support/until.ts';

interface Connection {
  readonly socket: Socket;
  readonly frames: Frame[];
  isClosed: boolean;
}

/** An upstream that does what the test says, and the pool of its connections. */
async function setUp() {
  const connections: Connection[] = [];
  const server = createServer((socket) => {
    const connection: Connection = { socket, frames: [], isClosed: false };
    connections.push(connection);
    const read = createFrameReader((received) => connection.frames.push(received));
    let skipped = 0;
    socket
      .on('error', () => {})
      .on('close', () => {
        connection.isClosed = true;
      })
      .on('data', (part: Buffer) => {
        const rest = part.subarray(Math.min(part.length, PREFACE.length - skipped));
        skipped += part.length - rest.length;
        if (rest.length > 0) read(rest);
      });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const pool = new Http2Pool(`http://127.0.0.1:${port}`, { serverName: undefined, secureContext: undefined });
  onTestFinished(async () => {
    await pool.close();
    for (const { socket } of connections) socket.destroy();
    server.close();
  });
  return {
    connections,
    /** The connection with this index, as soon as the upstream has it. */
    accept: async (index: number): Promise<Connection> => {
      await until('the connection is accepted', () => connections[index] !== undefined);
      return connections[index] as Connection;
    },
    begin: () => new Exchange(pool.acquire()),
  };
}

/** It sends a request as soon as it can. */
class Exchange implements ResponseHandler {
  readonly events: string[] = [];
  readonly stream: UpstreamStream;
  takesData = true;

  constructor(stream: UpstreamStream) {
    this.stream = stream;
    stream.assign(this, false, performance.now());
    if (stream.isConnected) this.onConnected();
  }

  onConnected(): void {
    this.events.push('connected');
    this.stream.send({ method: 'GET', path: '/', fields: '', acceptsTrailers: false }, '', undefined);
  }

  onDrain(): void {}
  onHead(): void {
    this.events.push('head');
  }

  onData(bytes: Buffer, start: number, end: number): boolean {
    this.events.push(bytes.toString('latin1', start, end));
    return this.takesData;
  }

  onReadEnd(): void {}
  onEnd(): void {
    this.events.push('end');
  }

  onError(error: Error): void {
    this.events.push(error.message);
  }

  onInternalError(error: unknown): void {
    this.events.push(String(error));
  }
}

const countRequests = ({ frames }: Connection): number => frames.filter(({ type }) => type === FRAME.headers).length;

const respondTo = (stream: number): Buffer =>
  Buffer.concat([
    headersFrame(stream, [[':status', '200']], { end: false }),
    dataFrame(stream, 'first'),
    dataFrame(stream, ' last', { end: true }),
  ]);

test.for([
  [
    'resets the stream',
    (socket: Socket) => socket.write(Buffer.concat([resetFrame(1, CODE.noError), settingsFrame()])),
  ],
  ['closes the connection', (socket: Socket) => socket.end()],
] as const)(
  'a response that has arrived completely is delivered, although the upstream %s before the client reads it',
  async ([, end]) => {
    const { begin, accept } = await setUp();
    const exchange = begin();
    exchange.takesData = false;
    const upstream = await accept(0);
    upstream.socket.write(settingsFrame());
    await until('the request has arrived', () => countRequests(upstream) === 1);
    upstream.socket.write(respondTo(1));
    await until('the response has begun', () => exchange.events.includes('first'));
    end(upstream.socket);
    // The acknowledgement of the settings that follow the reset shows that it was read.
    const acks = () => upstream.frames.filter(({ type, flags }) => type === FRAME.settings && flags === FLAG.ack);
    await until('gatehouse has read the end', () => upstream.isClosed || acks().length === 2);
    exchange.takesData = true;
    exchange.stream.resume();
    expect(exchange.events).toEqual(['connected', 'head', 'first', ' last', 'end']);
  },
);
