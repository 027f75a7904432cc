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

/** One read of a long answer, and what is put around it. */
const MOST = 73_728;
const WORTH_IT = 4_096;
/** So many are kept while nobody wants them. */
const MOST_IDLE = 32;

export function lentBuffers(): LentBuffers {
  const idle: Loan[] = [];
  const make = (): Loan => {
    const loan: Loan = {
      bytes: Buffer.allocUnsafeSlow(MOST),
      written(error) {
        if ((error === undefined || error === null) && idle.length < MOST_IDLE) idle.push(loan);
      },
    };
    return loan;
  };
  return { borrow: (size) => (size < WORTH_IT || size > MOST ? undefined : (idle.pop() ?? make())) };
}
