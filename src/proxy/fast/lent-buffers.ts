/** Memory for something that is about to be written. */
export interface Loan {
  readonly bytes: Buffer;
  /** For the stream, when it was written. Memory of which that was not said, or not without an error, is never lent again. */
  readonly written: (error?: Error | null) => void;
}

/**
 * Memory that is lent to one write after another. Memory outside of V8's heap that is new for each long answer has all of that
 * heap looked through again and again: with 100 KiB each, that took a third of all time.
 */
export interface LentBuffers {
  /** For so many bytes; undefined: that is less than is worth it, or more than is ever lent. */
  borrow(size: number): Loan | undefined;
}

/** The last is for one read of a long answer, and what is put around it. A client that takes nothing keeps thrice its due at most. */
const SIZES = [8_192, 24_576, 73_728] as const;
const WORTH_IT = 4_096;
/** So many bytes of each size are kept while nobody wants them. */
const MOST_IDLE = 6_291_456;

export function lentBuffers(): LentBuffers {
  const shelves = SIZES.map((size) => ({ size, idle: [] as Loan[] }));
  const make = (size: number, idle: Loan[]): Loan => {
    const loan: Loan = {
      bytes: Buffer.allocUnsafeSlow(size),
      written(error) {
        if ((error === undefined || error === null) && idle.length * size < MOST_IDLE) idle.push(loan);
      },
    };
    return loan;
  };
  return {
    borrow(wanted) {
      if (wanted < WORTH_IT) return undefined;
      for (const { size, idle } of shelves) if (wanted <= size) return idle.pop() ?? make(size, idle);
      return undefined;
    },
  };
}
