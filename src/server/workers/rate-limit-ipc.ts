import type { Rate } from '../../domain/rate.ts';
import { Fault } from '../../ports/fault.ts';
import type {
  CountWindow,
  PendingEntry,
  PendingLimits,
  PendingOutcome,
  SharedLimits,
} from '../../ports/shared-limits.ts';

/** Sent by a worker to the supervisor, which holds the rate limits of all workers. */
export type RateLimitRequest = { readonly kind: 'limit'; readonly id: number } & RateLimitOperation;
type RateLimitOperation =
  | { readonly bucket: string; readonly rate: Rate; readonly amount: number; readonly owed: boolean }
  | { readonly name: string; readonly window: CountWindow; readonly amount: number }
  /** Without options: releases the entry. */
  | { readonly limit: string; readonly entry: PendingEntry; readonly options?: PendingLimits };
export interface RateLimitResponse {
  readonly kind: 'limit';
  readonly id: number;
  readonly result: RateLimitResult;
}
type RateLimitResult = number | PendingOutcome;

export const handleRateLimitRequest = async (
  limits: SharedLimits,
  request: RateLimitRequest,
): Promise<RateLimitResponse> => ({
  kind: 'limit',
  id: request.id,
  result: await applyOperation(limits, request),
});

async function applyOperation(limits: SharedLimits, operation: RateLimitOperation): Promise<RateLimitResult> {
  if ('bucket' in operation)
    return limits.take(operation.bucket, operation.rate, operation.amount, operation.owed);
  if ('name' in operation) return limits.count(operation.name, operation.window, operation.amount);
  if (operation.options !== undefined)
    return limits.admit(operation.limit, operation.entry, operation.options);
  await limits.release(operation.limit, operation.entry);
  return 0;
}

const RESPONSE_TIMEOUT_MS = 1_000;
const MAX_PENDING = 10_000;

export interface RateLimitClient extends SharedLimits {
  onResponse(response: RateLimitResponse): void;
}

/** The worker's side of the rate-limit IPC. */
export function createRateLimitClient(
  send: (request: RateLimitRequest) => void,
  workers: number,
): RateLimitClient {
  const pending = new Map<number, PromiseWithResolvers<RateLimitResult>>();
  let lastId = 0;
  const sendRequest = async (operation: RateLimitOperation): Promise<RateLimitResult> => {
    if (pending.size >= MAX_PENDING)
      throw new Fault('overloaded', 'too many rate-limit requests to the supervisor are pending');
    const id = (lastId += 1);
    const response = Promise.withResolvers<RateLimitResult>();
    pending.set(id, response);
    const timer = setTimeout(
      () => response.reject(new Fault('overloaded', 'the supervisor did not respond in time')),
      RESPONSE_TIMEOUT_MS,
    );
    try {
      send({ kind: 'limit', id, ...operation });
      return await response.promise;
    } finally {
      clearTimeout(timer);
      pending.delete(id);
    }
  };
  return {
    take: async (bucket, rate, amount, owed = false) =>
      toNumber(await sendRequest({ bucket, rate, amount, owed })),
    count: async (name, window, amount) => toNumber(await sendRequest({ name, window, amount })),
    async admit(limit, entry, options) {
      const result = await sendRequest({ limit, entry, options });
      return typeof result === 'object' ? result : { admitted: false };
    },
    async release(limit, entry) {
      await sendRequest({ limit, entry });
    },
    processCount: () => workers,
    onResponse: ({ id, result }) => pending.get(id)?.resolve(result),
  };
}

const toNumber = (result: RateLimitResult): number => (typeof result === 'number' ? result : 0);
