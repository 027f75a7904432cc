import { once } from 'node:events';
import { type ClientHttp2Session, connect, sensitiveHeaders } from 'node:http2';
import { createServer, type Socket } from 'node:net';
import { type Field, indexed } from './hpack.ts';
import { createFrameReader, FLAG, FRAME, frame, PREFACE, SETTING, settingsFrame } from './http2-frames.ts';
import { listenTcp } from './tcp-server.ts';

/**
 * nghttp2, the HPACK implementation behind node:http2: a client of a TCP server that speaks HTTP/2 frame by frame. Its
 * encoder has no code in common with the server and the tests.
 */
export interface Nghttp2Client {
  /** Sends a request with these fields and returns its header block. */
  encode(fields: readonly Field[], sensitive?: readonly string[]): Promise<Buffer>;
  /** Sends a request, to which the server responds with this header block, and returns the fields that the client decodes. */
  decode(block: Buffer): Promise<Field[]>;
  /** Changes SETTINGS_HEADER_TABLE_SIZE of the server, and waits until the client has acknowledged it. */
  setTableSize(size: number): Promise<void>;
  close(): Promise<void>;
}

const STATUS_200 = indexed(8);
const MAX_PAYLOAD = 16_384;

export async function startNghttp2Client(): Promise<Nghttp2Client> {
  let server: Socket | undefined;
  let onBlock: (stream: number, block: Buffer) => void = () => {};
  let onAcknowledged = (): void => {};
  const { port, close } = await listenTcp(
    createServer({ noDelay: true }, (socket) => {
      server = socket;
      let parts: Buffer[] = [];
      let prefaceLeft = PREFACE.length;
      const read = createFrameReader(({ type, flags, stream, payload }) => {
        if (type === FRAME.settings && (flags & FLAG.ack) !== 0) onAcknowledged();
        else if (type === FRAME.settings) socket.write(frame(FRAME.settings, FLAG.ack, 0));
        if (type !== FRAME.headers && type !== FRAME.continuation) return;
        const isPrioritized = type === FRAME.headers && (flags & FLAG.priority) !== 0;
        parts.push(isPrioritized ? payload.subarray(5) : payload);
        if ((flags & FLAG.endHeaders) === 0) return;
        const block = Buffer.concat(parts);
        parts = [];
        onBlock(stream, block);
      });
      socket.write(settingsFrame([[SETTING.maxConcurrentStreams, 100]]));
      socket.on('data', (part: Buffer) => {
        const skipped = Math.min(prefaceLeft, part.length);
        prefaceLeft -= skipped;
        read(part.subarray(skipped));
      });
    }),
  );
  // Not in the type definitions: repeated fields are sent.
  const options = { settings: { maxHeaderListSize: 1_048_576 }, strictSingleValueFields: false };
  const session: ClientHttp2Session = connect(`http://127.0.0.1:${port}`, options);
  session.on('error', () => {});
  await once(session, 'remoteSettings');

  const respond = (stream: number, block: Buffer): void => {
    for (let at = 0; at === 0 || at < block.length; at += MAX_PAYLOAD) {
      const isLast = at + MAX_PAYLOAD >= block.length;
      const flags = (isLast ? FLAG.endHeaders : 0) | (at === 0 ? FLAG.endStream : 0);
      const type = at === 0 ? FRAME.headers : FRAME.continuation;
      server?.write(frame(type, flags, stream, block.subarray(at, at + MAX_PAYLOAD)));
    }
  };
  /** Resolves with the header block of the request and the raw fields of the response. */
  const exchange = async (
    fields: readonly Field[],
    sensitive: readonly string[],
    response: Buffer,
  ): Promise<{ readonly block: Buffer; readonly received: Field[] }> => {
    const { promise, resolve } = Promise.withResolvers<Buffer>();
    onBlock = (stream, block) => {
      respond(stream, response);
      resolve(block);
    };
    const list: string[] = fields.flat();
    const stream = session.request(Object.assign(list, { [sensitiveHeaders]: [...sensitive] }), {
      endStream: true,
    });
    const received: Field[] = [];
    stream.on('response', (_headers, _flags, raw: string[]) => {
      for (let at = 0; at < raw.length; at += 2) received.push([raw[at] ?? '', raw[at + 1] ?? '']);
    });
    stream.resume();
    await once(stream, 'close');
    return { block: await promise, received };
  };
  return {
    encode: async (fields, sensitive = []) => (await exchange(fields, sensitive, STATUS_200)).block,
    decode: async (block) => (await exchange(REQUEST, [], block)).received,
    async setTableSize(size) {
      const { promise, resolve } = Promise.withResolvers<void>();
      onAcknowledged = resolve;
      server?.write(settingsFrame([[SETTING.headerTableSize, size]]));
      await promise;
    },
    async close() {
      session.destroy();
      await close();
    },
  };
}

const REQUEST: readonly Field[] = [
  [':method', 'GET'],
  [':scheme', 'http'],
  [':authority', 'localhost'],
  [':path', '/'],
];
