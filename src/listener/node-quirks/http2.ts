import type { ServerHttp2Stream } from 'node:http2';
import type { Http2MessageStream } from '../http2-request.ts';

/*
 * Behaviour of Node's HTTP/2 streams (`lib/internal/http2/core.js`, Node 26) for which there is no public API.
 * test/listener/node-quirks.test.ts fails when one of these is no longer needed or no longer works.
 */

const RESET = new Error('stream reset');

/**
 * Resets a stream. `close` with an error code ends the stream first, so that the client takes a truncated response for a
 * complete one.
 */
export function resetStream(stream: Http2MessageStream): void {
  if (!stream.closed) stream.destroy(RESET);
}

/** Reports each part of the body as it arrives, even while the stream is paused. Streams have no event for this. */
export function onBodyReceived(stream: ServerHttp2Stream, onChunk: (size: number) => void): void {
  // Received together with the header section.
  if (stream.readableLength > 0) onChunk(stream.readableLength);
  const push = stream.push.bind(stream);
  stream.push = (part: Buffer | null, encoding) => {
    if (part !== null) onChunk(part.length);
    return push(part, encoding);
  };
}

/**
 * Whether END_STREAM was sent. If the request was read completely, Node destroys the stream as soon as its last frame is
 * sent, and `finish` is never emitted; the state of the stream is available until then.
 */
export function trackEndSent(stream: Http2MessageStream): () => boolean {
  let isEndSent = false;
  const destroy = stream.destroy.bind(stream);
  stream.destroy = (error) => {
    isEndSent ||= stream.state.localClose === 1;
    return destroy(error);
  };
  return () => isEndSent;
}
