import { errorFields } from '../observability/logger.ts';
import type { ForwardRequest } from './exchange.ts';
import type { StreamEndReason } from './policy/live-streams.ts';
import type { ProxyRefusal } from './policy/refusals.ts';
import { BodyError } from './request-body.ts';
import { UpstreamError } from './upstream/connection.ts';

/** The token that a request began with is no longer valid. */
export class TokenEndedError extends Error {
  readonly why: StreamEndReason;

  constructor(why: StreamEndReason) {
    super(`token_${why}`);
    this.why = why;
  }

  /** For the log line of the request. */
  get reason(): string {
    return `ended: ${this.why === 'going_away' ? this.why : `token_${this.why}`}`;
  }
}

/** The deadline of a gRPC call has passed. */
export class DeadlineError extends Error {}

const BODY_ERRORS = {
  too_large: { reason: 'body_too_large' },
  client_disconnected: { reason: 'malformed', detail: 'the body is incomplete' },
  client_too_slow: { reason: 'client_too_slow' },
  no_memory: { reason: 'overloaded', retryAfter: 1 },
  upstream_too_slow: { reason: 'upstream_too_slow' },
} as const satisfies Record<BodyError['kind'], ProxyRefusal>;

const CLIENT_FAULTS: ReadonlySet<BodyError['kind']> = new Set(['too_large', 'client_disconnected', 'client_too_slow']);
/** A passed deadline counts as a cancellation by the client (gRPC's PROTOCOL-HTTP2). */
export const isClientFault = (error: Error): boolean =>
  error instanceof DeadlineError || (error instanceof BodyError && CLIENT_FAULTS.has(error.kind));

type LoggedRequest = Pick<ForwardRequest, 'config' | 'id' | 'allowed' | 'notes'>;

/** A response or a WebSocket was ended because of its token, or of a shutdown. */
export function reportEnded({ config, id, allowed, notes }: LoggedRequest, { why, reason }: TokenEndedError): void {
  notes.reason = reason;
  const { rule, caller } = allowed;
  config.log.info('stream_ended', { request_id: id, rule: rule.name, grant: caller?.bearer.grantId, reason: why });
}

export function logUpstreamError({ config, id, allowed }: LoggedRequest, event: string, cause: unknown): void {
  const { upstream } = allowed.rule;
  config.log.warn(event, { request_id: id, upstream, ...errorFields(cause), stack: undefined });
}

/** The error response for a request that got none from its upstream. */
export function refusalFor(error: Error): ProxyRefusal {
  if (error instanceof BodyError) return BODY_ERRORS[error.kind];
  if (error instanceof DeadlineError) return { reason: 'deadline_exceeded' };
  if (error instanceof UpstreamError && error.isTimeout) return { reason: 'upstream_too_slow' };
  if (!(error instanceof TokenEndedError)) return { reason: 'upstream_failed' };
  const { why } = error;
  return why === 'unknown' || why === 'going_away'
    ? { reason: 'unavailable', retryAfter: 1 }
    : { reason: 'token_invalid', fault: why };
}

/** RFC 9110 §9.2.2: idempotent methods. */
const IDEMPOTENT: ReadonlySet<string> = new Set(['GET', 'HEAD', 'OPTIONS', 'PUT', 'DELETE']);

/**
 * A request may be sent once more when the upstream closed an idle connection just when it was used again (RFC 9112 §9.3.1),
 * or when no connection could be established and another target is available. Requests with a body are not retried: it is
 * read only once. A request that an HTTP/2 upstream declares as not processed is sent again with any method (RFC 9113 §8.7), if its
 * body arrived completely.
 */
export function mayRetry(
  { method, content, body }: ForwardRequest,
  { isIdleClose, isUnreached, isUnprocessed }: UpstreamError,
  hasOtherTarget: () => boolean,
): boolean {
  if (isUnprocessed) return body === undefined;
  if (content !== undefined || body !== undefined || !IDEMPOTENT.has(method)) return false;
  return isIdleClose || (isUnreached && hasOtherTarget());
}
