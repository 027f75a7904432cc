import { createHash, randomBytes } from 'node:crypto';

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
