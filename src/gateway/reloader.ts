import type { Loaded, Problems } from '../config/load.ts';
import type { Settings } from '../config/schema.ts';
import { watchFiles } from '../config/watch.ts';
import { errorFields, type Logger } from '../observability/logger.ts';
import { adminFiles } from './doors.ts';
import type { Gateway } from './gateway.ts';
import { StartError } from './start-error.ts';

export interface ReloaderOptions {
  readonly load: () => Loaded | Problems;
  /** Opened meanwhile: a change during the start is not missed. */
  readonly gateway: Promise<Pick<Gateway, 'reload'>>;
  /** What the gateway is being started with, and where it was read from. */
  readonly settings: Settings;
  readonly files: readonly string[];
  readonly log: Logger;
  /** It could not be taken. */
  readonly onRefused?: () => void;
  /** Another configuration is in force; these of its settings count only after a restart. */
  readonly onGood?: (loaded: Loaded, needRestart: readonly string[]) => void;
}

export interface Reloader {
  /** Reads everything again and moves to it; keeps the last good when it cannot be used. */
  reload(cause: string): Promise<void>;
  close(): void;
}

/** Follows the configuration and every file it names. One reload at a time; asked for again meanwhile, one more follows. */
export function createReloader({
  load,
  gateway,
  settings,
  files,
  log,
  onGood,
  onRefused,
}: ReloaderOptions): Reloader {
  let running: Promise<void> | undefined;
  let again = false;

  const tryToLoad = (cause: string): ReturnType<typeof load> | undefined => {
    try {
      return load();
    } catch (error) {
      // A fault of ours in reading a configuration must not end a process that serves.
      onRefused?.();
      log.error('reload_failed', { cause, ...errorFields(error) });
      return undefined;
    }
  };

  const once = async (cause: string): Promise<void> => {
    const loaded = tryToLoad(cause);
    if (loaded === undefined) return;
    if (!loaded.ok) {
      onRefused?.();
      const problems = loaded.problems.map(({ path, message }) => `${path}: ${message}`);
      log.error('reload_refused', { cause, problems, note: 'the last good configuration stays in force' });
      return;
    }
    // Also when it cannot be used: the file it lacks may be the next to change.
    watch.update(watchedFiles(loaded.settings, loaded.files));
    try {
      const needRestart = await (await gateway).reload(loaded.settings);
      log.info('reloaded', { cause, ...(needRestart.length > 0 && { restart_needed: needRestart }) });
      onGood?.(loaded, needRestart);
    } catch (error) {
      onRefused?.();
      if (error instanceof StartError)
        log.error('reload_refused', {
          cause,
          problems: error.problems,
          note: 'the last good configuration stays in force',
        });
      else log.error('reload_failed', { cause, ...errorFields(error) });
    }
  };

  const reload = (cause: string): Promise<void> => {
    if (running !== undefined) {
      again = true;
      return running;
    }
    running = (async () => {
      try {
        do {
          again = false;
          await once(cause);
        } while (again);
      } finally {
        running = undefined;
      }
    })();
    return running;
  };

  const watch = watchFiles(watchedFiles(settings, files), () => reload('a file changed'), {
    onError: (error) => log.warn('watch_failed', errorFields(error)),
  });
  return { reload, close: () => watch.close() };
}

/** Every file whose change means something: the configuration and what it names. */
function watchedFiles(settings: Settings, configuration: readonly string[]): string[] {
  const { listen, certificates, keys, upstreams } = settings;
  return [
    ...configuration,
    ...(listen.tls === undefined ? [] : [listen.tls.certificate, listen.tls.key]),
    ...adminFiles(settings),
    ...certificates.issuers.map(({ file }) => file),
    ...certificates.crls,
    keys.file,
    ...Object.values(upstreams).flatMap(({ ca, certificate, key }) =>
      [ca, certificate, key].filter((file) => file !== undefined),
    ),
  ];
}
