import cluster from 'node:cluster';
import { longestGrant } from '../config/lifetimes.ts';
import { isOfSupervisor, needsRestart } from '../config/read-at-start.ts';
import type { Settings } from '../config/schema.ts';
import { watchFiles } from '../config/watch.ts';
import { errorFields, type Logger } from '../observability/logger.ts';
import type { Metrics } from '../observability/metrics.ts';
import { watchProcess } from '../observability/process-metrics.ts';
import type { AdminListener } from '../ops/admin.ts';
import { openKeyring } from '../tokens/keyring.ts';
import { ensureAdminToken } from './admin-token.ts';
import { lookupsOf } from './administration-lookups.ts';
import { adminFiles, keepsUp, openAdminFor, renewAdminTls } from './doors.ts';
import { type DrainTerms, logRestartNeeded } from './gateway.ts';
import { ensureKeyFile, readKeys } from './keys.ts';
import { type FollowingAudit, openFollowingAudit } from './observe.ts';
import { type OpenedStore, openStore } from './open-store.ts';
import { acceptedGrants, recordAuthentication, revocationsRestored } from './record-authentication.ts';
import { rewriteGrants } from './rewrite-grants.ts';
import { StartError } from './start-error.ts';
import { workerEnvironment } from './worker-memory.ts';
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
  /** The configuration as workers have it by now: they follow its file by themselves. Left out: that of the start. */
  readonly latest?: () => Settings;
  readonly log: Logger;
  /** Of this process; workers tell theirs. */
  readonly metrics: Metrics;
}

const systemClock = (): number => Date.now() / 1_000;
/** Beyond the time workers are given to end: then they are ended. */
const MARGIN_SECONDS = 5;

/** Holds the store's lock, answers the probes, and keeps the workers running. Serves nobody itself. */
export async function openSupervisor(options: SupervisorOptions): Promise<Supervisor> {
  const { settings, workers: count, metrics, latest = () => settings } = options;
  const audit = await openFollowingAudit(settings, options.log, metrics);
  const { log } = audit;
  const unwatch = watchProcess(metrics);
  let draining = false;
  let opened: OpenedStore | undefined;
  let crew: Crew | undefined;
  const probes = (): Promise<AdminListener> =>
    openAdminFor(
      settings,
      () => opened,
      () => draining,
      [
        {
          name: 'workers',
          check: async () => {
            const ready = crew?.ready() ?? 0;
            if (ready < count) throw new Error(`${ready} of ${count} are ready`);
          },
        },
        keepsUp(() => crew?.isPressed() === true),
      ],
      async () => [await metrics.snapshot(), ...((await crew?.figures()) ?? [])],
      () =>
        opened && {
          store: opened,
          log,
          now: systemClock,
          longestGrant: () => longestGrant(latest()),
          ...lookupsOf(latest),
        },
      log,
    );
  const authenticator = recordAuthentication({ settings, log, metrics, now: systemClock });
  const useKeys = (wanted: Settings): void => authenticator.use(openKeyring(readKeys(wanted)));
  /** Workers have taken new settings or keys; the administration here reads and writes records too. */
  const followKeys = (): void => {
    try {
      useKeys(latest());
    } catch (error) {
      log.error('keys_not_changed', { ...errorFields(error), note: 'the old keys stay in use' });
    }
  };
  let admin: AdminListener | undefined;
  let adminWatch: ReturnType<typeof watchFiles> | undefined;
  let rewriting: ReturnType<typeof rewriteGrants> | undefined;
  try {
    opened = await openStore({
      settings,
      log,
      now: systemClock,
      authenticator,
      onRestored: revocationsRestored({ log, metrics }),
      role: 'owner',
      onWaiting: async () => {
        admin = await probes();
      },
    });
    await ensureKeyFile(settings, opened);
    useKeys(settings);
    ensureAdminToken(settings.admin.tokenFile, log);
    const { text } = options;
    crew = manCrew({
      fork: () => cluster.fork(workerEnvironment(process.env)),
      count,
      text,
      shutdown: settings.shutdown,
      log,
      onReloaded() {
        audit.follow(latest());
        followKeys();
        logRestartNeeded(log, needsRestart(settings, latest()).filter(isOfSupervisor));
      },
    });
    admin ??= await probes();
    // Workers follow the other files; this listener is ours.
    adminWatch = watchFiles(adminFiles(settings), () => renewAdminTls(admin, settings, log), {
      onError: (error) => log.warn('watch_failed', errorFields(error)),
    });
    const supervisor = await openWithStore(options, opened, crew, admin, audit, async () => {
      draining = true;
      adminWatch?.close();
      await rewriting?.stop();
    });
    if (settings.store.unauthenticatedRecords === 'accept')
      rewriting = rewriteGrants({ store: opened, log, accepted: acceptedGrants(metrics) });
    return supervisor;
  } catch (error) {
    unwatch();
    adminWatch?.close();
    draining = true;
    await admin?.close();
    await opened?.close();
    await audit.close();
    throw error;
  }
}

async function openWithStore(
  { settings }: SupervisorOptions,
  store: OpenedStore,
  crew: Crew,
  admin: AdminListener,
  audit: FollowingAudit,
  beginDraining: () => Promise<void>,
): Promise<Supervisor> {
  let port: number;
  try {
    port = await crew.start();
  } catch (error) {
    crew.kill();
    throw error instanceof StartError ? error : new StartError([(error as Error).message]);
  }
  return {
    port,
    adminPort: admin.port,
    pids: () => crew.pids(),
    reload() {
      audit.reopen();
      crew.tellAll({ kind: 'reload' });
    },
    restartWorkers: (cause) => crew.replaceAll(cause),
    async drain(terms = {}) {
      await beginDraining();
      const { preStop = settings.shutdown.preStop, drain = settings.shutdown.drain } = terms;
      const gentle = await crew.end({ preStop, drain }, preStop + drain + MARGIN_SECONDS);
      await admin.close();
      await store.close();
      // Last: what was done in the administration until now is to arrive.
      await audit.close();
      return gentle;
    },
  };
}
