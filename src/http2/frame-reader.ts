import { ByteQueue } from './byte-queue.ts';
import { ErrorCode, Flag, FRAME_HEADER_SIZE, FrameType, MAX_FRAME_SIZE, PREFACE } from './protocol.ts';

/** Receives the frames of a connection. */
export interface FrameHandler {
  /** What arrives is discarded. */
  readonly isClosed: boolean;
  /** The payload is in `bytes`, from `start` to `end`. */
  onFrame(type: number, flags: number, streamId: number, bytes: Buffer, start: number, end: number): void;
  /** RFC 9113 §5.4.1. */
  fail(code: ErrorCode): void;
  /** Enough was processed in this iteration of the event loop: read `takeRest` in a later turn, and nothing until then. */
  onTurnOver(): void;
}

/** Bounds the work of one iteration of the event loop. */
export interface Turns {
  readonly isOver: boolean;
  /** Counts work like that of a request. True: the turn is over. */
  count(): boolean;
}

/** So many frames take about as long as one request. */
const FRAMES_PER_REQUEST = 64;
/** The most that is processed at once. Requests cause work later. */
const MAX_FRAMES = 1_000;
const MAX_STREAMS = 32;

/** Splits what a peer sends into frames (RFC 9113 §4), after the connection preface of a client (§3.4). */
export class FrameReader {
  readonly #handler: FrameHandler;
  readonly #turns: Turns;
  #awaited: 'preface' | 'settings' | 'frame' = 'preface';
  /** The beginning of a frame, and how many bytes it needs. */
  readonly #partialFrame = new ByteQueue();
  #neededBytes = 0;
  /** Since the last read began. */
  #frames = 0;
  #streams = 0;
  #isTurnOver = false;
  /** The rest of what has arrived is processed in a later turn. */
  isTurnAwaited = false;

  /** `peer`: a server does not send the preface. */
  constructor(handler: FrameHandler, turns: Turns, peer: 'client' | 'server' = 'client') {
    this.#handler = handler;
    this.#turns = turns;
    if (peer === 'server') this.#awaited = 'settings';
  }

  /** A stream was begun: it costs more than other frames. */
  countStream(): void {
    this.#streams += 1;
    if (this.#turns.count() || this.#streams === MAX_STREAMS) this.#isTurnOver = true;
  }

  /** Bytes that wait for their turn. */
  get restBytes(): number {
    return this.#partialFrame.length;
  }

  /** True: frames may have been processed, and the connection is open. */
  read(part: Buffer): boolean {
    const bytes = this.#joinPartialFrame(part);
    if (bytes === undefined) return false;
    const start = this.#awaited === 'preface' ? this.#readPreface(bytes) : 0;
    if (start === undefined) return false;
    this.#frames = 0;
    this.#streams = 0;
    this.#isTurnOver = this.#turns.isOver;
    const end = this.#readFrames(bytes, start);
    if (end === undefined) return false;
    if (end < bytes.length) {
      this.#keepPartialFrame(end === 0 ? bytes : bytes.subarray(end));
      if (this.#isTurnOver) {
        this.isTurnAwaited = true;
        this.#handler.onTurnOver();
      }
    }
    return true;
  }

  /** For `read`, after `onTurnOver`. */
  takeRest(): Buffer {
    this.isTurnAwaited = false;
    return this.#partialFrame.take();
  }

  /** Returns undefined if the frame is still incomplete. Its parts are joined once, however many there are. */
  #joinPartialFrame(part: Buffer): Buffer | undefined {
    if (this.#partialFrame.length === 0) return part;
    this.#partialFrame.add(part);
    const isIncomplete = this.#partialFrame.length < this.#neededBytes || this.isTurnAwaited;
    return isIncomplete ? undefined : this.#partialFrame.take();
  }

  #keepPartialFrame(bytes: Buffer): void {
    this.#partialFrame.add(bytes);
    this.#neededBytes =
      this.#awaited === 'preface'
        ? PREFACE.length
        : FRAME_HEADER_SIZE + (bytes.length < FRAME_HEADER_SIZE ? 0 : readUInt24(bytes, 0));
  }

  /** Where it ends; undefined: it is incomplete or wrong. */
  #readPreface(bytes: Buffer): number | undefined {
    const length = Math.min(bytes.length, PREFACE.length);
    if (bytes.compare(PREFACE, 0, length, 0, length) !== 0) {
      this.#handler.fail(ErrorCode.protocolError);
      return undefined;
    }
    if (length < PREFACE.length) {
      this.#keepPartialFrame(bytes);
      return undefined;
    }
    this.#awaited = 'settings';
    return PREFACE.length;
  }

  /** Where the first incomplete frame begins; undefined: the connection was closed. */
  #readFrames(bytes: Buffer, start: number): number | undefined {
    const handler = this.#handler;
    let at = start;
    while (bytes.length - at >= FRAME_HEADER_SIZE && !this.#isTurnOver) {
      this.#frames += 1;
      if (this.#frames % FRAMES_PER_REQUEST === 0 && this.#turns.count()) this.#isTurnOver = true;
      if (this.#frames === MAX_FRAMES) this.#isTurnOver = true;
      const length = readUInt24(bytes, at);
      if (length > MAX_FRAME_SIZE) {
        handler.fail(ErrorCode.frameSizeError);
        return undefined;
      }
      const payload = at + FRAME_HEADER_SIZE;
      if (payload + length > bytes.length) break;
      const type = bytes[at + 3] as number;
      const flags = bytes[at + 4] as number;
      const streamId = readUInt31(bytes, at + 5);
      at = payload + length;
      if (this.#awaited === 'settings' && !this.#isFirstFrame(type, flags)) return undefined;
      handler.onFrame(type, flags, streamId, bytes, payload, at);
      if (handler.isClosed) return undefined;
    }
    return at;
  }

  /** RFC 9113 §3.4: the preface ends with SETTINGS. */
  #isFirstFrame(type: number, flags: number): boolean {
    this.#awaited = 'frame';
    if (type === FrameType.settings && (flags & Flag.ack) === 0) return true;
    this.#handler.fail(ErrorCode.protocolError);
    return false;
  }
}

const readUInt24 = (bytes: Buffer, at: number): number =>
  ((bytes[at] as number) << 16) | ((bytes[at + 1] as number) << 8) | (bytes[at + 2] as number);

export const readUInt31 = (bytes: Buffer, at: number): number =>
  (((bytes[at] as number) & 0x7f) << 24) |
  ((bytes[at + 1] as number) << 16) |
  ((bytes[at + 2] as number) << 8) |
  (bytes[at + 3] as number);
