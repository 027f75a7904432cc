import type { Socket } from 'node:net';

/**
 * A paused socket reads on until 64 KiB are buffered. A client that sends a few bytes at a time fills thousands of buffers of 64 KiB
 * with them. Node has no option for it on sockets that a server accepts.
 */
export function stopReadingWhilePaused(socket: Socket): void {
  const { _readableState: state } = socket as unknown as {
    readonly _readableState?: { highWaterMark: number };
  };
  if (state === undefined) throw new Error('this version of Node has no _readableState');
  state.highWaterMark = 1;
}
