import type { Socket } from 'node:net';
import { MAX_FIELDS } from '../../http/request-head.ts';
import { type FrameHandler, FrameReader, readUInt31 } from '../../http2/frame-reader.ts';
import { FrameWriter, type HeaderBlock } from '../../http2/frame-writer.ts';
import { TABLE_SIZE } from '../../http2/hpack-decoder.ts';
import { EMPTY_TABLE_UPDATE } from '../../http2/hpack-encoder.ts';
import { OpenStreams } from '../../http2/open-streams.ts';
import {
  DEFAULT_WINDOW,
  ErrorCode,
  Flag,
  FrameType,
  getPadding,
  MAX_FRAME_SIZE,
  MAX_STREAM_ID,
  MAX_WINDOW,
  Setting,
} from '../../http2/protocol.ts';
import { TokenBucket } from '../../http2/token-bucket.ts';
import type { DeadlineEntry, Deadlines } from '../../lib/deadlines.ts';
import type { ConnectionAccount } from '../client-accounts.ts';
import {
  type ClientConnection,
  KEEP_ALIVE_SECONDS,
  type ListenerLimits,
  STALLED_RESPONSE_SECONDS,
} from '../listener-options.ts';
import { getWaitingBytes, turnQueue } from '../turn-queue.ts';
import { DiscardedStreams } from './discarded-streams.ts';
import { type RequestFields, SectionDecoder } from './request-fields.ts';
import { Http2Stream } from './stream.ts';

export interface Http2ConnectionOptions {
  /** `headerTimeout` is also the time until the first request. */
  readonly limits: Required<Pick<ListenerLimits, 'headers' | 'headerTimeout' | 'streams'>>;
  readonly deadlines: Deadlines;
  /** Sets the handler of the stream. */
  readonly onRequest: (stream: Http2Stream) => void;
  /** The connection was closed because its client exceeded a limit. */
  readonly onAbuse: (reason: string) => void;
  readonly onInternalError: (error: unknown) => void;
}

/**
 * Limits the request bodies of all streams. Bytes are acknowledged on arrival, so only the windows of the streams limit what
 * waits: a request that waits for an upstream connection must not take the window from one that has a connection.
 */
const CONNECTION_WINDOW = 1_048_576;
/** Leaving a page may reset a hundred streams at once; resets at a steady rate are an attack (CVE-2023-44487). */
const RESETS = { beyondStreams: 20, perSecond: 20 } as const;
const PINGS = { burst: 100, perSecond: 5 } as const;
const SETTINGS_FRAMES = { burst: 20, perSecond: 1 } as const;
/** Frames that serve no request: empty DATA, PRIORITY, unknown types, frames on closed streams, unnecessary window updates. */
const UNPRODUCTIVE_FRAMES = { burst: 200, perSecond: 10 } as const;
const MAX_SETTINGS = 32;
/** A client may update a window twice for a stream, and twenty times for each frame that it received. */
const WINDOW_UPDATES = { initial: 200, perStream: 2, perDataFrame: 20 } as const;
/** CVE-2024-27316. */
const MAX_CONTINUATIONS = 8;
const MIN_HEADER_BLOCK_LIMIT = 16_384;
/** Replies and header sections that the client does not read: beyond this nothing more is read from it. */
const MAX_UNREAD_REPLIES = 65_536;
/** DATA on a stream that was reset here: as much as the largest window of a stream. */
const MAX_DATA_IN_FLIGHT = 262_144;
/** Smaller frames on streams that have ended here count as unproductive. */
const MIN_PRODUCTIVE_DATA = 64;
/** New connections must be opened well before stream ids run out. */
const LAST_ACCEPTED_STREAM_ID = 0x3fffffff;
const LINGER_MS = 1_000;
/** Since the client has sent something. */
const DRAINED_LINGER_MS = 5_000;
/** How long an acknowledgement of a PING may take, and streams that the client begins before it reads GOAWAY. */
const SHUTDOWN_NOTICE_MS = 1_000;
/** At a shutdown, a client that sends one request at a time is idle if it has sent none for this long. */
const IDLE_MS = 250;
/** After how many responses in succession a client must have paused before GOAWAY is sent with the next one. */
const MIN_PAUSES = 3;
const SHUTDOWN_PING = Buffer.from('shutdown', 'latin1');

/**
 * - `open`; `announced`: the end was announced, all streams are served; `draining`: later streams are not served.
 * - `closed`: GOAWAY was sent, or the socket is closed; what arrives is discarded.
 */
type State = 'open' | 'announced' | 'draining' | 'closed';

/** A header section that continues in CONTINUATION frames. */
interface PartialSection {
  readonly streamId: number;
  readonly flags: number;
  readonly dependsOnItself: boolean;
  readonly parts: Buffer[];
  size: number;
}

/** The server side of an HTTP/2 connection (RFC 9113). An error of a stream ends that stream only. */
export class Http2Connection implements DeadlineEntry, FrameHandler {
  deadline: number;
  previous: DeadlineEntry | undefined = undefined;
  next: DeadlineEntry | undefined = undefined;
  readonly socket: Socket;
  readonly writer: FrameWriter;
  readonly deadlines: Deadlines;
  readonly account: ConnectionAccount;
  /** The windows that the client granted: for each new stream, and for the connection. */
  initialSendWindow = DEFAULT_WINDOW;
  sendWindow = DEFAULT_WINDOW;
  readonly #options: Http2ConnectionOptions;
  readonly #maxHeaderBlock: number;
  readonly #decoder: SectionDecoder;
  readonly #streams = new OpenStreams<Http2Stream>();
  /** Streams with data that the window of the connection, or the socket, does not take; each sends a frame in turn. */
  readonly #blocked = new Set<Http2Stream>();
  /** Streams whose handler waits for the end of the current read. */
  #readEndWaiters: Http2Stream[] = [];
  readonly #discarded: DiscardedStreams;
  readonly #resets: TokenBucket;
  readonly #pings = new TokenBucket(PINGS.burst, PINGS.perSecond);
  readonly #settings = new TokenBucket(SETTINGS_FRAMES.burst, SETTINGS_FRAMES.perSecond);
  readonly #unproductive = new TokenBucket(UNPRODUCTIVE_FRAMES.burst, UNPRODUCTIVE_FRAMES.perSecond);
  #windowUpdatesLeft: number = WINDOW_UPDATES.initial;
  #state: State = 'open';
  /** `requested`: GOAWAY is sent when the client loses no request by it. `due`: also if the client begins further streams. */
  #shutdown: 'none' | 'requested' | 'due' = 'none';
  /** The announcement precedes the next response. */
  #isAnnouncementDue = false;
  #isNoticePinged = false;
  #isNoticeAcknowledged = false;
  /** The announcement is followed by the end as soon as it is acknowledged. */
  #isClosing = false;
  /** PING frames that the client has not acknowledged. */
  #pingsInFlight = 0;
  /** How many PING frames in succession the client has acknowledged since its last stream ended. */
  #idleAcknowledgements = 0;
  /** The last PING was acknowledged in the current read. */
  #isPingAcknowledged = false;
  /** There was no stream at that moment. */
  #isIdleAcknowledged = false;
  /** How many responses in succession the client has read without sending a request at once. Undefined: not known. */
  #pauses: number | undefined = undefined;
  /** The client has sent several requests at a time. */
  #isMultiplexed = false;
  readonly #frames = new FrameReader(this, turnQueue);
  /** Bytes that wait for their turn, charged to the account. */
  #waitingBytes = 0;
  #partialSection: PartialSection | undefined = undefined;
  /** The last stream that was accepted, and the last that the client has begun. */
  #lastStreamId = 0;
  #lastSeenId = 0;
  #hasServed = false;
  readonly #firstRequestDeadline: number;
  /** Requests whose stream is closed, and which are still being processed (CVE-2025-8671). */
  #detached = 0;
  #receiveWindow = CONNECTION_WINDOW;
  #unacknowledged = 0;
  #hasReplied = false;
  #isPaused = false;
  #mustUpdateTable = false;
  #hasUpdatedTable = false;

  constructor({ socket, account }: ClientConnection, options: Http2ConnectionOptions) {
    const { limits, deadlines } = options;
    this.socket = socket;
    this.#options = options;
    this.deadlines = deadlines;
    this.account = account;
    this.account.isIdle = () => this.#streams.size === 0;
    this.account.closeIdle = () => this.close();
    // Pseudo-header fields are counted, too; one more field than allowed is decoded, so that it gets a 431.
    this.#decoder = new SectionDecoder({ size: limits.headers, count: MAX_FIELDS + 4 });
    // Twice as much, so that a section that is too large gets a 431.
    this.#maxHeaderBlock = 2 * Math.max(MIN_HEADER_BLOCK_LIMIT, limits.headers);
    this.#resets = new TokenBucket(limits.streams + RESETS.beyondStreams, RESETS.perSecond);
    this.writer = new FrameWriter(socket, this.account, this.#onDrain);
    this.#discarded = new DiscardedStreams({
      deadlines,
      maxAnswered: limits.streams,
      reset: (id) => this.writer.reset(id, ErrorCode.noError),
      updateWindow: (id, increment) => this.writer.windowUpdate(id, increment),
      onInternalError: (error) => this.onInternalError(error),
    });
    this.#firstRequestDeadline = performance.now() + limits.headerTimeout * 1_000;
    this.deadline = this.#firstRequestDeadline;
    deadlines.add(this);
    socket.on('data', this.#onData).on('end', this.#onEnd).on('close', this.#onClose);
    this.writer.settings([
      [Setting.maxConcurrentStreams, limits.streams],
      [Setting.maxHeaderListSize, limits.headers],
    ]);
    this.writer.windowUpdate(0, CONNECTION_WINDOW - DEFAULT_WINDOW);
  }

  /**
   * Asks the client to use another connection (RFC 9113 §6.8), and serves all its streams until `close`. undici 7 and
   * Python's h2 give up requests that are pending when they read GOAWAY; `node:http2` gives up those that it has not
   * written yet, such as a request on receipt of a response. So GOAWAY waits until the client has acknowledged a PING
   * that follows the last response, and has sent no request before that.
   */
  announceClose(): void {
    if (this.#shutdown !== 'none') return;
    this.#shutdown = 'requested';
    if (this.#state === 'open' && this.#streams.size === 0) this.#probe();
  }

  /** Closes the connection after its streams. If the client begins others at once, GOAWAY precedes the next response. */
  close(): void {
    if (this.#state === 'announced') return this.#closeAnnounced();
    if (this.#state !== 'open' || this.#shutdown === 'due') return;
    this.#shutdown = 'due';
    if (this.#streams.size === 0) this.#probe();
  }

  /** Announces the end, and closes the connection after the streams that the client has begun by then (RFC 9113 §6.8). */
  closeBusy(): void {
    if (this.#state === 'open') this.#announce();
    if (this.#state === 'announced') this.#closeAnnounced();
    else this.#endIfDrained();
  }

  #announce(): void {
    this.#sendNotice();
    this.#ping();
    this.#isNoticePinged = true;
  }

  #sendNotice(): void {
    this.#isAnnouncementDue = false;
    this.#state = 'announced';
    this.writer.goaway(MAX_STREAM_ID, ErrorCode.noError);
    this.deadline = this.deadlines.deadlineIn(KEEP_ALIVE_SECONDS);
    if (this.#shutdown === 'due') this.#closeAnnounced();
  }

  #closeAnnounced(): void {
    if (this.#isClosing) return;
    this.#isClosing = true;
    if (this.#isNoticeAcknowledged) this.#drain();
    else this.deadline = performance.now() + SHUTDOWN_NOTICE_MS;
  }

  #ping(): void {
    this.#pingsInFlight += 1;
    this.writer.ping(SHUTDOWN_PING, 0, false);
  }

  /** Finds out whether the client reads and sends no request. */
  #probe(): void {
    this.#idleAcknowledgements = 0;
    this.#ping();
    if (this.#shutdown === 'due') this.deadline = performance.now() + SHUTDOWN_NOTICE_MS;
  }

  #onLastStreamEnded(): void {
    if (this.#state !== 'open' || this.#shutdown === 'none') return;
    // Python's h2 reads GOAWAY together with the response, and accepts no PING after it.
    if (!this.#isMultiplexed && (this.#pauses ?? 0) >= MIN_PAUSES) this.#sendNotice();
    else this.#probe();
  }

  /** The last PING was acknowledged. All streams that the client had begun before are known. */
  #onAcknowledged(): void {
    // A stream has ended in the current read.
    if (this.#pingsInFlight > 0) return;
    if (this.#state === 'announced') {
      this.#isNoticeAcknowledged = this.#isNoticePinged;
      if (this.#isNoticeAcknowledged && this.#isClosing) this.#drain();
    } else if (this.#isIdleAcknowledged && this.#state === 'open') {
      if (this.#streams.size === 0) this.#continueProbe();
      else {
        this.#pauses = 0;
        this.#isAnnouncementDue ||= this.#shutdown === 'due';
      }
    }
  }

  /**
   * Clients that read only while they wait for a response acknowledge a PING that they read with it, but not a second
   * one. A client that sends one request at a time gets that when it is idle; after short pauses, it gets GOAWAY with a
   * response, so that no request can cross it.
   */
  #continueProbe(): void {
    this.#idleAcknowledgements += 1;
    if (this.#idleAcknowledgements > 1) return this.#announce();
    this.#pauses = (this.#pauses ?? 0) + 1;
    if (this.#isMultiplexed) this.#pingIdle();
    else this.deadline = performance.now() + IDLE_MS;
  }

  #pingIdle(): void {
    this.#ping();
    this.deadline = performance.now() + SHUTDOWN_NOTICE_MS;
  }

  #drain(): void {
    this.#state = 'draining';
    this.deadline =
      this.#partialSection === undefined
        ? Number.POSITIVE_INFINITY
        : performance.now() + this.#options.limits.headerTimeout * 1_000;
    this.writer.goaway(this.#lastStreamId, ErrorCode.noError);
    this.#endIfDrained();
  }

  /**
   * The client does not read while it is idle. With its next request it reads GOAWAY, which says that the request is not processed; httpx
   * then repeats it on another connection. It does not notice if an idle connection is closed.
   */
  #drainUnread(): void {
    this.#state = 'draining';
    this.writer.goaway(this.#lastStreamId, ErrorCode.noError);
    this.deadline = performance.now() + DRAINED_LINGER_MS;
  }

  #endIfDrained(): void {
    if (this.#state !== 'draining' || this.#streams.size > 0) return;
    this.#state = 'closed';
    this.socket.once('finish', this.#onSent);
    this.#end(STALLED_RESPONSE_SECONDS * 1_000);
  }

  #end(lingerMs: number): void {
    this.deadlines.remove(this);
    this.#discarded.clear();
    this.writer.end();
    this.#resume();
    destroyAfter(lingerMs, this.socket);
  }

  onTimeout(): void {
    if (this.#state === 'announced') return this.#drain();
    if (this.#partialSection !== undefined) return this.fail(ErrorCode.enhanceYourCalm);
    if (this.#streams.size > 0) return;
    if (this.#state !== 'open' || this.#shutdown === 'none') this.closeBusy();
    else if (this.#pingsInFlight > 0) this.#drainUnread();
    else this.#pingIdle();
  }

  onInternalError(error: unknown): void {
    this.#options.onInternalError(error);
    this.fail(ErrorCode.internalError);
  }

  #guard(handle: () => void): void {
    try {
      handle();
    } catch (error) {
      this.onInternalError(error);
    }
  }

  readonly #onData = (part: Buffer): void => this.#guard(() => this.#read(part));

  readonly #onDrain = (): void =>
    this.#guard(() => {
      this.#hasReplied = false;
      this.#sendBlocked();
      this.#resume();
    });

  /**
   * The kernel may hold megabytes that the client has not read. Its window updates show that it reads them: on a socket that is closed,
   * they would cause a reset, and the rest would be lost.
   */
  readonly #onSent = (): void => {
    const timer = setTimeout(() => this.socket.destroy(), DRAINED_LINGER_MS);
    this.socket.on('data', () => timer.refresh()).once('close', () => clearTimeout(timer));
  };

  readonly #onEnd = (): void => {
    if (this.isClosed) return;
    // Without the client's window updates and resets, streams cannot be served.
    this.#state = 'closed';
    this.#closeStreams();
    this.#end(LINGER_MS);
  };

  readonly #onClose = (): void => {
    this.#state = 'closed';
    this.deadlines.remove(this);
    this.#closeStreams();
    this.#discarded.clear();
    this.writer.close();
  };

  get isClosed(): boolean {
    return this.#state === 'closed';
  }

  #closeStreams(): void {
    for (const stream of this.#streams.list()) stream.closeByPeer();
  }

  /** An error of the connection (RFC 9113 §5.4.1). */
  fail(code: ErrorCode): void {
    if (this.#state === 'closed') return;
    this.#state = 'closed';
    this.writer.goaway(this.#lastStreamId, code);
    this.#closeStreams();
    this.#end(LINGER_MS);
  }

  #closeForAbuse(reason: string): void {
    if (this.#state === 'closed') return;
    this.#options.onAbuse(reason);
    this.fail(ErrorCode.enhanceYourCalm);
  }

  #countUnproductive(): void {
    if (!this.#unproductive.take()) this.#closeForAbuse('unproductive frames');
  }

  /** An error of a stream (RFC 9113 §5.4.2). The client caused it, so it counts like a reset of its own (CVE-2025-8671). */
  #failStream(id: number, code: ErrorCode): void {
    const stream = this.#streams.get(id);
    this.writer.reset(id, code);
    this.#hasReplied = true;
    if (stream === undefined) this.#discarded.addReset(id, MAX_DATA_IN_FLIGHT);
    else stream.closeByPeer();
    if (!this.#resets.take()) this.#closeForAbuse('resets');
  }

  #read(part: Buffer): void {
    if (this.isClosed || !this.#frames.read(part)) {
      // What the socket had read before it was paused.
      if (this.#waitingBytes > 0) this.#holdWaiting(getWaitingBytes(this.#frames.restBytes, this.socket));
      return;
    }
    if (this.#readEndWaiters.length > 0) this.#reportReadEnd();
    if (this.#isPingAcknowledged) {
      this.#isPingAcknowledged = false;
      this.#onAcknowledged();
    }
    // Once for all window updates: many small frames would cost more than they send.
    if (this.#blocked.size > 0) this.#sendBlocked();
    if (this.#hasReplied && this.writer.hasBacklog && this.writer.unsentBytes > MAX_UNREAD_REPLIES) this.#pause();
  }

  onTurnOver(): void {
    this.#pause();
    this.#holdWaiting(getWaitingBytes(this.#frames.restBytes, this.socket));
    turnQueue.defer(this.account.account, () => {
      this.#holdWaiting(0);
      const rest = this.#frames.takeRest();
      if (this.isClosed) {
        this.#resume();
        return false;
      }
      this.#guard(() => this.#read(rest));
      if (!this.writer.hasBacklog) this.#resume();
      return true;
    });
  }

  #holdWaiting(bytes: number): void {
    this.account.add(bytes - this.#waitingBytes);
    this.#waitingBytes = bytes;
  }

  #reportReadEnd(): void {
    const streams = this.#readEndWaiters;
    this.#readEndWaiters = [];
    for (const stream of streams) this.#call(stream, () => stream.endRead());
  }

  /** Calls the handler of a stream; an error in it ends that stream only. */
  #call(stream: Http2Stream, handle: () => void): void {
    if (stream.isClosed) return;
    try {
      handle();
    } catch (error) {
      stream.onInternalError(error);
    }
  }

  #pause(): void {
    if (this.#isPaused) return;
    this.#isPaused = true;
    this.socket.pause();
  }

  #resume(): void {
    if (!this.#isPaused || this.#frames.isTurnAwaited) return;
    this.#isPaused = false;
    this.socket.resume();
  }

  onFrame(type: number, flags: number, id: number, bytes: Buffer, start: number, end: number): void {
    const section = this.#partialSection;
    if (section !== undefined && (type !== FrameType.continuation || id !== section.streamId))
      return this.fail(ErrorCode.protocolError);
    switch (type) {
      case FrameType.data:
        return this.#readData(flags, id, bytes, start, end);
      case FrameType.headers:
        return this.#readHeaders(flags, id, bytes, start, end);
      case FrameType.priority:
        return this.#readPriority(id, bytes, start, end);
      case FrameType.resetStream:
        return this.#readReset(id, end - start);
      case FrameType.settings:
        return this.#readSettings(flags, id, bytes, start, end);
      case FrameType.ping:
        return this.#readPing(flags, id, bytes, start, end);
      case FrameType.goaway:
        if (id !== 0) return this.fail(ErrorCode.protocolError);
        if (end - start < 8) return this.fail(ErrorCode.frameSizeError);
        return this.#countUnproductive();
      case FrameType.windowUpdate:
        return this.#readWindowUpdate(id, bytes, start, end);
      case FrameType.continuation:
        return this.#readContinuation(flags, bytes, start, end);
      // Clients do not push (RFC 9113 §8.4).
      case FrameType.pushPromise:
        return this.fail(ErrorCode.protocolError);
      // RFC 9113 §4.1: unknown types are ignored.
      default:
        return this.#countUnproductive();
    }
  }

  #isIdle(id: number): boolean {
    return id > this.#lastSeenId || (id & 1) === 0;
  }

  /** RFC 9113 §6.1. */
  #readData(flags: number, id: number, bytes: Buffer, start: number, end: number): void {
    const size = end - start;
    if (this.#isIdle(id)) return this.fail(ErrorCode.protocolError);
    if (size > this.#receiveWindow) return this.fail(ErrorCode.flowControlError);
    this.#receiveWindow -= size;
    this.#acknowledge(size);
    const padding = getPadding(flags, bytes, start, end);
    if (padding === undefined) return this.fail(ErrorCode.protocolError);
    const isLast = (flags & Flag.endStream) !== 0;
    const stream = this.#streams.get(id);
    if (stream === undefined || stream.isInputEnded) {
      if (stream === undefined && this.#discarded.has(id)) return this.#discardData(id, size, isLast);
      return this.#failStream(id, ErrorCode.streamClosed);
    }
    const dataStart = (flags & Flag.padded) === 0 ? start : start + 1;
    const part = bytes.subarray(dataStart, end - padding);
    if (part.length === 0 && !isLast) this.#countUnproductive();
    this.#call(stream, () => {
      const error = stream.receive(part, size, isLast);
      if (error !== undefined) this.#failStream(id, error);
    });
  }

  #discardData(id: number, size: number, isLast: boolean): void {
    const isProductive = size >= MIN_PRODUCTIVE_DATA || (isLast && this.#discarded.isAnswered(id));
    if (!this.#discarded.receive(id, size, isLast)) return this.fail(ErrorCode.flowControlError);
    if (!isProductive) this.#countUnproductive();
  }

  #acknowledge(size: number): void {
    this.#unacknowledged += size;
    if (this.#unacknowledged < CONNECTION_WINDOW / 2) return;
    this.writer.windowUpdate(0, this.#unacknowledged);
    this.#receiveWindow += this.#unacknowledged;
    this.#unacknowledged = 0;
  }

  /** RFC 9113 §6.2. */
  #readHeaders(flags: number, id: number, bytes: Buffer, start: number, end: number): void {
    if ((id & 1) === 0) return this.fail(ErrorCode.protocolError);
    const padding = getPadding(flags, bytes, start, end);
    if (padding === undefined) return this.fail(ErrorCode.protocolError);
    let at = (flags & Flag.padded) === 0 ? start : start + 1;
    let dependsOnItself = false;
    if ((flags & Flag.priority) !== 0) {
      if (end - padding - at < 5) return this.fail(ErrorCode.frameSizeError);
      dependsOnItself = readUInt31(bytes, at) === id;
      at += 5;
    }
    const blockEnd = end - padding;
    if ((flags & Flag.endHeaders) !== 0) return this.#readSection(id, flags, dependsOnItself, bytes, at, blockEnd);
    this.#partialSection = {
      streamId: id,
      flags,
      dependsOnItself,
      parts: [Buffer.from(bytes.subarray(at, blockEnd))],
      size: blockEnd - at,
    };
    this.deadline = Math.min(this.deadline, performance.now() + this.#options.limits.headerTimeout * 1_000);
  }

  /** RFC 9113 §6.10. */
  #readContinuation(flags: number, bytes: Buffer, start: number, end: number): void {
    const section = this.#partialSection;
    if (section === undefined) return this.fail(ErrorCode.protocolError);
    section.size += end - start;
    if (section.parts.length > MAX_CONTINUATIONS) return this.#closeForAbuse('CONTINUATION frames');
    if (section.size > this.#maxHeaderBlock) return this.#closeForAbuse('bytes in a header section');
    section.parts.push(Buffer.from(bytes.subarray(start, end)));
    if ((flags & Flag.endHeaders) === 0) return;
    this.#partialSection = undefined;
    this.#setDeadline();
    const block = Buffer.concat(section.parts);
    this.#readSection(section.streamId, section.flags, section.dependsOnItself, block, 0, block.length);
  }

  #readSection(id: number, flags: number, dependsOnItself: boolean, bytes: Buffer, start: number, end: number): void {
    const isNew = id > this.#lastSeenId;
    const stream = isNew ? undefined : this.#streams.get(id);
    // RFC 9113 §5.1.1: ids only increase.
    if (!isNew && stream === undefined && !this.#discarded.has(id)) return this.fail(ErrorCode.streamClosed);
    // It is decoded in any case: later sections depend on its effect on the dynamic table.
    const fields = this.#decode(bytes, start, end);
    if (fields === undefined) return;
    const isEnd = (flags & Flag.endStream) !== 0;
    if (stream !== undefined) return this.#readTrailers(stream, fields, isEnd);
    if (!isNew) return this.#endDiscarded(id);
    this.#lastSeenId = id;
    if (this.#state === 'draining') {
      // RFC 9113 §6.8: it was begun before the client received GOAWAY, and is not processed.
      this.#discarded.addReset(id, MAX_DATA_IN_FLIGHT);
      return this.#countUnproductive();
    }
    this.#lastStreamId = id;
    if (dependsOnItself || !fields.isRequest || (isEnd && (fields.contentLength ?? 0) > 0))
      return this.#failStream(id, ErrorCode.protocolError);
    if (this.#streams.size + this.#detached >= this.#options.limits.streams || !this.account.mayGrow)
      return this.#failStream(id, ErrorCode.refusedStream);
    this.#open(id, fields, isEnd);
  }

  #decode(bytes: Buffer, start: number, end: number): RequestFields | undefined {
    const fields = this.#decoder.decode(bytes, start, end);
    if (typeof fields !== 'string') return fields;
    if (fields === 'malformed') this.fail(ErrorCode.compressionError);
    else this.#closeForAbuse('header fields');
    return undefined;
  }

  #readTrailers(stream: Http2Stream, fields: RequestFields, isEnd: boolean): void {
    if (stream.isInputEnded) return this.#failStream(stream.id, ErrorCode.streamClosed);
    if (!isEnd || !fields.isTrailers || !stream.endInput()) return this.#failStream(stream.id, ErrorCode.protocolError);
    if (fields.isTooLarge) return this.#failStream(stream.id, ErrorCode.enhanceYourCalm);
    this.#call(stream, () => stream.receiveTrailers(fields));
  }

  /** Trailers or RST_STREAM on a stream that has ended here. */
  #endDiscarded(id: number): void {
    if (this.#discarded.isAnswered(id)) this.#discarded.end(id);
    else this.#countUnproductive();
  }

  #open(id: number, fields: RequestFields, isEnd: boolean): void {
    const stream = new Http2Stream(this, id, fields, isEnd);
    this.#streams.add(stream);
    this.#hasServed = true;
    this.#frames.countStream();
    this.#windowUpdatesLeft += WINDOW_UPDATES.perStream;
    if (this.#state === 'open') this.deadline = Number.POSITIVE_INFINITY;
    if (this.#streams.size > 1) this.#isMultiplexed = true;
    // Otherwise the end of the stream shows whether the client pauses.
    if (this.#shutdown === 'due' && (this.#pauses === 0 || this.#streams.size > 1))
      this.#isAnnouncementDue = this.#state === 'open';
    try {
      this.#options.onRequest(stream);
    } catch (error) {
      if (stream.hasHandler) stream.onInternalError(error);
      else {
        this.#options.onInternalError(error);
        stream.reset(ErrorCode.internalError);
      }
    }
    if (id >= LAST_ACCEPTED_STREAM_ID) this.closeBusy();
  }

  addReadEndWaiter(stream: Http2Stream): void {
    this.#readEndWaiters.push(stream);
  }

  removeStream(stream: Http2Stream): void {
    this.#streams.delete(stream);
    if (this.#blocked.size > 0) this.#blocked.delete(stream);
    if (!stream.isInputEnded) {
      if (stream.isOutputEnded) this.#discarded.addAnswered(stream.id, stream.receiveWindow);
      else this.#discarded.addReset(stream.id, MAX_DATA_IN_FLIGHT);
    }
    if (this.#streams.size > 0) return;
    this.#decoder.trimCache();
    this.#setDeadline();
    this.#onLastStreamEnded();
    this.#endIfDrained();
  }

  #setDeadline(): void {
    if (this.#state !== 'open' || this.#partialSection !== undefined) return;
    if (this.#streams.size > 0) this.deadline = Number.POSITIVE_INFINITY;
    else if (this.#hasServed) this.deadline = this.deadlines.deadlineIn(KEEP_ALIVE_SECONDS);
    else this.deadline = this.#firstRequestDeadline;
  }

  /** A closed stream whose request is still being processed counts as open until `release`. */
  retain(): void {
    this.#detached += 1;
  }

  release(): void {
    this.#detached -= 1;
  }

  /** RFC 9113 §6.3. Priorities are not used. */
  #readPriority(id: number, bytes: Buffer, start: number, end: number): void {
    if (id === 0) return this.fail(ErrorCode.protocolError);
    const error =
      end - start !== 5
        ? ErrorCode.frameSizeError
        : readUInt31(bytes, start) === id
          ? ErrorCode.protocolError
          : undefined;
    if (error === undefined) return this.#countUnproductive();
    // RFC 9113 §6.4: RST_STREAM must not be sent for a stream that was not begun.
    if (this.#isIdle(id)) this.fail(error);
    else this.#failStream(id, error);
  }

  /** RFC 9113 §6.4. */
  #readReset(id: number, size: number): void {
    if (this.#isIdle(id)) return this.fail(ErrorCode.protocolError);
    if (size !== 4) return this.fail(ErrorCode.frameSizeError);
    const stream = this.#streams.get(id);
    if (stream === undefined) return this.#endDiscarded(id);
    stream.closeByPeer();
    this.#discarded.end(id);
    if (!this.#resets.take()) this.#closeForAbuse('resets');
  }

  /** RFC 9113 §6.5. */
  #readSettings(flags: number, id: number, bytes: Buffer, start: number, end: number): void {
    const size = end - start;
    if (id !== 0) return this.fail(ErrorCode.protocolError);
    if ((flags & Flag.ack) !== 0) {
      if (size !== 0) this.fail(ErrorCode.frameSizeError);
      else this.#countUnproductive();
      return;
    }
    if (size % 6 !== 0) return this.fail(ErrorCode.frameSizeError);
    if (size > MAX_SETTINGS * 6 || !this.#settings.take()) return this.#closeForAbuse('settings');
    for (let at = start; at < end; at += 6) {
      const error = this.#applySetting(bytes.readUInt16BE(at), bytes.readUInt32BE(at + 2));
      if (error !== undefined) return this.fail(error);
    }
    this.writer.settingsAck();
    this.#hasReplied = true;
  }

  #applySetting(id: number, value: number): ErrorCode | undefined {
    switch (id) {
      case Setting.headerTableSize:
        // RFC 7541 §4.2. The encoder does not use the table.
        this.#mustUpdateTable ||= value < TABLE_SIZE && !this.#hasUpdatedTable;
        return undefined;
      case Setting.enablePush:
        return value > 1 ? ErrorCode.protocolError : undefined;
      case Setting.initialWindowSize:
        return this.#changeInitialWindow(value);
      case Setting.maxFrameSize:
        return value < MAX_FRAME_SIZE || value > 0xffffff ? ErrorCode.protocolError : undefined;
      default:
        return undefined;
    }
  }

  /** RFC 9113 §6.9.2. */
  #changeInitialWindow(value: number): ErrorCode | undefined {
    if (value > MAX_WINDOW) return ErrorCode.flowControlError;
    const change = value - this.initialSendWindow;
    this.initialSendWindow = value;
    for (const stream of this.#streams.list()) {
      stream.sendWindow += change;
      if (stream.sendWindow > MAX_WINDOW) return ErrorCode.flowControlError;
      if (stream.canSend) this.#blocked.add(stream);
    }
    return undefined;
  }

  /** RFC 9113 §6.7. */
  #readPing(flags: number, id: number, bytes: Buffer, start: number, end: number): void {
    if (id !== 0) return this.fail(ErrorCode.protocolError);
    if (end - start !== 8) return this.fail(ErrorCode.frameSizeError);
    if ((flags & Flag.ack) !== 0) {
      if (this.#pingsInFlight === 0 || bytes.compare(SHUTDOWN_PING, 0, 8, start, end) !== 0)
        return this.#countUnproductive();
      this.#pingsInFlight -= 1;
      this.#isPingAcknowledged = this.#pingsInFlight === 0;
      this.#isIdleAcknowledged = this.#streams.size === 0;
      return;
    }
    if (!this.#pings.take()) return this.#closeForAbuse('pings');
    this.writer.ping(bytes, start, true);
    this.#hasReplied = true;
  }

  /** RFC 9113 §6.9. */
  #readWindowUpdate(id: number, bytes: Buffer, start: number, end: number): void {
    if (end - start !== 4) return this.fail(ErrorCode.frameSizeError);
    const increment = readUInt31(bytes, start);
    if (id !== 0 && this.#isIdle(id)) return this.fail(ErrorCode.protocolError);
    this.#windowUpdatesLeft -= 1;
    if (this.#windowUpdatesLeft < 0) this.#countUnproductive();
    if (id === 0) {
      if (increment === 0) return this.fail(ErrorCode.protocolError);
      this.sendWindow += increment;
      if (this.sendWindow > MAX_WINDOW) return this.fail(ErrorCode.flowControlError);
      return;
    }
    const stream = this.#streams.get(id);
    // It may have been sent before the client received the end of the stream.
    if (stream === undefined) return;
    if (increment === 0) return this.#failStream(id, ErrorCode.protocolError);
    stream.sendWindow += increment;
    if (stream.sendWindow > MAX_WINDOW) return this.#failStream(id, ErrorCode.flowControlError);
    if (stream.canSend) this.#blocked.add(stream);
  }

  /** The client does not keep up with the connection. */
  get isStalled(): boolean {
    return this.writer.needsDrain;
  }

  /** Other streams wait for the connection: whoever writes now waits behind them. */
  get isBlocked(): boolean {
    return this.#blocked.size > 0;
  }

  addBlocked(stream: Http2Stream): void {
    if (stream.canSend) this.#blocked.add(stream);
  }

  getStallDeadline(): number {
    return this.deadlines.deadlineIn(STALLED_RESPONSE_SECONDS);
  }

  /** Each stream sends one frame in turn, as long as the connection takes it. */
  #sendBlocked(): void {
    for (const stream of this.#blocked) {
      if (this.isStalled || this.sendWindow <= 0) return;
      this.#blocked.delete(stream);
      this.#call(stream, () => {
        // Added again, it comes last.
        if (stream.sendUnsent() && stream.canSend) this.#blocked.add(stream);
      });
    }
  }

  writeHeaders(streamId: number, isEnd: boolean, block: HeaderBlock): void {
    // No window limits header sections.
    this.#hasReplied = true;
    if (this.#isAnnouncementDue) this.#announce();
    if (!this.#mustUpdateTable) return this.writer.headers(streamId, isEnd, block);
    this.#mustUpdateTable = false;
    this.#hasUpdatedTable = true;
    this.writer.headers(streamId, isEnd, {
      maxSize: block.maxSize + 1,
      writeTo(out, at) {
        out[at] = EMPTY_TABLE_UPDATE;
        return block.writeTo(out, at + 1);
      },
    });
  }

  writeData(streamId: number, flags: number, bytes: Buffer, start: number, end: number): void {
    this.sendWindow -= end - start;
    this.#windowUpdatesLeft += WINDOW_UPDATES.perDataFrame;
    this.writer.data(streamId, flags, bytes, start, end);
  }
}

/** Destroys the socket unless it closes first. */
function destroyAfter(ms: number, socket: Socket): void {
  const timer = setTimeout(() => socket.destroy(), ms);
  socket.once('close', () => clearTimeout(timer));
}
