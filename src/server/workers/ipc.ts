import type { GatewayStatus } from '../../observability/gateway-status.ts';
import type { Snapshot } from '../../observability/metric-registry.ts';
import type { RecentEventsQuery, RecentEventsResult } from '../../observability/recent-events.ts';
import { Fault } from '../../ports/fault.ts';
import type { SharedLimits } from '../../ports/shared-limits.ts';
import type { DrainOptions } from '../gateway.ts';

export type WorkerMessage =
  | { readonly kind: 'ready'; readonly port: number }
  | { readonly kind: 'start_failed'; readonly problems: readonly string[] }
  /** The configuration file is invalid: requests its last valid text. */
  | { readonly kind: 'config_request' }
  | {
      readonly kind: 'reloaded';
      readonly text: string | undefined;
      readonly pendingRestart: readonly string[];
    }
  | { readonly kind: 'overload'; readonly overloaded: boolean }
  | { readonly kind: 'snapshot'; readonly snapshot: Snapshot }
  | { readonly kind: 'query_result'; readonly id: number; readonly result?: RecentEventsResult | GatewayStatus }
  | RateLimitRequest;

/** `snapshot`: the worker sends its metrics in a message of their own, before the result, which is empty. */
export type WorkerQuery = RecentEventsQuery | 'status' | 'snapshot';

export type SupervisorMessage =
  | { readonly kind: 'reload' }
  | { readonly kind: 'announce_shutdown' }
  | ({ readonly kind: 'drain' } & DrainOptions)
  | { readonly kind: 'settings'; readonly text: string | undefined }
  | { readonly kind: 'query'; readonly id: number; readonly query: WorkerQuery }
  | RateLimitResponse;

type Operation = Exclude<keyof SharedLimits, 'processCount'>;

/** Sent by a worker to the supervisor, which holds the rate limits of all workers. */
interface RateLimitRequest {
  readonly kind: 'limit';
  readonly id: number;
  readonly operation: Operation;
  readonly args: readonly unknown[];
}
interface RateLimitResponse {
  readonly kind: 'limit';
  readonly id: number;
  readonly result: unknown;
}

export async function handleRateLimitRequest(
  limits: SharedLimits,
  { id, operation, args }: RateLimitRequest,
): Promise<RateLimitResponse> {
  const apply: (...args: never) => Promise<unknown> = limits[operation];
  return { kind: 'limit', id, result: await apply.apply(limits, args as never) };
}

const RESPONSE_TIMEOUT_MS = 1_000;
const MAX_PENDING = 10_000;

export type RateLimitClient = ReturnType<typeof createRateLimitClient>;

/** The worker's side of the rate-limit IPC. */
export function createRateLimitClient(send: (request: RateLimitRequest) => void, workers: number) {
  const pending = new Map<number, PromiseWithResolvers<unknown>>();
  let lastId = 0;
  const sendRequest = async (operation: Operation, args: readonly unknown[]): Promise<unknown> => {
    if (pending.size >= MAX_PENDING)
      throw new Fault('overloaded', 'too many rate-limit requests to the supervisor are pending');
    const id = (lastId += 1);
    const response = Promise.withResolvers<unknown>();
    pending.set(id, response);
    const timer = setTimeout(
      () => response.reject(new Fault('overloaded', 'the supervisor did not respond in time')),
      RESPONSE_TIMEOUT_MS,
    );
    try {
      send({ kind: 'limit', id, operation, args });
      return await response.promise;
    } finally {
      clearTimeout(timer);
      pending.delete(id);
    }
  };
  const forward = <K extends Operation>(operation: K): SharedLimits[K] =>
    ((...args: readonly unknown[]) => sendRequest(operation, args)) as SharedLimits[K];
  return {
    take: forward('take'),
    count: forward('count'),
    admit: forward('admit'),
    release: forward('release'),
    processCount: () => workers,
    onResponse: ({ id, result }: RateLimitResponse): void => pending.get(id)?.resolve(result),
  };
}
