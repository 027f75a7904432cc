import { Fault } from '../ports/fault.ts';

/**
 * Work that must not run beside work of the same name. A limit that is looked at before and counted after is
 * no limit when a thousand guesses are on their way at once; taken in turns, it is.
 */
export interface Turns {
  take<T>(name: string, work: () => Promise<T>): Promise<T>;
}

export interface TurnLimits {
  /** Most that may stand in one line. */
  readonly waiting: number;
  /** Longest anyone waits for the turn to come. */
  readonly seconds: number;
}

export function turns({ waiting, seconds }: TurnLimits): Turns {
  const lines = new Map<string, { last: Promise<unknown>; length: number }>();
  return {
    async take(name, work) {
      const line = lines.get(name) ?? { last: Promise.resolve(), length: 0 };
      if (line.length >= waiting) throw new Fault('overloaded', 'too many are waiting for their turn');
      lines.set(name, line);
      line.length += 1;
      const since = performance.now();
      const turn = line.last.then(() => {
        if (performance.now() - since > seconds * 1_000)
          throw new Fault('overloaded', 'the turn came too late');
        return work();
      });
      line.last = turn.catch(() => {});
      try {
        return await turn;
      } finally {
        line.length -= 1;
        if (line.length === 0) lines.delete(name);
      }
    },
  };
}
