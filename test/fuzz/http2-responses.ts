import { type AddressInfo, createServer, type Socket } from 'node:net';
import type { ResponseHandler, UpstreamError } from '../../src/proxy/upstream/connection.ts';
import { Http2Pool } from '../../src/proxy/upstream/http2/pool.ts';
import { literal } from '../support/hpack.ts';
import {
  createFrameReader,
  dataFrame,
  FRAME,
  frame,
  headersFrame,
  PREFACE,
  pingFrame,
  resetFrame,
  settingsFrame,
  uint32,
  windowUpdateFrame,
} from '../support/http2-frames.ts';
import { mutate, randomBelow } from './mutations.ts';

/** Responses of valid frames, some of which are damaged, to the client side. Each exchange must end once, and nothing may throw. */
export interface Http2ResponsesResult {
  /** Frames that were sent. */
  frames: number;
  exchanges: number;
  completed: number;
  failed: number;
  /** What a handler, or the process, threw. */
  errors: unknown[];
}

type Below = (limit: number) => number;

const STATUS = literal(':status', '200');
const EXCHANGES_AT_A_TIME = 8;
const TIMEOUT_MS = 60_000;

/** One of the frames that a server sends for a stream. */
function createFrame(below: Below, stream: number): Buffer {
  switch (below(12)) {
    case 0:
    case 1:
      return headersFrame(stream, STATUS, { end: below(3) === 0 });
    case 2:
      return headersFrame(stream, Buffer.concat([literal(':status', '103'), literal('link', 'a', 'incremental')]), {
        end: false,
      });
    case 3:
      return headersFrame(stream, Buffer.concat([STATUS, literal('content-length', String(below(40)))]), {
        end: false,
      });
    case 4:
    case 5:
      return dataFrame(stream, 'x'.repeat(below(30)), {
        end: below(2) === 0,
        ...(below(3) === 0 && { padding: below(9) }),
      });
    case 6:
      return headersFrame(stream, literal('grpc-status', '0', 'incremental'), { end: below(4) > 0 });
    case 7:
      return resetFrame(stream, below(14));
    case 8:
      return windowUpdateFrame(below(2) * stream, below(70_000));
    case 9:
      return settingsFrame([[below(8), below(200_000)]]);
    case 10:
      return below(4) === 0
        ? frame(FRAME.goAway, 0, 0, Buffer.concat([uint32(Math.max(0, stream - below(4))), uint32(below(14))]))
        : pingFrame();
    default:
      return frame(below(12), below(256), below(2) * stream, Buffer.alloc(below(20), below(256)));
  }
}

const createResponse = (below: Below, stream: number): Buffer[] => [
  headersFrame(stream, STATUS, { end: false }),
  dataFrame(stream, 'x'.repeat(below(30))),
  below(2) === 0
    ? dataFrame(stream, '', { end: true })
    : headersFrame(stream, literal('grpc-status', '0', 'incremental')),
];

const createFrames = (below: Below, stream: number): Buffer[] =>
  Array.from({ length: 1 + below(5) }, () => {
    const valid = createFrame(below, stream);
    return below(3) === 0 ? mutate(valid, below) : valid;
  });

export async function fuzzHttp2Responses({
  count,
  seed,
}: {
  count: number;
  seed: number;
}): Promise<Http2ResponsesResult> {
  const below = randomBelow(seed);
  const result: Http2ResponsesResult = { frames: 0, exchanges: 0, completed: 0, failed: 0, errors: [] };
  const sockets = new Set<Socket>();
  const respond = (socket: Socket, stream: number): void => {
    const isDamaged = below(10) >= 8;
    const parts = isDamaged ? createFrames(below, stream) : createResponse(below, stream);
    result.frames += parts.length;
    const bytes = Buffer.concat(parts);
    const cut = below(bytes.length + 1);
    socket.write(bytes.subarray(0, cut));
    socket.write(bytes.subarray(cut));
    // Damaged frames can be incomplete for ever.
    if (isDamaged) socket.end();
  };
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on('error', () => {}).on('close', () => sockets.delete(socket));
    let isPrefaceRead = false;
    const read = createFrameReader(({ type, stream }) => {
      if (type === FRAME.headers) respond(socket, stream);
    });
    socket.write(settingsFrame([[3, 1 + below(50)]]));
    socket.on('data', (part: Buffer) => {
      read(isPrefaceRead ? part : part.subarray(PREFACE.length));
      isPrefaceRead = true;
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  const pool = new Http2Pool(`http://127.0.0.1:${port}`, { serverName: undefined, secureContext: undefined });
  const onUncaught = (error: unknown): void => void result.errors.push(error);
  process.on('uncaughtException', onUncaught);
  const worker = async (): Promise<void> => {
    while (result.frames < count && result.errors.length === 0) {
      result.exchanges += 1;
      await exchange(pool, below, result);
    }
  };
  await Promise.all(Array.from({ length: EXCHANGES_AT_A_TIME }, worker));
  await pool.close();
  for (const socket of sockets) socket.destroy();
  await new Promise((resolve) => server.close(resolve));
  process.off('uncaughtException', onUncaught);
  return result;
}

function exchange(pool: Http2Pool, below: Below, result: Http2ResponsesResult): Promise<void> {
  return new Promise((resolve) => {
    const stream = pool.acquire();
    let ends = 0;
    const end = (how: 'completed' | 'failed'): void => {
      ends += 1;
      if (ends > 1) result.errors.push(new Error(`an exchange ended ${ends} times`));
      result[how] += 1;
      clearTimeout(timer);
      resolve();
    };
    const timer = setTimeout(() => {
      stream.discard();
      result.errors.push(new Error('an exchange did not end'));
      end('failed');
    }, TIMEOUT_MS);
    const handler: ResponseHandler = {
      onConnected: () => send(),
      onDrain() {},
      onHead() {},
      onData() {
        if (below(4) > 0) return true;
        setImmediate(() => stream.resume());
        return false;
      },
      onReadEnd() {},
      onEnd: () => end('completed'),
      onError: (_error: UpstreamError) => end('failed'),
      onInternalError(error) {
        result.errors.push(error);
        end('failed');
      },
    };
    const send = (): void => {
      try {
        stream.send(
          { method: 'POST', path: '/a', fields: 'a: b\r\n', acceptsTrailers: true },
          'content-length: 3\r\n',
          Buffer.from('abc'),
        );
      } catch {
        end('failed');
      }
    };
    stream.assign(handler, below(5) === 0);
    if (stream.isConnected) send();
  });
}
