import { connect, type TLSSocket } from 'node:tls';

/** Clients that violate RFC 9113 or exceed what gatehouse accepts: it must close their connections. */
export interface BadClientTarget {
  readonly port: number;
  readonly ca: string;
  readonly token: string;
  /** Called with every socket, so that it can be destroyed early. */
  readonly track: (socket: TLSSocket) => void;
}

const FRAME = {
  data: 0,
  headers: 1,
  priority: 2,
  reset: 3,
  settings: 4,
  ping: 6,
  windowUpdate: 8,
  continuation: 9,
  unknown: 0x42,
} as const;
const FLAG = { endStream: 1, endHeaders: 4 } as const;
const PREFACE = Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', 'latin1');

function frame(type: number, flags: number, stream: number, payload: Buffer = Buffer.alloc(0)): Buffer {
  const head = Buffer.alloc(9);
  head.writeUIntBE(payload.length, 0, 3);
  head[3] = type;
  head[4] = flags;
  head.writeUInt32BE(stream, 5);
  return Buffer.concat([head, payload]);
}

const uint32 = (value: number): Buffer => {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(value);
  return bytes;
};

/** A literal field that is not indexed (RFC 7541 §6.2.2); names and values up to 16 KiB. */
const field = (name: string, value: string): Buffer =>
  Buffer.concat([
    Buffer.from([0]),
    stringLength(name.length),
    Buffer.from(name, 'latin1'),
    stringLength(value.length),
    Buffer.from(value, 'latin1'),
  ]);
const stringLength = (length: number): Buffer =>
  length < 127
    ? Buffer.from([length])
    : Buffer.from([127, ((length - 127) % 128) + 128, Math.floor((length - 127) / 128)]);

const requestBlock = (token: string, path: string, method = 'GET'): Buffer =>
  Buffer.concat([
    field(':method', method),
    field(':scheme', 'https'),
    field(':authority', 'localhost'),
    field(':path', path),
    field('authorization', `Bearer ${token}`),
  ]);

const request = (token: string, stream: number, path: string): Buffer =>
  frame(FRAME.headers, FLAG.endHeaders | FLAG.endStream, stream, requestBlock(token, path));
const upload = (token: string, stream: number, path = '/reports/digest'): Buffer =>
  frame(FRAME.headers, FLAG.endHeaders, stream, requestBlock(token, path, 'POST'));

const SETTINGS = frame(FRAME.settings, 0, 0);
/** SETTINGS_INITIAL_WINDOW_SIZE. */
const initialWindow = (size: number): Buffer =>
  frame(FRAME.settings, 0, 0, Buffer.concat([Buffer.from([0, 4]), uint32(size)]));
const range = (count: number): readonly number[] => Array.from({ length: count }, (_, index) => index);
const randomBytes = (count: number): Buffer => Buffer.from(range(count).map(() => Math.floor(Math.random() * 256)));

/**
 * What each client sends, in portions. After the last portion of `repeated`, it is sent again until the connection is closed.
 * `abandons`: the client closes the connection itself after a while.
 */
interface BadClient {
  readonly first: (token: string) => Buffer;
  readonly repeated?: (token: string, round: number) => Buffer;
  readonly abandons?: boolean;
  /** Reads nothing. */
  readonly isDeaf?: boolean;
}

const open = (...parts: readonly Buffer[]): Buffer => Buffer.concat([PREFACE, SETTINGS, ...parts]);

/** Requests that are reset at once, 50 in each round. */
const rapidReset = (token: string, round: number): Buffer =>
  Buffer.concat(
    range(50).flatMap((index) => {
      const stream = 2 * (50 * round + index) + 1;
      return [request(token, stream, '/files/slow'), frame(FRAME.reset, 0, stream, uint32(8))];
    }),
  );

const BAD_CLIENTS = {
  silent: { first: () => Buffer.alloc(0) },
  'preface only': { first: () => PREFACE },
  'settings only': { first: () => open() },
  'no preface': { first: () => Buffer.from('GET / HTTP/1.1\r\nHost: localhost\r\n\r\n') },
  garbage: { first: () => open(randomBytes(2_000)) },
  'garbage in place of the preface': { first: () => randomBytes(200) },
  pings: {
    first: () => open(),
    repeated: () => Buffer.concat(range(100).map(() => frame(FRAME.ping, 0, 0, randomBytes(8)))),
  },
  settings: {
    first: () => open(),
    repeated: () => Buffer.concat(range(20).map((index) => initialWindow(index))),
  },
  'rapid reset': { first: () => open(), repeated: rapidReset },
  'resets that gatehouse must send': {
    first: () => open(),
    // A window update of zero is an error of the stream (RFC 9113 §6.9).
    repeated: (token, round) =>
      Buffer.concat(
        range(50).flatMap((index) => {
          const stream = 2 * (50 * round + index) + 1;
          return [request(token, stream, '/files/slow'), frame(FRAME.windowUpdate, 0, stream, uint32(0))];
        }),
      ),
  },
  'empty DATA': {
    first: (token) => open(upload(token, 1)),
    repeated: () => Buffer.concat(range(100).map(() => frame(FRAME.data, 0, 1))),
  },
  priorities: {
    first: (token) => open(request(token, 1, '/files/slow')),
    repeated: () => Buffer.concat(range(100).map((index) => frame(FRAME.priority, 0, 2 * index + 3, Buffer.alloc(5)))),
  },
  'unknown frames': {
    first: () => open(),
    repeated: () => Buffer.concat(range(100).map(() => frame(FRAME.unknown, 0, 0, randomBytes(20)))),
  },
  'window updates': {
    first: (token) => open(request(token, 1, '/files/slow')),
    repeated: () => Buffer.concat(range(100).map(() => frame(FRAME.windowUpdate, 0, 0, uint32(1)))),
  },
  'CONTINUATION frames': {
    first: (token) => open(frame(FRAME.headers, 0, 1, requestBlock(token, '/files/item/1'))),
    repeated: () => frame(FRAME.continuation, 0, 1, field('x-a', 'b')),
  },
  'an unfinished header section': {
    first: (token) => open(frame(FRAME.headers, 0, 1, requestBlock(token, '/files/item/1'))),
  },
  'a huge header list': {
    first: (token) =>
      open(
        frame(
          FRAME.headers,
          0,
          1,
          Buffer.concat([requestBlock(token, '/files/item/1'), field('x-a', 'b'.repeat(12_000))]),
        ),
      ),
    repeated: () => frame(FRAME.continuation, 0, 1, field('x-b', 'c'.repeat(8_000))),
  },
  'references to missing table entries': {
    first: () => open(frame(FRAME.headers, FLAG.endHeaders, 1, Buffer.from([0xff, 0xff, 0xff, 0x7f]))),
  },
  'DATA on an idle stream': { first: () => open(frame(FRAME.data, 0, 7, randomBytes(10))) },
  'a body without end': {
    first: (token) => open(upload(token, 1)),
    repeated: () => Buffer.concat(range(8).map(() => frame(FRAME.data, 0, 1, Buffer.alloc(16_384)))),
  },
  'more than the window': {
    first: (token) => open(upload(token, 1, '/reports/unread')),
    repeated: () => Buffer.concat(range(8).map(() => frame(FRAME.data, 0, 1, Buffer.alloc(16_384)))),
  },
  'a frame that is too large': { first: () => open(Buffer.from([0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1])) },
  'a truncated request': {
    first: (token) => open(request(token, 1, '/files/item/1').subarray(0, 60)),
    abandons: true,
  },
  'a truncated upload': {
    first: (token) => open(upload(token, 1), frame(FRAME.data, 0, 1, Buffer.alloc(9_000)).subarray(0, 5_000)),
    abandons: true,
  },
  'unread downloads': {
    first: (token) => open(...range(20).map((index) => request(token, 2 * index + 1, '/files/large'))),
    abandons: true,
    isDeaf: true,
  },
  'downloads without a window': {
    first: (token) =>
      Buffer.concat([
        PREFACE,
        initialWindow(0),
        ...range(50).map((index) => request(token, 2 * index + 1, '/files/large')),
      ]),
    abandons: true,
  },
  'more streams than allowed': {
    first: (token) => open(...range(130).map((index) => request(token, 2 * index + 1, '/files/slow'))),
    abandons: true,
  },
  'unread replies': {
    first: () => open(),
    repeated: () => Buffer.concat(range(50).map(() => frame(FRAME.ping, 0, 0, Buffer.alloc(8)))),
    abandons: true,
    isDeaf: true,
  },
} as const satisfies Record<string, BadClient>;

export type BadClientName = keyof typeof BAD_CLIENTS;
export const BAD_CLIENT_NAMES = Object.keys(BAD_CLIENTS) as BadClientName[];

const REPEAT_MS = 5;
const ABANDON_MS = 2_000;
/** Longer than every deadline of gatehouse in the soak, on a busy machine. */
const LIMIT_MS = 60_000;

/** Runs one bad client until its connection is closed. Throws if gatehouse keeps the connection. */
export async function runBadClient(name: BadClientName, target: BadClientTarget): Promise<void> {
  const { first, repeated, abandons = false, isDeaf = false }: BadClient = BAD_CLIENTS[name];
  const { port, ca, token, track } = target;
  const socket = connect({ port, host: '127.0.0.1', servername: 'localhost', ca, ALPNProtocols: ['h2'] });
  track(socket);
  socket.on('error', () => {});
  const closed = new Promise((resolve) => socket.once('close', resolve));
  if (!isDeaf) socket.resume();
  let timer: NodeJS.Timeout | undefined;
  socket.once('secureConnect', () => {
    socket.write(first(token));
    let round = 0;
    if (repeated !== undefined)
      timer = setInterval(() => {
        if (!socket.writable || socket.writableNeedDrain) return;
        socket.write(repeated(token, round));
        round += 1;
      }, REPEAT_MS);
  });
  let hasKept = false;
  const limit = setTimeout(
    () => {
      hasKept = !abandons;
      socket.destroy();
    },
    abandons ? ABANDON_MS : LIMIT_MS,
  );
  await closed;
  clearTimeout(limit);
  clearInterval(timer);
  if (hasKept) throw new Error(`bad client "${name}": its connection was not closed in ${LIMIT_MS} ms`);
}
