import type { IncomingMessage } from 'node:http';

export type ReadBody =
  | { readonly kind: 'whole'; readonly bytes: Buffer }
  | { readonly kind: 'too_large' }
  | { readonly kind: 'too_slow' }
  | { readonly kind: 'broken' };

/** Reads a small body, within a size and a time. What is too large or too slow is not read to its end. */
export function readBody(request: IncomingMessage, maxBytes: number, seconds: number): Promise<ReadBody> {
  return new Promise((resolve) => {
    const parts: Buffer[] = [];
    let length = 0;
    const end = (result: ReadBody): void => {
      clearTimeout(timer);
      request.off('data', onData).off('end', onEnd).off('close', onBroken).off('error', onBroken);
      if (result.kind !== 'whole') request.on('error', () => {}).pause();
      resolve(result);
    };
    const onData = (part: Buffer): void => {
      length += part.length;
      if (length > maxBytes) end({ kind: 'too_large' });
      else parts.push(part);
    };
    const onEnd = (): void => end({ kind: 'whole', bytes: Buffer.concat(parts, length) });
    const onBroken = (): void => end({ kind: 'broken' });
    const timer = setTimeout(() => end({ kind: 'too_slow' }), seconds * 1_000);
    if (request.readableEnded) return onEnd();
    if (Number(request.headers['content-length'] ?? 0) > maxBytes) return end({ kind: 'too_large' });
    request.on('data', onData).on('end', onEnd).on('close', onBroken).on('error', onBroken);
  });
}
