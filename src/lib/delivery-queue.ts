interface DeliveryQueueOptions<T> {
  /** Resolves when the items are delivered. Must time out by itself. */
  readonly deliver: (items: readonly T[]) => Promise<void>;
  readonly maxPending: number;
  readonly batchSize: number;
  /** How long to wait for more items before a delivery begins. */
  readonly lingerMs?: number;
  /** After this many failures a batch is dropped; if omitted, never. */
  readonly maxAttempts?: number;
  /** Items that are dropped first when the queue is full. */
  readonly isLowPriority?: (item: T) => boolean;
  readonly onLost?: (count: number) => void;
  readonly onFailure?: (error: unknown, failures: number) => void;
  readonly onRecovered?: (failures: number) => void;
  readonly backoffMs?: { readonly initial: number; readonly max: number };
}

interface Entry<T> {
  readonly sequence: number;
  readonly item: T;
}

/** A bounded queue for a receiver that may be slow or unreachable: delivers in order and in batches, and retries with backoff. */
export class DeliveryQueue<T> {
  readonly #options: DeliveryQueueOptions<T>;
  readonly #highPriority: Entry<T>[] = [];
  readonly #lowPriority: Entry<T>[] = [];
  #nextSequence = 0;
  #inFlight: readonly T[] = [];
  #failures = 0;
  #isRunning = false;
  #isClosing = false;
  #wake = (): void => {};
  #idle = Promise.resolve();

  constructor(options: DeliveryQueueOptions<T>) {
    this.#options = options;
  }

  /** Never waits. */
  enqueue(item: T): void {
    const { maxPending, isLowPriority, onLost } = this.#options;
    const queue = isLowPriority?.(item) === true ? this.#lowPriority : this.#highPriority;
    queue.push({ sequence: this.#nextSequence, item });
    this.#nextSequence += 1;
    if (this.pending() > maxPending && (this.#lowPriority.shift() ?? this.#highPriority.shift()) !== undefined)
      onLost?.(1);
    if (this.#isRunning) return;
    this.#isRunning = true;
    this.#idle = this.#run();
  }

  /** Including items that are being delivered. */
  pending(): number {
    return this.#highPriority.length + this.#lowPriority.length + this.#inFlight.length;
  }

  /** The last attempt failed, or the queue is full. Low-priority items never block: others replace them. */
  isBlocked(): boolean {
    return this.#failures > 0 || this.#highPriority.length + this.#inFlight.length >= this.#options.maxPending;
  }

  /** Delivers the rest within this time. Returns how many items were not delivered. */
  async close(timeoutMs: number): Promise<number> {
    this.#isClosing = true;
    this.#wake();
    const timedOut = Promise.withResolvers<void>();
    const timer = setTimeout(timedOut.resolve, timeoutMs);
    await Promise.race([this.#idle, timedOut.promise]);
    clearTimeout(timer);
    return this.pending();
  }

  async #run(): Promise<void> {
    const { lingerMs = 0 } = this.#options;
    if (lingerMs > 0 && !this.#isClosing) await this.#sleep(lingerMs);
    for (;;) {
      if (this.#inFlight.length === 0) this.#inFlight = this.#takeBatch();
      if (this.#inFlight.length === 0) break;
      if (await this.#attempt()) continue;
      if (this.#isClosing) break;
      await this.#sleep(this.#getBackoff());
    }
    this.#isRunning = false;
  }

  #takeBatch(): T[] {
    const items: T[] = [];
    while (items.length < this.#options.batchSize) {
      const [high] = this.#highPriority;
      const [low] = this.#lowPriority;
      const isLowNext = high === undefined || (low !== undefined && low.sequence < high.sequence);
      const entry = (isLowNext ? this.#lowPriority : this.#highPriority).shift();
      if (entry === undefined) break;
      items.push(entry.item);
    }
    return items;
  }

  async #attempt(): Promise<boolean> {
    const { deliver, maxAttempts = Number.POSITIVE_INFINITY } = this.#options;
    try {
      await deliver(this.#inFlight);
      const failures = this.#failures;
      this.#inFlight = [];
      this.#failures = 0;
      if (failures > 0) this.#options.onRecovered?.(failures);
    } catch (error) {
      this.#failures += 1;
      this.#options.onFailure?.(error, this.#failures);
      if (this.#failures < maxAttempts) return false;
      this.#options.onLost?.(this.#inFlight.length);
      this.#inFlight = [];
      this.#failures = 0;
    }
    return true;
  }

  /** Half of the delay is random, so that processes that lost the same receiver do not retry at the same time. */
  #getBackoff(): number {
    const { initial, max } = this.#options.backoffMs ?? { initial: 500, max: 30_000 };
    return Math.min(max, initial * 2 ** Math.min(this.#failures - 1, 30)) * (0.5 + Math.random() / 2);
  }

  #sleep(ms: number): Promise<void> {
    return new Promise((resolve) => {
      // A backoff must not keep the process from exiting.
      const timer = setTimeout(resolve, ms).unref();
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}
