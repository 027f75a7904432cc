import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { spawnChild } from '../../support/child-process.ts';
import { anonymousMemory } from '../../support/memory.ts';
import { MEMORY_ENVIRONMENT } from '../../support/memory-environment.ts';
import { createServeFolder, isAlive, type ServeFolder, startServe, until } from '../../support/serve-process.ts';
import { limitMemory } from './memory-limit.ts';
import { openObserver } from './observer.ts';

const ATTACKER = join(import.meta.dirname, 'attacker.ts');
const MIB = 1_048_576;
/** The default of the chart for a sidecar. */
const MEMORY = 256 * MIB;
const LARGE = Buffer.alloc(60_000, 'x');

export interface ShareFigures {
  readonly isAlive: boolean;
  /** Anonymous memory before the attack, and its peak after that. */
  readonly memoryBefore: number;
  readonly memoryPeak: number;
  /** Requests from another network, by status, and their latency. */
  readonly statuses: Readonly<Record<string, number>>;
  readonly milliseconds: { readonly p50: number; readonly p99: number; readonly max: number };
}

/** A gateway with the memory of a sidecar, attacked from one network, and used from another one. */
export async function measureShares(
  shapes: readonly string[],
  connections: number,
  seconds: number,
): Promise<ShareFigures> {
  const limit = limitMemory(MEMORY);
  const folder = await createServeFolder(
    (settings) => ({
      ...settings,
      routes: [{ path: '/public/**', public: true }, ...(settings.routes ?? [])],
    }),
    (request, response) => {
      request.resume().on('end', () => response.end(request.url === '/public/large' ? LARGE : 'ok'));
    },
  );
  let pid: number | undefined;
  try {
    const server = await startServe(folder, { wrapper: limit.wrapper, env: MEMORY_ENVIRONMENT });
    pid = server.pid;
    const others = observe(folder, server.port);
    await others.warmUp();
    const memoryBefore = anonymousMemory(server.pid);
    const attacker = spawnChild([process.execPath, ATTACKER, String(server.port), String(connections), ...shapes], {
      outputLimit: 10_000,
    });
    let memoryPeak = memoryBefore;
    const end = performance.now() + seconds * 1_000;
    others.start();
    while (performance.now() < end && isAlive(server.pid)) {
      memoryPeak = Math.max(memoryPeak, readMemory(server.pid));
      await pause(50);
    }
    const isServerAlive = isAlive(server.pid);
    const { statuses, milliseconds } = await others.stop();
    await attacker.stop('SIGKILL');
    return { isAlive: isServerAlive, memoryBefore, memoryPeak, statuses, milliseconds };
  } finally {
    // The command that starts it would leave it running.
    if (pid !== undefined && isAlive(pid)) process.kill(pid, 'SIGKILL');
    await until('the gateway has ended', () => pid === undefined || !isAlive(pid));
    await folder.remove();
    limit.remove();
  }
}

function readMemory(pid: number): number {
  try {
    return anonymousMemory(pid);
  } catch {
    return 0;
  }
}

/** A client in another network: one request after another, every tenth on a new connection. */
function observe(folder: ServeFolder, port: number) {
  const observer = openObserver(folder, port, '/public/small');
  const stopped = new AbortController();
  let running: Promise<void> | undefined;
  const run = async (): Promise<void> => {
    while (!stopped.signal.aborted) {
      await observer.request();
      await pause(5);
    }
  };
  return {
    async warmUp() {
      for (let index = 0; index < 200; index += 1) await observer.request(false);
    },
    start() {
      running = run();
    },
    async stop() {
      stopped.abort();
      await Promise.race([running, pause(10_000)]);
      observer.close();
      const { statuses, ...milliseconds } = observer.getFigures();
      return { statuses, milliseconds };
    },
  };
}

if (import.meta.main) {
  const [connections = '400', seconds = '10', ...shapes] = process.argv.slice(2);
  const figures = await measureShares(shapes, Number(connections), Number(seconds));
  const { memoryBefore, memoryPeak, ...rest } = figures;
  console.log(
    shapes.join(' '),
    JSON.stringify({ before: Math.round(memoryBefore / MIB), peak: Math.round(memoryPeak / MIB), ...rest }),
  );
}
