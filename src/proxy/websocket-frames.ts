import { createHash, randomBytes } from 'node:crypto';

/**
 * As much of RFC 6455 as it takes to end somebody else's WebSocket politely: where one frame ends and the next may
 * begin, and a Close frame. What frames say is nobody's business here.
 */
export interface FrameTrack {
  /** Bytes that passed in this direction. */
  passed(part: Buffer): void;
  /** Between two frames, none of which was the last: another may stand here, also within a fragmented message (§5.4). */
  canInsert(): boolean;
}

const CLOSE = 0x8;
const LONGEST_HEADER = 10;

export function trackFrames(): FrameTrack {
  const header = Buffer.alloc(LONGEST_HEADER);
  let known = 0;
  /** Of the masking key and the payload. */
  let toCome = 0;
  let closing = false;
  return {
    passed(part) {
      let at = 0;
      while (at < part.length) {
        if (toCome > 0) {
          const step = Math.min(toCome, part.length - at);
          toCome -= step;
          at += step;
          continue;
        }
        header[known++] = part[at++] ?? 0;
        const rest = restAfter(header, known);
        if (rest === undefined) continue;
        closing ||= (header[0] ?? 0) % 16 === CLOSE;
        toCome = rest;
        known = 0;
      }
    },
    canInsert: () => known === 0 && toCome === 0 && !closing,
  };
}

/** §5.2: how many bytes follow this header; undefined while it is not whole. */
function restAfter(header: Buffer, known: number): number | undefined {
  if (known < 2) return undefined;
  const second = header.readUInt8(1);
  const key = second >= 0x80 ? 4 : 0;
  const length = second % 0x80;
  if (length < 126) return key + length;
  if (length === 126) return known < 4 ? undefined : key + header.readUInt16BE(2);
  return known < LONGEST_HEADER ? undefined : key + Number(header.readBigUInt64BE(2));
}

/** §5.5.1. What a client sends is masked (§5.3), so a frame in its place is too. */
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

/** §4.2.2: how a server proves that it has read this very handshake. */
export const acceptFor = (key: string): string =>
  createHash('sha1').update(`${key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`).digest('base64');
