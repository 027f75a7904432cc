import cluster, { type Worker } from 'node:cluster';
import type { Settings } from '../config/schema.ts';
import { errorFields, type Logger } from '../observability/logger.ts';
import type { AdminListener } from '../ops/admin.ts';
import type { EmbeddedStore } from '../stores/embedded.ts';
import { ensureAdminToken } from './admin-token.ts';
import { openAdminFor, openStore } from './gateway.ts';
import { ensureKeyFile } from './keys.ts';
import { StartError } from './start-error.ts';

/** What workers tell their supervisor, and it tells them. */
export type FromWorker =
  | { readonly kind: 'ready'; readonly port: number }
  | { readonly kind: 'cannot_start'; readonly problems: readonly string[] };
export type ToWorker = { readonly kind: 'reload' } | { readonly kind: 'drain' };

export interface Supervisor {
  readonly port: number;
  readonly adminPort: number;
  readonly pids: () => readonly number[];
  reload(): void;
  /** Ends the workers gently, then the store. */
  drain(): Promise<void>;
}

export interface SupervisorOptions {
  readonly settings: Settings;
  readonly workers: number;
  readonly log: Logger;
  /** Ends the program: a worker that cannot be started again. */
  readonly onHopeless: (problems: readonly string[]) => void;
}

const RESTART_DELAY_MS = 1_000;
const systemClock = (): number => Date.now() / 1_000;

/** Holds the store's lock, answers the probes, and keeps the workers running. Serves nobody itself. */
export async function openSupervisor(options: SupervisorOptions): Promise<Supervisor> {
  const { settings, workers, log } = options;
  const store = await openStore(settings, log, systemClock, 'owner');
  try {
    await ensureKeyFile(settings, store);
    ensureAdminToken(settings.admin.tokenFile);
    return await openWithStore(options, store, workers);
  } catch (error) {
    await store.close();
    throw error;
  }
}

async function openWithStore(
  { settings, log, onHopeless }: SupervisorOptions,
  store: EmbeddedStore,
  count: number,
): Promise<Supervisor> {
  const ready = new Map<Worker, number>();
  const first = Promise.withResolvers<number>();
  let draining = false;
  let started = false;
  /** How many may end before all are ready: by accident, not by a configuration only the supervisor could read. */
  let early = count;

  const start = (): void => {
    const worker = cluster.fork();
    worker.on('message', (message: FromWorker) => {
      if (message.kind === 'ready') {
        ready.set(worker, message.port);
        if (ready.size >= count) first.resolve(message.port);
        return;
      }
      if (started) onHopeless(message.problems);
      else first.reject(new StartError(message.problems));
    });
    // Without a listener a message to one that has just died would end the supervisor, and all others with it.
    worker.on('error', (error) => log.warn('worker_unreachable', errorFields(error)));
    worker.once('exit', (code, signal) => {
      ready.delete(worker);
      if (draining) return;
      log.error('worker_ended', { pid: worker.process.pid, code, signal });
      if (!started && (early -= 1) < 0)
        first.reject(new StartError(['listen.workers: the workers end before they are ready; see the log']));
      setTimeout(() => !draining && start(), RESTART_DELAY_MS);
    });
  };

  const admin: AdminListener = await openAdminFor(settings, store, () => draining, [
    {
      name: 'workers',
      check: async () => {
        if (ready.size < count) throw new Error(`${ready.size} of ${count} are ready`);
      },
    },
  ]);
  const everyWorker = (): Worker[] =>
    Object.values(cluster.workers ?? {}).filter((worker) => worker !== undefined);
  const stop = async (): Promise<void> => {
    draining = true;
    const { preStop, drain } = settings.shutdown;
    const ends = everyWorker().map(
      (worker) => new Promise<void>((resolve) => worker.once('exit', () => resolve())),
    );
    for (const worker of everyWorker()) worker.send({ kind: 'drain' } satisfies ToWorker);
    const cut = setTimeout(
      () => everyWorker().forEach((worker) => worker.process.kill('SIGKILL')),
      (preStop + drain + 5) * 1_000,
    );
    await Promise.all(ends);
    clearTimeout(cut);
    await admin.close();
    await store.close();
  };

  for (let index = 0; index < count; index += 1) start();
  let port: number;
  try {
    port = await first.promise;
  } catch (error) {
    draining = true;
    for (const worker of everyWorker()) worker.process.kill('SIGKILL');
    await admin.close();
    throw error;
  }
  started = true;
  return {
    port,
    adminPort: admin.port,
    pids: () => everyWorker().flatMap(({ process: { pid } }) => (pid === undefined ? [] : [pid])),
    reload: () => everyWorker().forEach((worker) => worker.send({ kind: 'reload' } satisfies ToWorker)),
    drain: stop,
  };
}
