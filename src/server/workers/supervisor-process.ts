import cluster from 'node:cluster';
import { listReloadedFiles } from '../../config/file-settings.ts';
import { findRestartChanges, isSupervisorSetting } from '../../config/restart-settings.ts';
import type { Settings } from '../../config/schema.ts';
import { StartError } from '../../lib/start-error.ts';
import { FileWatch } from '../../lib/watch-files.ts';
import { mergeStatuses } from '../../observability/gateway-status.ts';
import { errorFields, type Logger } from '../../observability/logger.ts';
import type { Metrics } from '../../observability/metrics.ts';
import { collectProcessMetrics } from '../../observability/process-metrics.ts';
import { createRecentEvents, mergeRecentEvents, type RecentEvents } from '../../observability/recent-events.ts';
import { openSealingKeys } from '../../tokens/keyring.ts';
import type { KeyedRecordAuthenticator } from '../../tokens/record-mac.ts';
import { AdminEndpoint, createAdminApi, createCheck, ensureAdminTokens } from '../admin-endpoint.ts';
import { type DrainOptions, logRestartNeeded } from '../gateway.ts';
import { ensureKeyFile, readKeyFile } from '../keys.ts';
import { openReloadableAuditLog, type ReloadableAuditLog } from '../observability.ts';
import { openStore } from '../open-store.ts';
import { createReportingAuthenticator } from '../record-authentication.ts';
import { WorkerPool } from './worker-pool.ts';

interface SupervisorOptions {
  readonly settings: Settings;
  /** The configuration file as read at start, for a worker that finds it invalid. */
  readonly text: string | undefined;
  readonly workers: number;
  /** The configuration with this content of its file. Undefined: the one on disk, or the last valid one. */
  readonly getSettings: (text?: string) => Settings;
  readonly log: Logger;
  /** Metrics of the supervisor. Workers send their own. */
  readonly metrics: Metrics;
}

const now = (): number => Date.now() / 1_000;

/** Holds the store's lock, serves the admin listener and supervises the workers, which serve the requests. */
export async function openSupervisor(options: SupervisorOptions) {
  const { settings, metrics } = options;
  await using resources = new AsyncDisposableStack();
  const recentEvents = settings.admin.console.enabled ? createRecentEvents(now) : undefined;
  const audit = await openReloadableAuditLog(settings, options.log, metrics, recentEvents);
  // Closed last: it records admin actions until then.
  resources.defer(() => audit.close());
  resources.defer(collectProcessMetrics(metrics));
  const { log } = audit;
  const authenticator = createReportingAuthenticator(log, metrics, now);
  // The configuration that the workers have applied; the one on disk may have been rejected.
  const getSettings = (): Settings => options.getSettings(pool.lastGoodConfig);
  const pool = createPool(options, getSettings, audit, authenticator);
  const admin = createAdminEndpoint(options, log, pool, recentEvents);
  resources.defer(() => admin.close());
  const store = await openStore({
    settings,
    log,
    now,
    authenticator,
    metrics,
    role: 'owner',
    onUnreachable: (fault) => admin.openWithoutStore(fault),
  });
  resources.defer(() => store.close());
  admin.store = store;
  admin.getSettings = getSettings;
  admin.getStatus = async () => mergeStatuses(await pool.findStatuses());
  // An integration can be revoked as soon as it is on disk, before all workers have loaded it.
  admin.api = createAdminApi({ store, log, now }, () => options.getSettings());
  await ensureKeyFile(settings, store);
  loadKeys(authenticator, settings);
  ensureAdminTokens(settings, log);
  await admin.open();
  // Workers watch the other files.
  const adminFiles = listReloadedFiles(settings).filter(({ path: [section] }) => section === 'admin');
  const watcher = new FileWatch(
    adminFiles.map(({ file }) => file),
    () => admin.reloadTls(),
    { onError: (error) => log.warn('watch_failed', errorFields(error)) },
  );
  resources.defer(() => watcher.close());
  const port = await startPool(pool);
  const owned = resources.move();
  return {
    port,
    adminPort: admin.port,
    pids: () => pool.pids(),
    reload(): void {
      audit.reopen();
      pool.broadcast({ kind: 'reload' });
    },
    /** Replaces the workers one by one, each by a successor that is ready. */
    restartWorkers: (cause: string) => pool.replaceAll(cause),
    /** Reports "not ready"; the workers serve, but ask clients to use other connections. */
    announceShutdown(): void {
      admin.isDraining = true;
      pool.announceShutdown();
    },
    /** Drains the workers, then closes the store. False: requests were cut off. */
    async drain(times: DrainOptions = {}): Promise<boolean> {
      const { shutdown } = getSettings();
      const { preStop = shutdown.preStop, drain = shutdown.drain } = times;
      admin.isDraining = true;
      const isClean = await pool.drain({ preStop, drain });
      // Before the store that it reads.
      await admin.close();
      await owned.disposeAsync();
      return isClean;
    },
  };
}

const loadKeys = (authenticator: KeyedRecordAuthenticator, settings: Settings): void =>
  authenticator.setKeyring(openSealingKeys(readKeyFile(settings)));

function createPool(
  { settings, workers: count, text }: SupervisorOptions,
  getSettings: () => Settings,
  audit: ReloadableAuditLog,
  authenticator: KeyedRecordAuthenticator,
): WorkerPool {
  const { log } = audit;
  return new WorkerPool({
    fork: () => cluster.fork(),
    count,
    text,
    getShutdown: () => getSettings().shutdown,
    log,
    onReloaded() {
      const current = getSettings();
      audit.reload(current);
      try {
        // The admin API of this process reads and writes records too.
        loadKeys(authenticator, current);
      } catch (error) {
        log.error('keys_reload_failed', { ...errorFields(error), note: 'the old keys stay in use' });
      }
      logRestartNeeded(log, findRestartChanges(settings, current).filter(isSupervisorSetting));
    },
  });
}

const createAdminEndpoint = (
  { settings, workers: count, metrics }: SupervisorOptions,
  log: Logger,
  pool: WorkerPool,
  recentEvents: RecentEvents | undefined,
): AdminEndpoint =>
  new AdminEndpoint({
    settings,
    log,
    checks: [
      createCheck('workers', () => pool.countReady() < count && `${pool.countReady()} of ${count} are ready`),
      createCheck('event loop', () => pool.isOverloaded() && 'is overloaded'),
    ],
    getSnapshots: async () => [await metrics.snapshot(), ...(await pool.collectSnapshots())],
    getRecentSnapshots: async () => [await metrics.snapshot(), ...pool.getLastSnapshots()],
    // The supervisor has audit events of its own: those of operators.
    findRecentEvents: async (query) =>
      mergeRecentEvents(
        [...(await pool.findRecentEvents(query)), ...(recentEvents === undefined ? [] : [recentEvents.find(query)])],
        query.limit,
      ),
    // A change of the others replaces the workers.
    findPendingRestart: (current) => findRestartChanges(settings, current).filter(isSupervisorSetting),
    now,
  });

async function startPool(pool: WorkerPool): Promise<number> {
  try {
    return await pool.start();
  } catch (error) {
    pool.kill();
    throw error instanceof StartError ? error : new StartError([(error as Error).message]);
  }
}
