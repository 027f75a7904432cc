import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

/*
 * V8 collects garbage when memory is allocated, so a process that has no requests keeps what start-up or a past load left
 * behind. These collections give it back. Measured in docs/decisions/0049-one-file.md.
 */

/** What was needed for start-up is garbage by now, and no code is warm yet that the collection could discard. */
const AFTER_START_MS = 1_000;
const CHECK_INTERVAL_MS = 5_000;
/** The process is idle below this part of one core. Health checks, and a few requests per second, need less. */
const IDLE_CPU_FRACTION = 0.02;
/** How long the process must be idle: collections make the next requests as slow as those of a new process. */
const IDLE_MS = 60_000;
/** Each young collection halves the new space; some of them are needed until all of its pages are returned. */
const YOUNG_COLLECTIONS = 25;
const YOUNG_INTERVAL_MS = 1_000;

/** Starts to return unused memory to the system: once after start-up, and after each period of load. */
export function returnIdleMemory(collect: (options: NodeJS.GCOptions) => unknown = exposeCollector()): Disposable {
  let timer = setTimeout(() => {
    collect({ type: 'major', flavor: 'last-resort', execution: 'sync' });
    watch(false);
  }, AFTER_START_MS).unref();

  function watch(hasServed: boolean, idleMs = 0): void {
    const before = process.cpuUsage();
    timer = setTimeout(() => {
      const { user, system } = process.cpuUsage(before);
      const isIdle = user + system < CHECK_INTERVAL_MS * 1_000 * IDLE_CPU_FRACTION;
      if (!isIdle) watch(true);
      else if (hasServed && idleMs + CHECK_INTERVAL_MS >= IDLE_MS) collectYoung(YOUNG_COLLECTIONS);
      else watch(hasServed, idleMs + CHECK_INTERVAL_MS);
    }, CHECK_INTERVAL_MS).unref();
  }

  function collectYoung(remaining: number): void {
    collect({ type: 'minor', execution: 'sync' });
    if (remaining === 0) watch(false);
    else timer = setTimeout(() => collectYoung(remaining - 1), YOUNG_INTERVAL_MS).unref();
  }

  return { [Symbol.dispose]: () => clearTimeout(timer) };
}

/** `gc` without the command-line option, which would make it a global of the program. */
function exposeCollector(): NodeJS.GCFunction {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as NodeJS.GCFunction;
  setFlagsFromString('--no-expose-gc');
  return collect;
}
