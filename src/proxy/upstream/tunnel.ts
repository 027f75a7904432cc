import { createHash, randomBytes } from 'node:crypto';
import type { Socket } from 'node:net';

/** The two connections of a forwarded WebSocket. */
export type Tunnel = ReturnType<typeof openTunnel>;

/** How long a side may take to read its last bytes. */
const CLOSE_TIMEOUT_MS = 300;
/** How long one side stays open after the other was closed. */
const HALF_OPEN_TIMEOUT_MS = 2_000;

/**
 * Watches a tunnel that http-proxy-3 pumps: tracks where frames begin, so that one can be inserted, and closes one side when
 * the other is closed. Opened before both sides are joined, so that it sees every byte.
 */
export function openTunnel(client: Socket, upstream: Socket, idleSeconds: number, onClose: () => void) {
  const toClient = new FrameTracker();
  const toUpstream = new FrameTracker();
  const trackSocket = (socket: Socket, tracker: FrameTracker): (() => void) => {
    const onData = (part: Buffer): void => tracker.push(part);
    socket.on('data', onData);
    return () => void socket.off('data', onData);
  };
  const stopTracking = [trackSocket(upstream, toClient), trackSocket(client, toUpstream)];
  let destroyTimer: NodeJS.Timeout | undefined;
  let isEnding = false;

  const destroyIn = (ms: number): void => {
    clearTimeout(destroyTimer);
    destroyTimer = setTimeout(() => {
      client.destroy();
      upstream.destroy();
    }, ms);
  };
  const onSideClosed = (): void => {
    if (client.destroyed && upstream.destroyed) {
      clearTimeout(destroyTimer);
      onClose();
    } else if (!isEnding) destroyIn(HALF_OPEN_TIMEOUT_MS);
  };
  for (const socket of [client, upstream]) {
    socket.once('end', onSideClosed).once('close', onSideClosed);
    socket.on('error', () => socket.destroy());
  }

  const end = (code: number, reason: string): void => {
    if (isEnding) return;
    isEnding = true;
    // Nothing is forwarded from here on; the rest is read only to notice the end.
    upstream.unpipe(client);
    client.unpipe(upstream);
    for (const stop of stopTracking) stop();
    sendCloseFrame(client, toClient, closeFrame(code, reason, false));
    sendCloseFrame(upstream, toUpstream, closeFrame(code, reason, true));
    destroyIn(CLOSE_TIMEOUT_MS);
  };

  return {
    /** Closes both sides soon, with a Close frame where one may be sent. */
    end,
    /** Both sides are joined: the idle timeout begins. */
    start(): void {
      client.setTimeout(idleSeconds * 1_000, () => end(1001, 'idle timeout'));
    },
  };
}

function sendCloseFrame(socket: Socket, tracker: FrameTracker, frame: Buffer): void {
  if (socket.writable && tracker.canInsert()) socket.write(frame);
  socket.end();
  socket.resume();
}

const CLOSE = 0x8;
const MAX_HEADER_BYTES = 10;

/** RFC 6455, as far as it is needed to close a forwarded WebSocket: where frames end, and Close frames. */
export class FrameTracker {
  readonly #header = Buffer.alloc(MAX_HEADER_BYTES);
  #headerLength = 0;
  /** Bytes of the masking key and the payload that have not arrived. */
  #bytesLeft = 0;
  #hasCloseFrame = false;

  /** Bytes that were forwarded in this direction. */
  push(part: Buffer): void {
    let at = 0;
    while (at < part.length) {
      if (this.#bytesLeft > 0) {
        const step = Math.min(this.#bytesLeft, part.length - at);
        this.#bytesLeft -= step;
        at += step;
        continue;
      }
      this.#header[this.#headerLength++] = part[at++] ?? 0;
      const remaining = readRemainingLength(this.#header, this.#headerLength);
      if (remaining === undefined) continue;
      this.#hasCloseFrame ||= (this.#header[0] ?? 0) % 16 === CLOSE;
      this.#bytesLeft = remaining;
      this.#headerLength = 0;
    }
  }

  /** Between two frames, before a Close frame: another control frame may be sent, also within a fragmented message (§5.4). */
  canInsert(): boolean {
    return this.#headerLength === 0 && this.#bytesLeft === 0 && !this.#hasCloseFrame;
  }
}

/** §5.2: how many bytes follow this header; undefined while it is incomplete. */
function readRemainingLength(header: Buffer, headerLength: number): number | undefined {
  if (headerLength < 2) return undefined;
  const second = header.readUInt8(1);
  const key = second >= 0x80 ? 4 : 0;
  const length = second % 0x80;
  if (length < 126) return key + length;
  if (length === 126) return headerLength < 4 ? undefined : key + header.readUInt16BE(2);
  return headerLength < MAX_HEADER_BYTES ? undefined : key + Number(header.readBigUInt64BE(2));
}

/** §5.5.1. Frames of a client are masked (§5.3), also those sent in its place. */
export function closeFrame(code: number, reason: string, masked: boolean): Buffer {
  const text = Buffer.from(reason, 'latin1').subarray(0, 123);
  const payload = Buffer.alloc(2 + text.length);
  payload.writeUInt16BE(code);
  text.copy(payload, 2);
  if (!masked) return Buffer.concat([Buffer.from([0x80 + CLOSE, payload.length]), payload]);
  const key = randomBytes(4);
  for (const [index, byte] of payload.entries()) payload[index] = byte ^ (key[index % 4] ?? 0);
  return Buffer.concat([Buffer.from([0x80 + CLOSE, 0x80 + payload.length]), key, payload]);
}

/** §4.2.2: the value of Sec-WebSocket-Accept. */
export const computeAcceptKey = (key: string): string =>
  createHash('sha1').update(`${key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`).digest('base64');
