/**
 * Lets the event loop poll its sockets `count` times. Within one process over loopback, this is a measure of time that
 * does not depend on the load of the machine: a byte that was written is readable at the next poll.
 */
export async function eventLoopTurns(count: number): Promise<void> {
  for (let attempt = 0; attempt < count; attempt += 1) await new Promise(setImmediate);
}

/** Waits until a value has not changed for `polls` polls. */
export async function waitUntilStable(readValue: () => number, polls = 100): Promise<void> {
  for (let still = 0, last = readValue(); still < polls; still += 1) {
    await eventLoopTurns(1);
    const now = readValue();
    if (now !== last) still = 0;
    last = now;
  }
}
