/**
 * Lets the event loop poll its sockets this many times. Between parts of one process that talk over loopback this is a clock
 * that a busy machine cannot distort: a byte that was written is readable at the next poll.
 */
export async function eventLoopTurns(count: number): Promise<void> {
  for (let attempt = 0; attempt < count; attempt += 1) await new Promise(setImmediate);
}

/** Waits until a figure has not changed for this many polls: nothing in this process moves it any more. */
export async function waitUntilStable(readValue: () => number, polls = 100): Promise<void> {
  for (let still = 0, last = readValue(); still < polls; still += 1) {
    await eventLoopTurns(1);
    const now = readValue();
    if (now !== last) still = 0;
    last = now;
  }
}
