import cluster from 'node:cluster';
import type { Settings } from '../config/schema.ts';
import type { Logger } from '../observability/logger.ts';
import type { AdminListener } from '../ops/admin.ts';
import type { EmbeddedStore } from '../stores/embedded.ts';
import { ensureAdminToken } from './admin-token.ts';
import { type DrainTerms, keepsUp, openAdminFor, openStore } from './gateway.ts';
import { ensureKeyFile } from './keys.ts';
import { StartError } from './start-error.ts';
import { type Crew, manCrew } from './workers.ts';

export interface Supervisor {
  readonly port: number;
  readonly adminPort: number;
  readonly pids: () => readonly number[];
  reload(): void;
  /** Replaces the workers one by one, each by one that serves already. */
  restartWorkers(cause: string): Promise<void>;
  /** Ends the workers gently, then the store. True: all ended by themselves. */
  drain(terms?: DrainTerms): Promise<boolean>;
}

export interface SupervisorOptions {
  readonly settings: Settings;
  /** The configuration file as it was read: for a worker that finds it broken. */
  readonly text: string | undefined;
  readonly workers: number;
  readonly log: Logger;
}

const systemClock = (): number => Date.now() / 1_000;
/** Beyond the time workers are given to end: then they are ended. */
const MARGIN_SECONDS = 5;

/** Holds the store's lock, answers the probes, and keeps the workers running. Serves nobody itself. */
export async function openSupervisor(options: SupervisorOptions): Promise<Supervisor> {
  const { settings, log } = options;
  const store = await openStore(settings, log, systemClock, 'owner');
  try {
    await ensureKeyFile(settings, store);
    ensureAdminToken(settings.admin.tokenFile);
    return await openWithStore(options, store);
  } catch (error) {
    await store.close();
    throw error;
  }
}

async function openWithStore(
  { settings, text, log, workers: count }: SupervisorOptions,
  store: EmbeddedStore,
): Promise<Supervisor> {
  let draining = false;
  const crew: Crew = manCrew({ fork: () => cluster.fork(), count, text, shutdown: settings.shutdown, log });
  const admin: AdminListener = await openAdminFor(settings, store, () => draining, [
    {
      name: 'workers',
      check: async () => {
        if (crew.ready() < count) throw new Error(`${crew.ready()} of ${count} are ready`);
      },
    },
    keepsUp(() => crew.isPressed()),
  ]);
  let port: number;
  try {
    port = await crew.start();
  } catch (error) {
    draining = true;
    crew.kill();
    await admin.close();
    throw error instanceof StartError ? error : new StartError([(error as Error).message]);
  }
  return {
    port,
    adminPort: admin.port,
    pids: () => crew.pids(),
    reload: () => crew.tellAll({ kind: 'reload' }),
    restartWorkers: (cause) => crew.replaceAll(cause),
    async drain(terms = {}) {
      draining = true;
      const { preStop = settings.shutdown.preStop, drain = settings.shutdown.drain } = terms;
      const gentle = await crew.end({ preStop, drain }, preStop + drain + MARGIN_SECONDS);
      await admin.close();
      await store.close();
      return gentle;
    },
  };
}
