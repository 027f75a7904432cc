import type { ForwardRequest } from './exchange.ts';
import type { UpstreamError } from './upstream/connection.ts';

/** RFC 9110 §9.2.2: idempotent methods. */
const IDEMPOTENT: ReadonlySet<string> = new Set(['GET', 'HEAD', 'OPTIONS', 'PUT', 'DELETE']);

/**
 * A request may be sent once more when the upstream closed an idle connection just when it was used again (RFC 9112 §9.3.1),
 * or when no connection could be established and another target is available. Requests with a body are not retried: it is
 * read only once.
 */
export function mayRetry(
  { method, content, body }: ForwardRequest,
  { isIdleClose, isUnreached }: UpstreamError,
  hasOtherTarget: () => boolean,
): boolean {
  if (content !== undefined || body !== undefined || !IDEMPOTENT.has(method)) return false;
  return isIdleClose || (isUnreached && hasOtherTarget());
}
