import { createGrpcResult, GRPC_STATUS, MESSAGE_PREFIX_BYTES } from '../http/grpc.ts';
import type { Reply } from '../http/reply.ts';
import type { RequestHead } from '../http/request-head.ts';

/*
 * Calls with one request message and one response message, over HTTP/2 (gRPC's PROTOCOL-HTTP2). A message is preceded by a flag
 * for compression and by its length.
 */

const CONTENT_TYPE = 'application/grpc';

/** Is it a call whose messages are protobuf? */
export const isProtobufCall = ({ grpc }: RequestHead): boolean =>
  grpc?.contentType === CONTENT_TYPE || grpc?.contentType === `${CONTENT_TYPE}+proto`;

/** The only message of a request body, or the response to a body that is not valid. */
export function readMessage(body: Buffer): Buffer | Reply {
  // gRPC's status codes: a number of messages other than one is UNIMPLEMENTED.
  if (body.length === 0) return createErrorReply(GRPC_STATUS.unimplemented, 'The request has no message.');
  if (body.length < MESSAGE_PREFIX_BYTES) return createErrorReply(GRPC_STATUS.internal, 'The message is truncated.');
  if (body[0] !== 0) return createErrorReply(GRPC_STATUS.unimplemented, 'Compressed messages are not supported.');
  const end = MESSAGE_PREFIX_BYTES + body.readUInt32BE(1);
  if (end > body.length) return createErrorReply(GRPC_STATUS.internal, 'The message is truncated.');
  if (end < body.length) return createErrorReply(GRPC_STATUS.unimplemented, 'The request has more than one message.');
  return body.subarray(MESSAGE_PREFIX_BYTES);
}

/** A message that is not compressed, with its prefix. */
export function frameMessage(message: Buffer): Buffer {
  const prefix = Buffer.alloc(MESSAGE_PREFIX_BYTES);
  prefix.writeUInt32BE(message.length, 1);
  return Buffer.concat([prefix, message]);
}

/** `loggedStatus`: for the log and the metrics. */
export const createMessageReply = (message: Buffer, loggedStatus: number): Reply => ({
  status: 200,
  loggedStatus,
  headers: { 'content-type': CONTENT_TYPE },
  body: frameMessage(message),
  trailers: { 'grpc-status': String(GRPC_STATUS.ok) },
});

/** A response without a message: its status is in the header section (Trailers-Only). */
const createErrorReply = (status: number, message: string): Reply => ({
  status: 200,
  loggedStatus: 400,
  headers: { 'content-type': CONTENT_TYPE, ...createGrpcResult(status, message) },
});
