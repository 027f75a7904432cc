import { connect, type Socket } from 'node:net';
import { eventLoopTurns } from '../support/event-loop-turns.ts';
import type { RequestCase } from './request-cases.ts';

/** All responses arrived, the server closed the connection, or no more bytes arrived. */
export type Ending = 'completed' | 'closed' | 'silent';

/** Sends cases to a server, several on one connection. */
export interface CaseClient {
  /** The cases sent on the open connection. */
  readonly history: RequestCase[];
  /** Silent: neither the client nor the server has received a byte for this many polls of the event loop. */
  send(requestCase: RequestCase, polls: number): Promise<Ending>;
  /** Closes the connection; the next case gets a new one. */
  drop(): void;
}

/** Limits the cases per connection, since a difference is rechecked with everything that was sent on it. */
const MAX_CASES_PER_CONNECTION = 40;

/** `countServerBytes`: what the server has done so far, to know when it does nothing more. */
export function createCaseClient(port: number, countServerBytes: () => number): CaseClient {
  const history: RequestCase[] = [];
  let connection: Connection | undefined;
  const drop = (): void => {
    connection?.socket.destroy();
    connection = undefined;
    history.length = 0;
  };
  return {
    history,
    drop,
    async send(requestCase, polls) {
      if (history.length >= MAX_CASES_PER_CONNECTION || connection?.socket.destroyed === true) drop();
      connection ??= openConnection(port);
      history.push(requestCase);
      const ending = await connection.send(requestCase, countServerBytes, polls);
      if (ending === 'completed') return ending;
      // Bytes in transit when the connection ended still arrive.
      await eventLoopTurns(4);
      drop();
      return ending;
    },
  };
}

const READ_BUFFER = Buffer.alloc(65_536);

interface Connection {
  readonly socket: Socket;
  send(requestCase: RequestCase, countServerBytes: () => number, polls: number): Promise<Ending>;
}

function openConnection(port: number): Connection {
  let text = '';
  let isDone: (text: string) => boolean = () => false;
  let finish: (ending: Ending) => void = () => {};
  const onRead = (length: number, bytes: Uint8Array): boolean => {
    text += Buffer.from(bytes.buffer, bytes.byteOffset, length).toString('latin1');
    if (isDone(text)) finish('completed');
    return true;
  };
  // All clients share one read buffer and copy their bytes out immediately.
  const onread = { buffer: READ_BUFFER, callback: onRead };
  const socket = connect({ port, host: '127.0.0.1', noDelay: true, onread });
  socket.on('error', () => {}).on('close', () => finish('closed'));
  return {
    socket,
    send: (requestCase, countServerBytes, polls) =>
      new Promise((resolve) => {
        text = '';
        isDone = requestCase.methods === undefined ? endsWithLast(requestCase) : hasResponses(requestCase.methods);
        let isFinished = false;
        finish = (ending) => {
          isFinished = true;
          finish = () => {};
          isDone = () => false;
          resolve(ending);
        };
        const waitForSilence = async (): Promise<void> => {
          for (let unchanged = 0, last = -1; unchanged < polls; unchanged += 1) {
            const transferred = socket.bytesRead + countServerBytes();
            if (transferred !== last) unchanged = 0;
            last = transferred;
            await eventLoopTurns(1);
            if (isFinished) return;
          }
          finish('silent');
        };
        const ends = [...requestCase.cuts, requestCase.bytes.length];
        const write = (piece: number): void => {
          const end = ends[piece];
          if (socket.destroyed) return;
          if (end === undefined) return void waitForSilence();
          const from = piece === 0 ? 0 : (ends[piece - 1] ?? 0);
          socket.write(requestCase.bytes.subarray(from, end), () => setImmediate(write, piece + 1));
        };
        write(0);
      }),
  };
}

const CONNECTION_CLOSE = /\r\nconnection: close\r\n/i;
const announcesClose = (text: string): boolean => {
  const start = text.lastIndexOf('HTTP/1.1 ');
  return start >= 0 && CONNECTION_CLOSE.test(text.slice(start));
};

/** The server echoes the request line. */
const endsWithLast = ({ last }: RequestCase): ((text: string) => boolean) => {
  const end = `\r\n\r\nGET ${last}`;
  return (text) => text.endsWith(end) && !announcesClose(text);
};

/** Whether there is a complete response for each request, none of which closes the connection. */
function hasResponses(methods: readonly string[]): (text: string) => boolean {
  let at = 0;
  let count = 0;
  return (text) => {
    while (count < methods.length) {
      const headEnd = text.indexOf('\r\n\r\n', at);
      if (headEnd < 0) return false;
      const head = text.slice(at, headEnd + 2);
      const length = methods[count] === 'HEAD' ? '0' : /\r\ncontent-length: *(\d+)\r/i.exec(head)?.[1];
      const end = headEnd + 4 + Number(length);
      if (CONNECTION_CLOSE.test(head) || !(end <= text.length)) return false;
      at = end;
      count += 1;
    }
    return at === text.length;
  };
}
