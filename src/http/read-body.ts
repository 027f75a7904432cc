import type { IncomingMessage } from 'node:http';

type BodyReadResult =
  | { readonly kind: 'complete'; readonly bytes: Buffer }
  | { readonly kind: 'too_large' }
  | { readonly kind: 'timeout' }
  | { readonly kind: 'aborted' };

/** Stops reading when the body exceeds the size or the time. `hold`: charges the client with what is kept of it. */
export function readBody(
  request: IncomingMessage,
  maxBytes: number,
  seconds: number,
  hold?: (bytes: number) => void,
): Promise<BodyReadResult> {
  return new Promise((resolve) => {
    const parts: Buffer[] = [];
    let length = 0;
    const finish = (result: BodyReadResult): void => {
      clearTimeout(timer);
      request.off('data', onData).off('end', onEnd).off('close', onAborted).off('error', onAborted);
      if (result.kind !== 'complete') request.on('error', () => {}).pause();
      resolve(result);
    };
    const onData = (part: Buffer): void => {
      length += part.length;
      if (length > maxBytes) return finish({ kind: 'too_large' });
      parts.push(part);
      hold?.(part.length);
    };
    const onEnd = (): void => finish({ kind: 'complete', bytes: Buffer.concat(parts, length) });
    const onAborted = (): void => finish({ kind: 'aborted' });
    const timer = setTimeout(() => finish({ kind: 'timeout' }), seconds * 1_000);
    if (request.readableEnded) return onEnd();
    if (Number(request.headers['content-length'] ?? 0) > maxBytes) return finish({ kind: 'too_large' });
    request.on('data', onData).on('end', onEnd).on('close', onAborted).on('error', onAborted);
  });
}
