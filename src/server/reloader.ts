import { existsSync } from 'node:fs';
import { formatProblem, type InvalidConfig, type LoadedConfig } from '../config/load.ts';
import type { Settings } from '../config/schema.ts';
import { StartError } from '../lib/start-error.ts';
import { FileWatch } from '../lib/watch-files.ts';
import { errorFields, type Logger } from '../observability/logger.ts';
import { Fault } from '../ports/fault.ts';
import type { DescribeMessages, Gateway } from './gateway.ts';

export interface ReloaderOptions {
  readonly load: () => LoadedConfig | InvalidConfig;
  /** May still be opening: changes during start-up are not missed. */
  readonly gateway: Promise<Pick<Gateway, 'reload' | 'rejectReload'>>;
  /** The configuration that the gateway starts with. */
  readonly settings: Settings;
  /** The files of that configuration that a reload reads. */
  readonly files: readonly string[];
  readonly log: Logger;
  readonly createDescriber?: (loaded: LoadedConfig) => DescribeMessages;
  /** `pendingRestart`: changed settings that need a restart. */
  readonly onApplied?: (loaded: LoadedConfig, pendingRestart: readonly string[]) => void;
}

/** Seconds until a reload that failed because of a dependency is tried again; the wait doubles up to the maximum. */
const RETRY_SECONDS = { min: 1, max: 30 };

const INTERNAL_ERROR = 'internal error: the log event reload_failed has the details';

/** Reloads when the configuration or a file that it names changes. Requests during a reload cause one more reload. */
export class Reloader {
  readonly #options: ReloaderOptions;
  readonly #watcher: FileWatch;
  #watchedFiles: readonly string[];
  #running: Promise<void> | undefined;
  #isQueued = false;
  #isClosed = false;
  #retryTimer: NodeJS.Timeout | undefined;
  #failures = 0;

  constructor(options: ReloaderOptions) {
    this.#options = options;
    const { settings, files, gateway, log } = options;
    this.#watchedFiles = files;
    // The first start creates the key file, which is no change: it is watched once the gateway has read it.
    const isKeyFileMissing = !existsSync(settings.keys.file);
    const watchedFiles = this.#watchedFiles.filter((file) => !isKeyFileMissing || file !== settings.keys.file);
    this.#watcher = new FileWatch(watchedFiles, () => this.reload('a file changed'), {
      onError: (error) => log.warn('watch_failed', errorFields(error)),
    });
    if (isKeyFileMissing)
      gateway.then(
        () => this.#watcher.update(this.#watchedFiles),
        // Reported by the caller, who opened it.
        () => {},
      );
  }

  /** Reads and applies the configuration; if it cannot be used, the last good one stays in force. */
  reload(cause: string): Promise<void> {
    if (this.#running === undefined)
      this.#running = this.#reloadUntilDone(cause).finally(() => {
        this.#running = undefined;
      });
    else this.#isQueued = true;
    return this.#running;
  }

  close(): void {
    this.#isClosed = true;
    clearTimeout(this.#retryTimer);
    this.#watcher.close();
  }

  async #reloadUntilDone(cause: string): Promise<void> {
    do {
      this.#isQueued = false;
      await this.#reloadOnce(cause);
    } while (this.#isQueued);
  }

  async #reloadOnce(cause: string): Promise<void> {
    const { load, gateway, log, createDescriber, onApplied } = this.#options;
    clearTimeout(this.#retryTimer);
    let loaded: ReturnType<typeof load>;
    try {
      loaded = load();
    } catch (error) {
      // A bug in the configuration loader must not end the process.
      log.error('reload_failed', { cause, ...errorFields(error) });
      return this.#markRejected([INTERNAL_ERROR]);
    }
    if (!loaded.ok) return this.#reject(cause, loaded.problems.map(formatProblem));
    // Even if it cannot be used: a missing file may appear next.
    this.#watchedFiles = loaded.files;
    this.#watcher.update(this.#watchedFiles);
    const describe = createDescriber?.(loaded);
    try {
      const pendingRestart = await (await gateway).reload(loaded.settings, describe);
      this.#failures = 0;
      log.info('reloaded', { cause, ...(pendingRestart.length > 0 && { restart_needed: pendingRestart }) });
      onApplied?.(loaded, pendingRestart);
    } catch (error) {
      if (error instanceof StartError) return this.#reject(cause, describe?.(error.problems) ?? error.problems);
      log.error('reload_failed', {
        cause,
        ...errorFields(error),
        ...(error instanceof Fault && !this.#isClosed && { retry_in_seconds: this.#scheduleRetry() }),
      });
      return this.#markRejected([
        error instanceof Fault ? `${error.message}; the reload is tried again` : INTERNAL_ERROR,
      ]);
    }
  }

  #reject(cause: string, problems: readonly string[]): Promise<void> {
    const { log } = this.#options;
    log.error('reload_rejected', { cause, problems, note: 'the last good configuration stays in use' });
    return this.#markRejected(problems);
  }

  #markRejected(problems: readonly string[]): Promise<void> {
    return this.#options.gateway.then(
      (gateway) => gateway.rejectReload(problems),
      // Reported by the caller, who opened it.
      () => {},
    );
  }

  /** The watcher does not report a change twice, so without a retry the change would wait for the next one. */
  #scheduleRetry(): number {
    const seconds = Math.min(RETRY_SECONDS.max, RETRY_SECONDS.min * 2 ** this.#failures);
    this.#failures += 1;
    this.#retryTimer = setTimeout(() => void this.reload('an earlier reload failed'), seconds * 1_000).unref();
    return seconds;
  }
}
