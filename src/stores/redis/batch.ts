interface PendingItem<Item, Result> {
  readonly item: Item;
  readonly resolve: (result: Result) => void;
  readonly reject: (error: unknown) => void;
}

/**
 * Combines items that arrive while a reply is awaited into one command: most of the cost of a small command is ioredis'
 * bookkeeping, and the server reads many records as fast as one.
 */
export function createBatcher<Item, Result>(
  maxBatch: number,
  send: (items: readonly Item[]) => Promise<readonly Result[]>,
): (item: Item) => Promise<Result> {
  let queue: PendingItem<Item, Result>[] = [];
  let state: 'idle' | 'scheduled' | 'sending' = 'idle';

  const flush = async (): Promise<void> => {
    while (queue.length > 0) {
      state = 'sending';
      const pending = queue;
      queue = [];
      await Promise.all(chunk(pending, maxBatch).map(sendBatch));
    }
    state = 'idle';
  };
  const sendBatch = async (batch: readonly PendingItem<Item, Result>[]): Promise<void> => {
    try {
      const results = await send(batch.map(({ item }) => item));
      batch.forEach(({ resolve }, index) => resolve(results[index] as Result));
    } catch (error) {
      for (const { reject } of batch) reject(error);
    }
  };
  return (item) =>
    new Promise((resolve, reject) => {
      queue.push({ item, resolve, reject });
      if (state !== 'idle') return;
      // Items of the same tick are sent together.
      state = 'scheduled';
      queueMicrotask(() => void flush());
    });
}

export function chunk<T>(items: readonly T[], size: number): (readonly [T, ...T[]])[] {
  const chunks: (readonly [T, ...T[]])[] = [];
  for (let at = 0; at < items.length; at += size) chunks.push(items.slice(at, at + size) as [T, ...T[]]);
  return chunks;
}

export async function* batches<T>(items: Iterable<T> | AsyncIterable<T>, size: number): AsyncGenerator<readonly T[]> {
  let batch: T[] = [];
  for await (const item of items) {
    batch.push(item);
    if (batch.length < size) continue;
    yield batch;
    batch = [];
  }
  if (batch.length > 0) yield batch;
}
