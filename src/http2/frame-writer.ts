import type { Socket } from 'node:net';
import { createBufferPool, type PooledBuffer } from '../lib/buffer-pool.ts';
import { Flag, FRAME_HEADER_SIZE, FrameType, MAX_FRAME_SIZE } from './protocol.ts';

/** The most that is written at once; less to a client that holds as much as it may. */
const MAX_WRITE = 65_536;
const REDUCED_WRITE = 16_384;
/** The TLS socket has an encrypted copy of what it is sending. */
const SENDING_COPIES = 2;
/** While a write is being sent, every connection may collect this much for the next one. */
const LOW_WATER_MARK = 49_152;
/**
 * And this much while all connections together have set aside less than the limit below. More stays with the streams, which then take
 * turns, and is copied once more: a larger limit saves copies, a smaller one lets short responses overtake long ones.
 */
const HIGH_WATER_MARK = 262_144;
const MAX_SET_ASIDE = 8_388_608;
const NO_BYTES = Buffer.alloc(0);
const outputBuffers = createBufferPool([4_096, 16_384, MAX_WRITE], 0);

/** Charges the peer with what waits for it. */
export interface WriterAccount {
  /** It may hold more. */
  readonly mayGrow: boolean;
  readonly hasAuthorized: boolean;
  add(bytes: number): void;
}

/** Writes a header block. */
export interface HeaderBlock {
  /** The most bytes that it can need. */
  readonly maxSize: number;
  /** Returns where it ends. */
  writeTo(out: Buffer, at: number): number;
}

export const toHeaderBlock = (block: Buffer): HeaderBlock => ({
  maxSize: block.length,
  writeTo: (out, at) => at + block.copy(out, at),
});

let waiting: FrameWriter[] = [];
/** Bytes in full buffers of all connections, until they are sent. */
let setAsideBytes = 0;

function flushAll(): void {
  const writers = waiting;
  waiting = [];
  for (const writer of writers) writer.flush();
}

interface CollectedFrames {
  readonly buffer: PooledBuffer;
  readonly length: number;
}

/**
 * Collects the frames of one event-loop iteration, of all streams of a connection, and writes them at once. There is one write
 * at a time: a TLS socket copies buffers together that wait for it.
 */
export class FrameWriter {
  readonly #socket: Socket;
  readonly #account: WriterAccount;
  readonly #onDrain: () => void;
  #buffer: PooledBuffer | undefined = undefined;
  #length = 0;
  /** Full buffers that wait for the write. */
  readonly #full: CollectedFrames[] = [];
  #fullBytes = 0;
  /** Counts full buffers that `end` has given to the socket. */
  #endingBytes = 0;
  /** Bytes of the write that is in progress. */
  #sendingBytes = 0;
  /** The position of the last frame if it is DATA that can be extended, and its stream. */
  #dataAt = -1;
  #dataStreamId = 0;
  #isWaiting = false;

  /** `onDrain`: a write was sent after `hasBacklog` was true, and the client keeps up. */
  constructor(socket: Socket, account: WriterAccount, onDrain: () => void) {
    this.#socket = socket;
    this.#account = account;
    this.#onDrain = onDrain;
  }

  /** A write is being sent, and enough was collected for the next one. */
  get hasBacklog(): boolean {
    return this.#sendingBytes > 0 && this.#fullBytes + this.#length >= LOW_WATER_MARK;
  }

  /** The client does not keep up with what was written. */
  get needsDrain(): boolean {
    const limit = setAsideBytes < MAX_SET_ASIDE ? HIGH_WATER_MARK : LOW_WATER_MARK;
    return this.#sendingBytes > 0 && this.#fullBytes + this.#length >= limit;
  }

  /** Bytes that were not given to the kernel. */
  get unsentBytes(): number {
    return this.#sendingBytes + this.#fullBytes + this.#length;
  }

  /** Writes what was collected, unless a write is being sent: then it follows that. */
  flush(): void {
    this.#isWaiting = false;
    if (this.#sendingBytes === 0) this.#writeNext();
  }

  #writeNext(): void {
    const next = this.#takeFull() ?? this.#takeCollected();
    if (next === undefined || !this.#socket.writable) return;
    const { buffer, length } = next;
    this.#sendingBytes = length;
    // What authorized requests make the process hold is limited for each grant.
    const charged = this.#account.hasAuthorized ? 0 : length * SENDING_COPIES;
    if (charged > 0) this.#account.add(charged);
    this.#socket.write(buffer.bytes.subarray(0, length), (error) => {
      if (charged > 0) this.#account.add(-charged);
      // `needsDrain` may have been true, even if all connections together have set aside less by now.
      const hadBacklog = this.hasBacklog;
      this.#sendingBytes = 0;
      buffer.release(error);
      // A write can still succeed on a socket that was destroyed meanwhile.
      if (!this.#socket.writable) return;
      this.#writeNext();
      if (hadBacklog && !this.needsDrain) this.#onDrain();
    });
  }

  #takeFull(): CollectedFrames | undefined {
    const first = this.#full.shift();
    if (first !== undefined) this.#countFull(-first.length);
    return first;
  }

  #takeCollected(): CollectedFrames | undefined {
    const buffer = this.#buffer;
    const length = this.#length;
    this.#buffer = undefined;
    this.#length = 0;
    this.#dataAt = -1;
    return buffer && { buffer, length };
  }

  /** Writes what was collected, and ends the connection. */
  end(): void {
    const full = this.#full.splice(0);
    this.#endingBytes += this.#fullBytes;
    this.#fullBytes = 0;
    const collected = this.#takeCollected();
    if (this.#socket.writable) {
      for (const { buffer, length } of full)
        this.#socket.write(buffer.bytes.subarray(0, length), (error) => {
          buffer.release(error);
          this.#countSent(length);
        });
      if (collected !== undefined)
        this.#socket.write(collected.buffer.bytes.subarray(0, collected.length), collected.buffer.release);
    }
    this.#socket.end();
  }

  #countSent(length: number): void {
    // After `close`, nothing of it is counted.
    if (this.#endingBytes === 0) return;
    this.#endingBytes -= length;
    setAsideBytes -= length;
  }

  /** The socket is closed. */
  close(): void {
    this.#full.length = 0;
    setAsideBytes -= this.#fullBytes + this.#endingBytes;
    this.#fullBytes = 0;
    this.#endingBytes = 0;
  }

  #countFull(change: number): void {
    this.#fullBytes += change;
    setAsideBytes += change;
    this.#account.add(change);
  }

  settings(entries: readonly (readonly [id: number, value: number])[]): void {
    const out = this.#startFrame(entries.length * 6, FrameType.settings, 0, 0);
    for (const [id, value] of entries) {
      out.writeUInt16BE(id, this.#length);
      out.writeUInt32BE(value, this.#length + 2);
      this.#length += 6;
    }
  }

  settingsAck(): void {
    this.#startFrame(0, FrameType.settings, Flag.ack, 0);
  }

  ping(bytes: Buffer, start: number, isAck: boolean): void {
    const out = this.#startFrame(8, FrameType.ping, isAck ? Flag.ack : 0, 0);
    bytes.copy(out, this.#length, start, start + 8);
    this.#length += 8;
  }

  goaway(lastStreamId: number, code: number): void {
    const out = this.#startFrame(8, FrameType.goaway, 0, 0);
    out.writeUInt32BE(lastStreamId, this.#length);
    out.writeUInt32BE(code, this.#length + 4);
    this.#length += 8;
  }

  reset(streamId: number, code: number): void {
    this.#writeWord(FrameType.resetStream, streamId, code);
  }

  windowUpdate(streamId: number, increment: number): void {
    this.#writeWord(FrameType.windowUpdate, streamId, increment);
  }

  /** At most MAX_FRAME_SIZE bytes. */
  data(streamId: number, flags: number, bytes: Buffer, start: number, end: number): void {
    if (this.#extendData(streamId, flags, bytes, start, end)) return;
    const out = this.#startFrame(end - start, FrameType.data, flags, streamId);
    const frameAt = this.#length - FRAME_HEADER_SIZE;
    bytes.copy(out, this.#length, start, end);
    this.#length += end - start;
    if (flags !== 0) return;
    this.#dataAt = frameAt;
    this.#dataStreamId = streamId;
  }

  endStream(streamId: number): void {
    this.data(streamId, Flag.endStream, NO_BYTES, 0, 0);
  }

  /** Upstreams may send many small chunks: those of one iteration share a frame. */
  #extendData(streamId: number, flags: number, bytes: Buffer, start: number, end: number): boolean {
    const at = this.#dataAt;
    const out = this.#buffer?.bytes;
    if (at < 0 || this.#dataStreamId !== streamId || out === undefined) return false;
    const size = this.#length + (end - start) - at - FRAME_HEADER_SIZE;
    if (size > MAX_FRAME_SIZE || this.#length + (end - start) > out.length) return false;
    bytes.copy(out, this.#length, start, end);
    this.#length += end - start;
    out[at + 1] = size >> 8;
    out[at + 2] = size;
    out[at + 4] = flags;
    if (flags !== 0) this.#dataAt = -1;
    return true;
  }

  headers(streamId: number, isEndStream: boolean, block: HeaderBlock): void {
    const { maxSize } = block;
    const endStream = isEndStream ? Flag.endStream : 0;
    if (maxSize > MAX_FRAME_SIZE) return this.#longHeaders(streamId, endStream, block);
    const out = this.#startFrame(maxSize, FrameType.headers, Flag.endHeaders | endStream, streamId);
    const start = this.#length;
    const end = block.writeTo(out, start);
    out[start - FRAME_HEADER_SIZE + 1] = (end - start) >> 8;
    out[start - FRAME_HEADER_SIZE + 2] = end - start;
    this.#length = end;
  }

  /** RFC 9113 §6.10. */
  #longHeaders(streamId: number, endStream: number, block: HeaderBlock): void {
    const bytes = Buffer.allocUnsafe(block.maxSize);
    const size = block.writeTo(bytes, 0);
    for (let at = 0; at < size; at += MAX_FRAME_SIZE) {
      const end = Math.min(size, at + MAX_FRAME_SIZE);
      const flags = (end === size ? Flag.endHeaders : 0) | (at === 0 ? endStream : 0);
      const type = at === 0 ? FrameType.headers : FrameType.continuation;
      const out = this.#startFrame(end - at, type, flags, streamId);
      bytes.copy(out, this.#length, at, end);
      this.#length += end - at;
    }
  }

  #writeWord(type: number, streamId: number, value: number): void {
    const out = this.#startFrame(4, type, 0, streamId);
    out.writeUInt32BE(value, this.#length);
    this.#length += 4;
  }

  /** Writes the header of a frame; `length` bytes of payload follow at `#length`. */
  #startFrame(length: number, type: number, flags: number, streamId: number): Buffer {
    const out = this.#reserve(FRAME_HEADER_SIZE + length);
    this.#dataAt = -1;
    const at = this.#length;
    out[at] = length >> 16;
    out[at + 1] = length >> 8;
    out[at + 2] = length;
    out[at + 3] = type;
    out[at + 4] = flags;
    out[at + 5] = streamId >>> 24;
    out[at + 6] = streamId >> 16;
    out[at + 7] = streamId >> 8;
    out[at + 8] = streamId;
    this.#length = at + FRAME_HEADER_SIZE;
    return out;
  }

  get #maxWrite(): number {
    return this.#length > REDUCED_WRITE && !this.#account.mayGrow ? REDUCED_WRITE : MAX_WRITE;
  }

  /** Makes room for more frames. */
  #setAside(): void {
    if (this.#sendingBytes === 0) return this.#writeNext();
    const collected = this.#takeCollected();
    // Nothing is counted after `close`.
    if (collected === undefined || this.#socket.destroyed) return;
    this.#full.push(collected);
    this.#countFull(collected.length);
  }

  #reserve(size: number): Buffer {
    if (this.#length + size > this.#maxWrite) this.#setAside();
    let buffer = this.#buffer;
    if (buffer === undefined) {
      this.#length = 0;
      buffer = acquire(size);
    } else if (this.#length + size > buffer.bytes.length) {
      const larger = acquire(this.#length + size);
      buffer.bytes.copy(larger.bytes, 0, 0, this.#length);
      buffer.release();
      buffer = larger;
    }
    this.#buffer = buffer;
    if (!this.#isWaiting) {
      this.#isWaiting = true;
      if (waiting.length === 0) setImmediate(flushAll);
      waiting.push(this);
    }
    return buffer.bytes;
  }
}

const acquire = (size: number): PooledBuffer =>
  outputBuffers.acquire(size) ?? { bytes: Buffer.allocUnsafe(size), release: () => {} };
