import { once } from 'node:events';
import { type ConnectionOptions, connect, type TLSSocket } from 'node:tls';
import { type Field, headerBlock, ReferenceDecoder } from './hpack.ts';
import { createEventWaiter } from './until.ts';

export { type Field, headerBlock } from './hpack.ts';

/**
 * An HTTP/2 client that sends frames one by one (RFC 9113), also those that no client library would send. It shares no code
 * with the server. Strings in header blocks are not Huffman coded, so that a field can contain any bytes.
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

export const FLAG = { endStream: 1, ack: 1, endHeaders: 4, padded: 8, priority: 32 } as const;

/** RFC 9113 §7. */
export const CODE = {
  noError: 0,
  protocolError: 1,
  internalError: 2,
  flowControlError: 3,
  settingsTimeout: 4,
  streamClosed: 5,
  frameSizeError: 6,
  refusedStream: 7,
  cancel: 8,
  compressionError: 9,
  connectError: 10,
  enhanceYourCalm: 11,
} as const;

/** RFC 9113 §6.5.2. */
export const SETTING = {
  headerTableSize: 1,
  enablePush: 2,
  maxConcurrentStreams: 3,
  initialWindowSize: 4,
  maxFrameSize: 5,
  maxHeaderListSize: 6,
} as const;

export const PREFACE = Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', 'latin1');

export interface Frame {
  readonly type: number;
  readonly flags: number;
  readonly stream: number;
  readonly payload: Buffer;
}

export function frame(type: number, flags: number, stream: number, payload: Buffer = Buffer.alloc(0)): Buffer {
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

export type SettingPair = readonly [id: number, value: number];

export const settingsFrame = (pairs: readonly SettingPair[] = []): Buffer =>
  frame(
    FRAME.settings,
    0,
    0,
    Buffer.concat(pairs.map(([id, value]) => Buffer.concat([Buffer.from([0, id]), uint32(value)]))),
  );
export const pingFrame = (payload = 0): Buffer => frame(FRAME.ping, 0, 0, Buffer.concat([uint32(0), uint32(payload)]));
export const windowUpdateFrame = (stream: number, increment: number): Buffer =>
  frame(FRAME.windowUpdate, 0, stream, uint32(increment));
export const resetFrame = (stream: number, code: number = CODE.cancel): Buffer =>
  frame(FRAME.reset, 0, stream, uint32(code));
export const priorityFrame = (stream: number, dependsOn = 0): Buffer =>
  frame(FRAME.priority, 0, stream, Buffer.concat([uint32(dependsOn), Buffer.from([1])]));

interface DataOptions {
  readonly end?: boolean;
  /** Bytes of padding, up to 255; the frame is not padded if omitted. */
  readonly padding?: number;
}

export function dataFrame(stream: number, body: string | Buffer, { end = false, padding }: DataOptions = {}): Buffer {
  const bytes = typeof body === 'string' ? Buffer.from(body, 'latin1') : body;
  const flags = (end ? FLAG.endStream : 0) | (padding === undefined ? 0 : FLAG.padded);
  if (padding === undefined) return frame(FRAME.data, flags, stream, bytes);
  return frame(FRAME.data, flags, stream, Buffer.concat([Buffer.from([padding]), bytes, Buffer.alloc(padding)]));
}

export const repeat = (bytes: Buffer, times: number): Buffer => Buffer.concat(Array<Buffer>(times).fill(bytes));

export const requestFields = (path: string, method = 'GET', authority = 'localhost:8443'): Field[] => [
  [':method', method],
  [':scheme', 'https'],
  [':authority', authority],
  [':path', path],
];

interface HeadersOptions {
  readonly end?: boolean;
  readonly endHeaders?: boolean;
}

export const headersFrame = (
  stream: number,
  fields: readonly Field[] | Buffer,
  { end = true, endHeaders = true }: HeadersOptions = {},
): Buffer =>
  frame(
    FRAME.headers,
    (end ? FLAG.endStream : 0) | (endHeaders ? FLAG.endHeaders : 0),
    stream,
    Buffer.isBuffer(fields) ? fields : headerBlock(fields),
  );

/** Parses frames from bytes in any pieces. */
export function createFrameReader(onFrame: (received: Frame) => void): (part: Buffer) => void {
  let unparsed: Buffer = Buffer.alloc(0);
  return (part) => {
    unparsed = unparsed.length === 0 ? part : Buffer.concat([unparsed, part]);
    let at = 0;
    while (unparsed.length >= at + 9) {
      const end = at + 9 + unparsed.readUIntBE(at, 3);
      if (unparsed.length < end) break;
      onFrame({
        type: unparsed[at + 3] ?? 0,
        flags: unparsed[at + 4] ?? 0,
        stream: unparsed.readUInt32BE(at + 5) & 0x7fff_ffff,
        payload: copyOf(unparsed.subarray(at + 9, end)),
      });
      at = end;
    }
    unparsed = unparsed.subarray(at);
  };
}

export interface GoAway {
  readonly lastStream: number;
  readonly code: number;
}

/** The final status of a stream, or the error code of its reset if that came first. */
export interface StreamOutcome {
  readonly status?: number;
  readonly reset?: number;
}

export interface FrameClient {
  readonly socket: TLSSocket;
  /** The received frames: the first 5,000, and every GOAWAY. */
  readonly frames: readonly Frame[];
  send(...parts: readonly Buffer[]): void;
  /** Sends the head of a request and returns its stream id. */
  request(fields: readonly Field[] | Buffer, more?: RequestOptions): number;
  /** Sends a request with a body in one DATA frame. */
  post(fields: readonly Field[], body: string | Buffer): number;
  /** Waits for a condition or the end of the connection; fails after `ms`. */
  until(condition: () => boolean, ms?: number): Promise<void>;
  /** Waits until the server has acknowledged a PING, and so has read everything sent before, or reports an error. */
  waitForPong(): Promise<void>;
  /** Undefined while there is neither a final status nor a reset. */
  outcome(stream: number): StreamOutcome | undefined;
  /** Waits for the outcome of a stream; undefined if the connection ends without one. */
  waitForOutcome(stream: number): Promise<StreamOutcome | undefined>;
  /** Waits until the response has ended or the stream was reset; returns its status only if it ended cleanly. */
  waitForEnd(stream: number): Promise<StreamOutcome | undefined>;
  /** Whether the response on this stream was ended with END_STREAM. */
  endedCleanly(stream: number): boolean;
  /** The code of a RST_STREAM, also of one after the response. */
  resetCode(stream: number): number | undefined;
  /** The fields of the final response, with `:status`. */
  fields(stream: number): readonly Field[];
  /** The statuses of interim responses. */
  interim(stream: number): readonly number[];
  trailers(stream: number): readonly Field[];
  body(stream: number): string;
  bodyLength(stream: number): number;
  /** DATA frames received, on one stream or on all. */
  dataFrames(stream?: number): number;
  /** The sum of the WINDOW_UPDATE frames received; 0 is the connection. */
  credit(stream: number): number;
  /** The SETTINGS of the server; the last value of each. */
  settings(): ReadonlyMap<number, number>;
  /** The code of the first GOAWAY. */
  goAway(): number | undefined;
  goAways(): readonly GoAway[];
  closed(): boolean;
  /** Whether the connection is closed or a GOAWAY was received. */
  isOver(): boolean;
  destroy(): void;
}

interface RequestOptions {
  readonly end?: boolean;
  readonly stream?: number;
}

export interface FrameClientOptions {
  readonly ca: string;
  readonly settings?: readonly SettingPair[];
  /** Sent instead of the preface and SETTINGS. */
  readonly opening?: Buffer;
  /** Acknowledge the SETTINGS of the server; default true. */
  readonly acknowledgeSettings?: boolean;
  /** Acknowledge every DATA frame with WINDOW_UPDATE frames for the stream and the connection. */
  readonly updateWindows?: boolean;
  readonly tls?: ConnectionOptions;
}

interface ReceivedStream {
  outcome: StreamOutcome | undefined;
  readonly sections: (readonly Field[])[];
  resetCode: number | undefined;
  ended: boolean;
  readonly body: Buffer[];
  bodyLength: number;
  dataFrames: number;
  credit: number;
}

const KEPT_FRAMES = 5_000;

export async function frameClient(port: number, options: FrameClientOptions): Promise<FrameClient> {
  const { ca, settings = [[SETTING.headerTableSize, 0]], acknowledgeSettings = true } = options;
  const socket = connect({
    port,
    host: '127.0.0.1',
    servername: 'localhost',
    ca,
    ALPNProtocols: ['h2'],
    ...options.tls,
  });
  await once(socket, 'secureConnect');
  if (socket.alpnProtocol !== 'h2') throw new Error(`not HTTP/2 but ${socket.alpnProtocol}`);
  socket.setNoDelay(true);
  const frames: Frame[] = [];
  const streams = new Map<number, ReceivedStream>();
  const serverSettings = new Map<number, number>();
  const goAways: GoAway[] = [];
  const { wake, until } = createEventWaiter(
    () =>
      `${frames.length} frames, the last: ${JSON.stringify(
        frames.slice(-5).map(({ payload, ...rest }) => ({ ...rest, payload: payload.toString('latin1').slice(0, 60) })),
      )}`,
  );
  let closed = false;
  let next = 1;
  let pings = 0;
  let lastPong = 0;
  const decoder = new ReferenceDecoder();
  const blockParts: Buffer[] = [];
  let endsWithBlock = false;
  const send = (...parts: readonly Buffer[]): void => {
    if (!closed && socket.writable) socket.write(Buffer.concat(parts));
  };
  const received = (id: number): ReceivedStream => {
    let stream = streams.get(id);
    if (stream === undefined) {
      stream = {
        outcome: undefined,
        sections: [],
        resetCode: undefined,
        ended: false,
        body: [],
        bodyLength: 0,
        dataFrames: 0,
        credit: 0,
      };
      streams.set(id, stream);
    }
    return stream;
  };
  const onFrame = (read: Frame): void => {
    const { type, flags, stream: id, payload } = read;
    if (frames.length < KEPT_FRAMES || type === FRAME.goAway) frames.push(read);
    const stream = received(id);
    switch (type) {
      case FRAME.settings:
        if ((flags & FLAG.ack) !== 0) break;
        for (let at = 0; at + 6 <= payload.length; at += 6)
          serverSettings.set(payload.readUInt16BE(at), payload.readUInt32BE(at + 2));
        if (acknowledgeSettings) send(frame(FRAME.settings, FLAG.ack, 0));
        break;
      case FRAME.headers:
      case FRAME.continuation:
        blockParts.push(payload);
        if (type === FRAME.headers) endsWithBlock = (flags & FLAG.endStream) !== 0;
        if ((flags & FLAG.endHeaders) === 0) break;
        stream.sections.push(decoder.decode(Buffer.concat(blockParts.splice(0))));
        if (statusOf(stream.sections.at(-1)) >= 200) stream.outcome ??= { status: statusOf(stream.sections.at(-1)) };
        stream.ended ||= endsWithBlock;
        break;
      case FRAME.data:
        stream.body.push(payload);
        stream.bodyLength += payload.length;
        stream.dataFrames += 1;
        stream.ended ||= (flags & FLAG.endStream) !== 0;
        received(0).dataFrames += 1;
        if (options.updateWindows === true && payload.length > 0)
          send(windowUpdateFrame(0, payload.length), windowUpdateFrame(id, payload.length));
        break;
      case FRAME.reset:
        stream.resetCode ??= payload.readUInt32BE(0);
        stream.outcome ??= { reset: stream.resetCode };
        break;
      case FRAME.windowUpdate:
        stream.credit += payload.readUInt32BE(0);
        break;
      case FRAME.ping:
        if ((flags & FLAG.ack) !== 0) lastPong = Math.max(lastPong, payload.readUInt32BE(4) - PONG_BASE);
        break;
      case FRAME.goAway:
        goAways.push({
          lastStream: payload.readUInt32BE(0) & 0x7fff_ffff,
          code: payload.readUInt32BE(4),
        });
        break;
      default:
    }
  };
  const readFrames = createFrameReader(onFrame);
  socket.on('error', () => {});
  socket.on('close', () => {
    closed = true;
    wake();
  });
  socket.on('data', (part: Buffer) => {
    readFrames(part);
    wake();
  });
  const opening = options.opening ?? Buffer.concat([PREFACE, settingsFrame(settings)]);
  if (opening.length > 0) send(opening);

  const untilOrClosed: FrameClient['until'] = (condition, ms) => until(() => condition() || closed, ms);
  const outcome: FrameClient['outcome'] = (stream) => streams.get(stream)?.outcome;
  const sectionsOf = (stream: number): readonly (readonly Field[])[] => streams.get(stream)?.sections ?? [];
  const request: FrameClient['request'] = (fields, { end = true, stream } = {}) => {
    const id = stream ?? next;
    next = id + 2;
    send(headersFrame(id, fields, { end }));
    return id;
  };
  return {
    socket,
    frames,
    send,
    request,
    post(fields, body) {
      const id = request(fields, { end: false });
      send(dataFrame(id, body, { end: true }));
      return id;
    },
    until: untilOrClosed,
    async waitForPong() {
      pings += 1;
      const expected = pings;
      send(pingFrame(PONG_BASE + expected));
      await untilOrClosed(() => lastPong >= expected || goAways.some(({ code }) => code !== CODE.noError));
    },
    outcome,
    async waitForOutcome(stream) {
      await untilOrClosed(() => outcome(stream) !== undefined);
      return outcome(stream);
    },
    async waitForEnd(stream) {
      const state = (): ReceivedStream | undefined => streams.get(stream);
      await untilOrClosed(() => state()?.ended === true || state()?.resetCode !== undefined);
      const { ended, resetCode } = state() ?? {};
      if (ended === true) return outcome(stream);
      return resetCode === undefined ? undefined : { reset: resetCode };
    },
    endedCleanly: (stream) => streams.get(stream)?.ended === true,
    resetCode: (stream) => streams.get(stream)?.resetCode,
    fields: (stream) => sectionsOf(stream).find((section) => statusOf(section) >= 200) ?? [],
    interim: (stream) =>
      sectionsOf(stream)
        .map(statusOf)
        .filter((status) => status < 200),
    trailers: (stream) => sectionsOf(stream).find((section) => Number.isNaN(statusOf(section))) ?? [],
    body: (stream) => Buffer.concat(streams.get(stream)?.body ?? []).toString('latin1'),
    bodyLength: (stream) => streams.get(stream)?.bodyLength ?? 0,
    dataFrames: (stream = 0) => streams.get(stream)?.dataFrames ?? 0,
    credit: (stream) => streams.get(stream)?.credit ?? 0,
    settings: () => serverSettings,
    goAway: () => goAways[0]?.code,
    goAways: () => goAways,
    closed: () => closed,
    isOver: () => closed || goAways.length > 0,
    destroy: () => void socket.destroy(),
  };
}

/** Not a number for trailers. */
const statusOf = (section: readonly Field[] | undefined): number =>
  Number(section?.find(([name]) => name === ':status')?.[1]);

/** Distinguishes the pings of `waitForPong` from those of a test. */
const PONG_BASE = 0x7000_0000;

/** Outside of Node's pool: a few bytes would keep 64 KiB of it in memory, which tests of the gateway's memory would see. */
function copyOf(bytes: Buffer): Buffer {
  const copy = Buffer.allocUnsafeSlow(bytes.length);
  bytes.copy(copy);
  return copy;
}
