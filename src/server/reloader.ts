import { type InvalidConfig, type LoadedConfig, logDeprecations } from '../config/load.ts';
import type { Settings } from '../config/schema.ts';
import { watchFiles } from '../lib/watch-files.ts';
import { errorFields, type Logger } from '../observability/logger.ts';
import { listAdminTlsFiles } from './admin-endpoint.ts';
import type { Gateway } from './gateway.ts';
import { StartError } from './start-error.ts';

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
      else log.error('reload_failed', { cause, ...errorFields(error) });
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
  return { reload, close: () => watcher.close() };
}

function listWatchedFiles(settings: Settings, configFiles: readonly string[]): string[] {
  const { listen, certificates, keys, upstreams } = settings;
  return [
    ...configFiles,
    ...(listen.tls === undefined ? [] : [listen.tls.certificate, listen.tls.key]),
    ...listAdminTlsFiles(settings),
    ...certificates.issuers.map(({ file }) => file),
    ...certificates.crls,
    keys.file,
    ...Object.values(upstreams).flatMap(({ ca, certificate, key }) =>
      [ca, certificate, key].filter((file) => file !== undefined),
    ),
  ];
}
