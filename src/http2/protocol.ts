/** RFC 9113 §6. */
export const FrameType = {
  data: 0x0,
  headers: 0x1,
  priority: 0x2,
  resetStream: 0x3,
  settings: 0x4,
  pushPromise: 0x5,
  ping: 0x6,
  goaway: 0x7,
  windowUpdate: 0x8,
  continuation: 0x9,
} as const;

export const Flag = {
  endStream: 0x1,
  ack: 0x1,
  endHeaders: 0x4,
  padded: 0x8,
  priority: 0x20,
} as const;

/** RFC 9113 §7. */
export const ErrorCode = {
  noError: 0x0,
  protocolError: 0x1,
  internalError: 0x2,
  flowControlError: 0x3,
  streamClosed: 0x5,
  frameSizeError: 0x6,
  refusedStream: 0x7,
  cancel: 0x8,
  compressionError: 0x9,
  enhanceYourCalm: 0xb,
} as const;
export type ErrorCode = (typeof ErrorCode)[keyof typeof ErrorCode];

/** RFC 9113 §6.5.2. */
export const Setting = {
  headerTableSize: 0x1,
  enablePush: 0x2,
  maxConcurrentStreams: 0x3,
  initialWindowSize: 0x4,
  maxFrameSize: 0x5,
  maxHeaderListSize: 0x6,
} as const;

/** RFC 9113 §3.4. */
export const PREFACE = Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', 'latin1');
export const FRAME_HEADER_SIZE = 9;
/** The smallest limit that a peer can set (RFC 9113 §4.2). Neither side sends larger frames. */
export const MAX_FRAME_SIZE = 16_384;
/** RFC 9113 §6.9.2. */
export const DEFAULT_WINDOW = 65_535;
export const MAX_WINDOW = 0x7fffffff;
export const MAX_STREAM_ID = 0x7fffffff;

/** Returns undefined if the padding is longer than the frame (RFC 9113 §6.1). */
export function getPadding(flags: number, bytes: Buffer, start: number, end: number): number | undefined {
  if ((flags & Flag.padded) === 0) return 0;
  if (end === start) return undefined;
  const padding = bytes[start] as number;
  return padding < end - start ? padding : undefined;
}
