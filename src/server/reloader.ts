import { type InvalidConfig, type LoadedConfig, logDeprecations } from '../config/load.ts';
import type { Settings } from '../config/schema.ts';
import { StartError } from '../lib/start-error.ts';
import { watchFiles } from '../lib/watch-files.ts';
import { errorFields, type Logger } from '../observability/logger.ts';
import { Fault } from '../ports/fault.ts';
import { listAdminTlsFiles } from './admin-endpoint.ts';
import type { Gateway } from './gateway.ts';

export interface ReloaderOptions {
  readonly load: () => LoadedConfig | InvalidConfig;
  /** May still be opening: changes during start-up are not missed. */
  readonly gateway: Promise<Pick<Gateway, 'reload'>>;
  /** The configuration that the gateway starts with. */
  readonly settings: Settings;
  readonly files: readonly string[];
  readonly log: Logger;
  readonly onRejected?: () => void;
  /** `pendingRestart`: changed settings that need a restart. */
  readonly onApplied?: (loaded: LoadedConfig, pendingRestart: readonly string[]) => void;
}

export interface Reloader {
  /** Reads and applies the configuration; if it cannot be used, the last good one stays in force. */
  reload(cause: string): Promise<void>;
  close(): void;
}

/** Seconds until a reload that failed because of a dependency is tried again; the wait doubles up to the maximum. */
const RETRY_SECONDS = { min: 1, max: 30 };

/** Reloads when the configuration or a file that it names changes. Requests during a reload cause one more reload. */
export function createReloader({
  load,
  gateway,
  settings,
  files,
  log,
  onApplied,
  onRejected,
}: ReloaderOptions): Reloader {
  let running: Promise<void> | undefined;
  let isQueued = false;
  let isClosed = false;
  let retryTimer: NodeJS.Timeout | undefined;
  let failures = 0;

  /** The watcher does not report a change twice, so without a retry the change would wait for the next one. */
  const scheduleRetry = (): number => {
    const seconds = Math.min(RETRY_SECONDS.max, RETRY_SECONDS.min * 2 ** failures);
    failures += 1;
    retryTimer = setTimeout(() => void reload('an earlier reload failed'), seconds * 1_000).unref();
    return seconds;
  };

  const tryLoad = (cause: string): ReturnType<typeof load> | undefined => {
    try {
      return load();
    } catch (error) {
      // A bug in the configuration loader must not end the process.
      onRejected?.();
      log.error('reload_failed', { cause, ...errorFields(error) });
      return undefined;
    }
  };

  const reloadOnce = async (cause: string): Promise<void> => {
    clearTimeout(retryTimer);
    const loaded = tryLoad(cause);
    if (loaded === undefined) return;
    if (!loaded.ok) {
      onRejected?.();
      const problems = loaded.problems.map(({ path, message }) => `${path}: ${message}`);
      log.error('reload_rejected', { cause, problems, note: 'the last good configuration stays in force' });
      return;
    }
    // Even if it cannot be used: a missing file may appear next.
    watcher.update(listWatchedFiles(loaded.settings, loaded.files));
    try {
      const pendingRestart = await (await gateway).reload(loaded.settings);
      failures = 0;
      log.info('reloaded', { cause, ...(pendingRestart.length > 0 && { restart_needed: pendingRestart }) });
      logDeprecations(loaded, log);
      onApplied?.(loaded, pendingRestart);
    } catch (error) {
      onRejected?.();
      if (error instanceof StartError)
        log.error('reload_rejected', {
          cause,
          problems: error.problems,
          note: 'the last good configuration stays in force',
        });
      else
        log.error('reload_failed', {
          cause,
          ...errorFields(error),
          ...(error instanceof Fault && !isClosed && { retry_in_seconds: scheduleRetry() }),
        });
    }
  };

  const reload = (cause: string): Promise<void> => {
    if (running !== undefined) {
      isQueued = true;
      return running;
    }
    running = (async () => {
      try {
        do {
          isQueued = false;
          await reloadOnce(cause);
        } while (isQueued);
      } finally {
        running = undefined;
      }
    })();
    return running;
  };

  const watcher = watchFiles(listWatchedFiles(settings, files), () => reload('a file changed'), {
    onError: (error) => log.warn('watch_failed', errorFields(error)),
  });
  return {
    reload,
    close() {
      isClosed = true;
      clearTimeout(retryTimer);
      watcher.close();
    },
  };
}

/** The configuration and the files it names that are read at a reload. */
function listWatchedFiles(settings: Settings, configFiles: readonly string[]): string[] {
  const { listen, certificates, keys, upstreams, pages, signIn, directories } = settings;
  return [
    ...configFiles,
    listen.tls?.certificate,
    listen.tls?.key,
    ...listAdminTlsFiles(settings),
    ...certificates.issuers.map(({ file }) => file),
    ...certificates.crls,
    keys.file,
    ...Object.values(upstreams).flatMap(({ ca, certificate, key }) => [ca, certificate, key]),
    pages.logo,
    ...Object.values(signIn.openid).map(({ ca }) => ca),
    ...Object.values(directories).flatMap(({ ldap, users }) => [
      ldap?.ca,
      ...users.map(({ passwordHashFile }) => passwordHashFile),
    ]),
  ].filter((file) => file !== undefined);
}
