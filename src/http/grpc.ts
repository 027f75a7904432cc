import { getSingleHeader } from './raw-headers.ts';

/*
 * What a proxy needs of gRPC (PROTOCOL-HTTP2) and gRPC-Web (PROTOCOL-WEB): calls are recognized by their content type, and their
 * result is a code in trailers, or in the header section of a response without a body (Trailers-Only).
 */

export interface GrpcCall {
  /** The content type of the response. */
  readonly contentType: string;
  /** gRPC-Web, which needs neither HTTP/2 nor trailers. */
  readonly isWeb: boolean;
  /** Seconds within which the client expects the result; undefined: no limit. */
  readonly timeout: number | undefined;
}

const CONTENT_TYPE = /^(application\/grpc(-web(?:-text)?)?(?:\+[\w.-]{1,32})?)[\t ]*(?:;|$)/i;

/** Undefined if the request is no call. gRPC needs HTTP/2. */
export function readGrpcCall(contentType: string, timeout: string | undefined, isHttp2: boolean): GrpcCall | undefined {
  const [, type, web] = CONTENT_TYPE.exec(contentType) ?? [];
  if (type === undefined || (web === undefined && !isHttp2)) return undefined;
  return {
    contentType: type.toLowerCase(),
    isWeb: web !== undefined,
    timeout: timeout === undefined ? undefined : parseGrpcTimeout(timeout),
  };
}

export const isGrpcResponse = (rawHeaders: readonly string[]): boolean =>
  CONTENT_TYPE.test(getSingleHeader(rawHeaders, 'content-type') ?? '');

const SECONDS_PER_UNIT: Readonly<Record<string, number>> = { H: 3_600, M: 60, S: 1, m: 1e-3, u: 1e-6, n: 1e-9 };

/** The value of `grpc-timeout` in seconds. One that is malformed is ignored here: the upstream gets it, and can refuse it. */
export function parseGrpcTimeout(value: string): number | undefined {
  const [, amount, unit = ''] = /^([0-9]{1,8})([HMSmun])$/.exec(value) ?? [];
  return amount === undefined ? undefined : Number(amount) * (SECONDS_PER_UNIT[unit] ?? 0);
}

const MAX_METHOD_LENGTH = 128;
const METHOD_PATH = /^\/([\w.]+\/\w+)$/;

/** `package.Service/Method`, for logs; undefined if the path has another form or is long. */
export function getGrpcMethod(path: string): string | undefined {
  return path.length > MAX_METHOD_LENGTH ? undefined : METHOD_PATH.exec(path)?.[1];
}

/** Codes of `grpc-status`. */
export const GRPC_STATUS = {
  ok: 0,
  unknown: 2,
  deadlineExceeded: 4,
  permissionDenied: 7,
  resourceExhausted: 8,
  unimplemented: 12,
  internal: 13,
  unavailable: 14,
  unauthenticated: 16,
} as const;

/** gRPC's table for HTTP statuses, and more exact codes for those that say more when gatehouse sends them. */
const STATUS_BY_HTTP_STATUS: ReadonlyMap<number, number> = new Map([
  [400, GRPC_STATUS.internal],
  [401, GRPC_STATUS.unauthenticated],
  [403, GRPC_STATUS.permissionDenied],
  [404, GRPC_STATUS.unimplemented],
  [405, GRPC_STATUS.unimplemented],
  [408, GRPC_STATUS.deadlineExceeded],
  [413, GRPC_STATUS.resourceExhausted],
  [414, GRPC_STATUS.resourceExhausted],
  [417, GRPC_STATUS.unimplemented],
  [421, GRPC_STATUS.unavailable],
  [429, GRPC_STATUS.resourceExhausted],
  [431, GRPC_STATUS.resourceExhausted],
  [500, GRPC_STATUS.internal],
  [501, GRPC_STATUS.unimplemented],
  [502, GRPC_STATUS.unavailable],
  [503, GRPC_STATUS.unavailable],
  [504, GRPC_STATUS.deadlineExceeded],
]);

export const getGrpcStatus = (httpStatus: number): number =>
  STATUS_BY_HTTP_STATUS.get(httpStatus) ?? GRPC_STATUS.unknown;

/** The code in trailers or a header section; undefined: there is none, or it is not one of the 17 codes. */
export function readGrpcStatus(list: readonly string[]): number | undefined {
  const value = getSingleHeader(list, 'grpc-status');
  return value !== undefined && /^(?:[0-9]|1[0-6])$/.test(value) ? Number(value) : undefined;
}

/** The result of a call that gatehouse ends. */
export const createGrpcResult = (status: number, message: string): Readonly<Record<string, string>> => ({
  'grpc-status': String(status),
  'grpc-message': encodeGrpcMessage(message),
});

/** UTF-8 in which all bytes but printable ASCII are percent-encoded, and the percent sign. */
export const encodeGrpcMessage = (text: string): string =>
  text.replace(/[^\x20-\x24\x26-\x7e]+/g, (run) =>
    [...Buffer.from(run, 'utf8')].map((byte) => `%${byte.toString(16).toUpperCase().padStart(2, '0')}`).join(''),
  );

/** A flag for compression and the length of the message precede it. */
export const MESSAGE_PREFIX_BYTES = 5;

/** Follows the messages of a body that arrives in parts. */
export class GrpcMessageTracker {
  #prefixBytes = 0;
  #length = 0;
  #bytesLeft = 0;

  /** What has arrived ends with a complete message. */
  get isBetweenMessages(): boolean {
    return this.#prefixBytes === 0 && this.#bytesLeft === 0;
  }

  read(bytes: Buffer, start: number, end: number): void {
    for (let at = start; at < end; ) {
      if (this.#bytesLeft > 0) {
        const size = Math.min(this.#bytesLeft, end - at);
        this.#bytesLeft -= size;
        at += size;
        continue;
      }
      // The flag comes first.
      if (this.#prefixBytes > 0) this.#length = this.#length * 256 + (bytes[at] as number);
      this.#prefixBytes += 1;
      at += 1;
      if (this.#prefixBytes < MESSAGE_PREFIX_BYTES) continue;
      this.#bytesLeft = this.#length;
      this.#prefixBytes = 0;
      this.#length = 0;
    }
  }
}
