import { Fault } from '../ports/fault.ts';
import type { Allowance, CountWindow, SharedLimits } from '../ports/shared-limits.ts';

/** What a worker asks its supervisor, which counts for all of them. */
export type LimitAsk = { readonly kind: 'limit'; readonly id: number; readonly amount: number } & (
  | { readonly bucket: string; readonly rate: Allowance; readonly owed: boolean }
  | { readonly name: string; readonly window: CountWindow }
);
export interface LimitAnswer {
  readonly kind: 'limit';
  readonly id: number;
  readonly before: number;
}

export async function answerLimit(limits: SharedLimits, ask: LimitAsk): Promise<LimitAnswer> {
  const { id, amount } = ask;
  const before =
    'bucket' in ask
      ? await limits.draw(ask.bucket, ask.rate, amount, ask.owed)
      : await limits.count(ask.name, ask.window, amount);
  return { kind: 'limit', id, before };
}

const ANSWER_MS = 1_000;
const MAX_WAITING = 10_000;

export interface LimitLine extends SharedLimits {
  heard(answer: LimitAnswer): void;
}

/** The worker's end of the line. */
export function limitLine(send: (ask: LimitAsk) => void, workers: number): LimitLine {
  const waiting = new Map<number, PromiseWithResolvers<number>>();
  let last = 0;
  const ask = async (
    amount: number,
    about:
      | { readonly bucket: string; readonly rate: Allowance; readonly owed: boolean }
      | { readonly name: string; readonly window: CountWindow },
  ): Promise<number> => {
    if (waiting.size >= MAX_WAITING)
      throw new Fault('overloaded', 'too many questions to the supervisor are open');
    const id = (last += 1);
    const answer = Promise.withResolvers<number>();
    waiting.set(id, answer);
    const late = setTimeout(
      () => answer.reject(new Fault('overloaded', 'the supervisor does not answer in time')),
      ANSWER_MS,
    );
    try {
      send({ kind: 'limit', id, amount, ...about });
      return await answer.promise;
    } finally {
      clearTimeout(late);
      waiting.delete(id);
    }
  };
  return {
    draw: (bucket, rate, amount, owed = false) => ask(amount, { bucket, rate, owed }),
    count: (name, window, amount) => ask(amount, { name, window }),
    sharers: () => workers,
    heard: ({ id, before }) => waiting.get(id)?.resolve(before),
  };
}
