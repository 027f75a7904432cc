import { once } from 'node:events';
import { connect, type TLSSocket } from 'node:tls';
import { createEventWaiter } from '../support/until.ts';

/**
 * An HTTP/2 client that sends frames one by one (RFC 9113), also those that no client library would send. Header blocks
 * are literals without Huffman coding or indexing (RFC 7541 §6.2.2), so that a field can contain any bytes.
 */
export const FRAME = {
  data: 0,
  headers: 1,
  priority: 2,
  reset: 3,
  settings: 4,
  push: 5,
  ping: 6,
  goAway: 7,
  windowUpdate: 8,
  continuation: 9,
} as const;

export const FLAG = { endStream: 1, ack: 1, endHeaders: 4, padded: 8 } as const;

export interface Frame {
  readonly type: number;
  readonly flags: number;
  readonly stream: number;
  readonly payload: Buffer;
}

export function frame(
  type: number,
  flags: number,
  stream: number,
  payload: Buffer = Buffer.alloc(0),
): Buffer {
  const head = Buffer.alloc(9);
  head.writeUIntBE(payload.length, 0, 3);
  head[3] = type;
  head[4] = flags;
  head.writeUInt32BE(stream, 5);
  return Buffer.concat([head, payload]);
}

export const uint32 = (value: number): Buffer => {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(value);
  return bytes;
};

/** RFC 7541 §5.1, with a prefix of seven bits. */
function encodeLength(value: number): Buffer {
  if (value < 127) return Buffer.from([value]);
  const bytes = [127];
  let rest = value - 127;
  for (; rest >= 128; rest = Math.floor(rest / 128)) bytes.push((rest % 128) + 128);
  return Buffer.from([...bytes, rest]);
}

export type Field = readonly [string, string];

export const headerBlock = (fields: readonly Field[]): Buffer =>
  Buffer.concat(
    fields.flatMap(([name, value]) => [
      Buffer.from([0]),
      encodeLength(name.length),
      Buffer.from(name, 'latin1'),
      encodeLength(value.length),
      Buffer.from(value, 'latin1'),
    ]),
  );

export const requestFields = (path: string, method = 'GET', authority = 'localhost:8443'): Field[] => [
  [':method', method],
  [':scheme', 'https'],
  [':authority', authority],
  [':path', path],
];

export interface FrameClient {
  readonly socket: TLSSocket;
  readonly frames: readonly Frame[];
  send(...parts: readonly Buffer[]): void;
  /** Sends the head of a request and returns its stream id. */
  request(fields: readonly Field[], more?: { readonly end?: boolean; readonly stream?: number }): number;
  /** Waits for a condition or the end of the connection; fails after `ms`. */
  until(condition: () => boolean, ms?: number): Promise<void>;
  /** The final status of a stream or the error code of its reset; undefined while there is neither. */
  outcome(stream: number): { readonly status?: number; readonly reset?: number } | undefined;
  /** Whether the response on this stream was ended with END_STREAM. */
  endedCleanly(stream: number): boolean;
  body(stream: number): string;
  goAway(): number | undefined;
  closed(): boolean;
  /** Whether the connection is closed or a GOAWAY was received. */
  isOver(): boolean;
  destroy(): void;
}

export async function frameClient(
  port: number,
  {
    ca,
    settings = [[1, 0]],
  }: { readonly ca: string; readonly settings?: readonly (readonly [number, number])[] },
): Promise<FrameClient> {
  const socket = connect({ port, host: '127.0.0.1', servername: 'localhost', ca, ALPNProtocols: ['h2'] });
  await once(socket, 'secureConnect');
  if (socket.alpnProtocol !== 'h2') throw new Error(`not HTTP/2 but ${socket.alpnProtocol}`);
  const frames: Frame[] = [];
  const { wake, until } = createEventWaiter(() => `the last frames: ${JSON.stringify(frames.slice(-5))}`);
  let unparsed: Buffer = Buffer.alloc(0);
  let closed = false;
  let next = 1;
  const send = (...parts: readonly Buffer[]): void => {
    if (!closed) socket.write(Buffer.concat(parts));
  };
  socket.on('error', () => {});
  socket.on('close', () => {
    closed = true;
    wake();
  });
  socket.on('data', (part: Buffer) => {
    unparsed = Buffer.concat([unparsed, part]);
    while (unparsed.length >= 9) {
      const size = 9 + unparsed.readUIntBE(0, 3);
      if (unparsed.length < size) break;
      const [type = 0, flags = 0] = unparsed.subarray(3, 5);
      const stream = unparsed.readUInt32BE(5) & 0x7fff_ffff;
      const read = { type, flags, stream, payload: Buffer.from(unparsed.subarray(9, size)) };
      // Floods: keep a limited number of frames, and the GOAWAY.
      if (frames.length < 5_000 || type === FRAME.goAway) frames.push(read);
      unparsed = unparsed.subarray(size);
      if (type === FRAME.settings && (flags & FLAG.ack) === 0) send(frame(FRAME.settings, FLAG.ack, 0));
    }
    wake();
  });
  const pairs = settings.map(([id, value]) => Buffer.concat([Buffer.from([0, id]), uint32(value)]));
  send(
    Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', 'latin1'),
    frame(FRAME.settings, 0, 0, Buffer.concat(pairs)),
  );

  const framesOn = (stream: number): Frame[] => frames.filter((received) => received.stream === stream);
  const goAway = (): number | undefined =>
    frames.find(({ type }) => type === FRAME.goAway)?.payload.readUInt32BE(4);
  return {
    socket,
    frames,
    send,
    request(fields, { end = true, stream } = {}) {
      const id = stream ?? next;
      next = id + 2;
      send(frame(FRAME.headers, FLAG.endHeaders | (end ? FLAG.endStream : 0), id, headerBlock(fields)));
      return id;
    },
    until: (condition, ms) => until(() => condition() || closed, ms),
    outcome(stream) {
      for (const { type, payload } of framesOn(stream)) {
        if (type === FRAME.reset) return { reset: payload.readUInt32BE(0) };
        const status = type === FRAME.headers ? decodeStatus(payload) : undefined;
        if (status !== undefined && status >= 200) return { status };
      }
      return undefined;
    },
    endedCleanly: (stream) =>
      framesOn(stream).some(
        ({ type, flags }) =>
          (type === FRAME.headers || type === FRAME.data) && (flags & FLAG.endStream) !== 0,
      ),
    body: (stream) =>
      Buffer.concat(
        framesOn(stream).flatMap(({ type, payload }) => (type === FRAME.data ? [payload] : [])),
      ).toString('latin1'),
    goAway,
    closed: () => closed,
    isOver: () => closed || goAway() !== undefined,
    destroy: () => socket.destroy(),
  };
}

const STATIC_STATUS: Readonly<Record<number, number>> = {
  8: 200,
  9: 204,
  10: 206,
  11: 304,
  12: 400,
  13: 404,
  14: 500,
};

/** The status in a header block, where it is the first field. */
function decodeStatus(block: Buffer): number | undefined {
  let at = 0;
  // Dynamic table size updates (RFC 7541 §6.3).
  while (((block[at] ?? 0) & 0xe0) === 0x20) at += 1;
  const first = block[at] ?? 0;
  if ((first & 0x80) !== 0) return STATIC_STATUS[first & 0x7f];
  // A literal with the name of entry 8 to 14, indexed or not.
  const size = block[at + 1] ?? 0;
  const value = block.subarray(at + 2, at + 2 + (size & 0x7f));
  return Number((size & 0x80) === 0 ? value.toString('latin1') : decodeHuffmanDigits(value));
}

/** RFC 7541 appendix B, digits only: 0, 1 and 2 have five bits, the others six. */
function decodeHuffmanDigits(bytes: Buffer): string {
  const bits = [...bytes].map((byte) => byte.toString(2).padStart(8, '0')).join('');
  let text = '';
  for (let at = 0; at + 5 <= bits.length; ) {
    const five = Number.parseInt(bits.slice(at, at + 5), 2);
    if (five < 3) {
      text += five;
      at += 5;
      continue;
    }
    const six = Number.parseInt(bits.slice(at, at + 6), 2);
    if (bits.length < at + 6 || six < 0x19 || six > 0x1f) break;
    text += six - 0x19 + 3;
    at += 6;
  }
  return text;
}
