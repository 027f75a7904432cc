import { Fault } from '../ports/fault.ts';
import type {
  Allowance,
  CountWindow,
  PendingEntry,
  PendingOutcome,
  PendingTerms,
  SharedLimits,
} from '../ports/shared-limits.ts';

/** What a worker asks its supervisor, which counts for all of them. */
export type LimitAsk = { readonly kind: 'limit'; readonly id: number } & LimitQuestion;
type LimitQuestion =
  | { readonly bucket: string; readonly rate: Allowance; readonly amount: number; readonly owed: boolean }
  | { readonly name: string; readonly window: CountWindow; readonly amount: number }
  /** Without terms: it has ended. */
  | { readonly limit: string; readonly entry: PendingEntry; readonly terms?: PendingTerms };
export interface LimitAnswer {
  readonly kind: 'limit';
  readonly id: number;
  readonly found: number | PendingOutcome;
}

export async function answerLimit(limits: SharedLimits, ask: LimitAsk): Promise<LimitAnswer> {
  return { kind: 'limit', id: ask.id, found: await foundBy(limits, ask) };
}

async function foundBy(limits: SharedLimits, ask: LimitQuestion): Promise<number | PendingOutcome> {
  if ('bucket' in ask) return limits.draw(ask.bucket, ask.rate, ask.amount, ask.owed);
  if ('name' in ask) return limits.count(ask.name, ask.window, ask.amount);
  if (ask.terms !== undefined) return limits.admit(ask.limit, ask.entry, ask.terms);
  await limits.release(ask.limit, ask.entry);
  return 0;
}

const ANSWER_MS = 1_000;
const MAX_WAITING = 10_000;

export interface LimitLine extends SharedLimits {
  heard(answer: LimitAnswer): void;
}

/** The worker's end of the line. */
export function limitLine(send: (ask: LimitAsk) => void, workers: number): LimitLine {
  const waiting = new Map<number, PromiseWithResolvers<LimitAnswer['found']>>();
  let last = 0;
  const ask = async (question: LimitQuestion): Promise<LimitAnswer['found']> => {
    if (waiting.size >= MAX_WAITING)
      throw new Fault('overloaded', 'too many questions to the supervisor are open');
    const id = (last += 1);
    const answer = Promise.withResolvers<LimitAnswer['found']>();
    waiting.set(id, answer);
    const late = setTimeout(
      () => answer.reject(new Fault('overloaded', 'the supervisor does not answer in time')),
      ANSWER_MS,
    );
    try {
      send({ kind: 'limit', id, ...question });
      return await answer.promise;
    } finally {
      clearTimeout(late);
      waiting.delete(id);
    }
  };
  return {
    draw: async (bucket, rate, amount, owed = false) => numberIn(await ask({ bucket, rate, amount, owed })),
    count: async (name, window, amount) => numberIn(await ask({ name, window, amount })),
    async admit(limit, entry, terms) {
      const found = await ask({ limit, entry, terms });
      return typeof found === 'object' ? found : { admitted: false };
    },
    async release(limit, entry) {
      await ask({ limit, entry });
    },
    sharers: () => workers,
    heard: ({ id, found }) => waiting.get(id)?.resolve(found),
  };
}

const numberIn = (found: LimitAnswer['found']): number => (typeof found === 'number' ? found : 0);
