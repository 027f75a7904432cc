/** One of several questions that are put to the server together. */
interface Waiting<Ask, Answer> {
  readonly ask: Ask;
  readonly resolve: (answer: Answer) => void;
  readonly reject: (error: unknown) => void;
}

/**
 * Puts what is asked while an answer is awaited into one command. Of what a small command costs this process most is
 * ioredis' bookkeeping, and one server reads many records as fast as one.
 */
export function inBatches<Ask, Answer>(
  most: number,
  send: (asks: readonly Ask[]) => Promise<readonly Answer[]>,
): (ask: Ask) => Promise<Answer> {
  let queue: Waiting<Ask, Answer>[] = [];
  let scheduled = false;
  let underWay = 0;

  const flush = (): void => {
    scheduled = false;
    while (queue.length > 0) {
      const these = queue.splice(0, most);
      underWay += 1;
      void answer(these);
    }
  };
  const answer = async (these: readonly Waiting<Ask, Answer>[]): Promise<void> => {
    try {
      const answers = await send(these.map(({ ask }) => ask));
      these.forEach(({ resolve }, index) => resolve(answers[index] as Answer));
    } catch (error) {
      for (const { reject } of these) reject(error);
    } finally {
      underWay -= 1;
      if (underWay === 0 && queue.length > 0) flush();
    }
  };
  return (ask) =>
    new Promise((resolve, reject) => {
      queue.push({ ask, resolve, reject });
      // Those that come in the same turn go together; those that come while others wait go when these are back.
      if (scheduled || underWay > 0) return;
      scheduled = true;
      queueMicrotask(flush);
    });
}
