import cluster from 'node:cluster';
import { availableParallelism } from 'node:os';
import { loadSettings } from '../config/load.ts';
import type { Settings } from '../config/schema.ts';
import { openGateway } from '../gateway/gateway.ts';
import { createReloader } from '../gateway/reloader.ts';
import { StartError } from '../gateway/start-error.ts';
import { type FromWorker, openSupervisor, type ToWorker } from '../gateway/supervisor.ts';
import { createLogger, errorFields, type Logger, stdoutSink } from '../observability/logger.ts';
import { CONFIG_OPTIONS, type Command, type Context, EXIT } from './command.ts';
import { selfCheck, thisRuntime } from './self-check.ts';
import { settingsFor } from './settings.ts';

export const command: Command = {
  name: 'serve',
  summary: 'runs the gateway',
  usage: ['gatehouse serve [--config FILE]'],
  options: CONFIG_OPTIONS,
  notes: [
    'SIGHUP reads the configuration and every file it names again; changed files are noticed without it.',
    'SIGTERM drains and ends; a second one ends at once.',
  ],
  async run(context) {
    const problems = selfCheck(thisRuntime(context.env, context.execArgv));
    if (problems.length > 0) return refuse(context, problems);
    try {
      const loaded = await settingsFor(context);
      if (typeof loaded === 'number') return loaded;
      return await serve(context, loaded.settings, loaded.files);
    } finally {
      // A worker that could not start must end, so that the supervisor tries again: the line to it would keep it alive.
      if (cluster.isWorker) process.channel?.unref();
    }
  },
};

/** Runs until a signal ends it; tells the exit code. */
export async function serve(context: Context, settings: Settings, files: readonly string[]): Promise<number> {
  outliveOutput();
  const sink = stdoutSink(process.stdout, (writes) => log.error('log_lines_lost', { writes }));
  const log = createLogger({
    ...settings.log,
    write: (line) => sink.write(line),
    ...(cluster.isWorker && { fields: { worker: process.pid } }),
  });
  const ended = Promise.withResolvers<number>();
  const count = settings.listen.workers === 'auto' ? availableParallelism() : settings.listen.workers;
  // Node opens its debugger on this signal unless somebody listens: keys and tokens would lie open.
  process.on('SIGUSR1', () => log.warn('debugger_refused'));
  endOnSurprise(log, () => sink.flush());
  try {
    if (cluster.isWorker) await runWorker(context, settings, files, log, count, ended.resolve);
    else if (count === 1) await runAlone(context, settings, files, log, ended.resolve);
    else await runSupervisor(settings, log, count, ended.resolve);
  } catch (error) {
    sink.flush();
    if (!(error instanceof StartError)) throw error;
    if (cluster.isWorker) {
      process.send?.({ kind: 'cannot_start', problems: error.problems } satisfies FromWorker);
      return EXIT.configuration;
    }
    return refuse(context, error.problems);
  }
  const code = await ended.promise;
  sink.flush();
  return code;
}

function refuse(context: Context, problems: readonly string[]): number {
  context.stderr(
    `gatehouse: cannot start, ${problems.length === 1 ? 'one problem' : `${problems.length} problems`}\n`,
  );
  for (const problem of problems) context.stderr(`  ${problem}\n`);
  return EXIT.configuration;
}

type End = (code: number) => void;

const reloadable = (context: Context) => {
  const file = context.option('config');
  return () =>
    loadSettings({
      ...(file !== undefined && { file }),
      env: context.env,
      overrides: context.options('set'),
      cwd: context.cwd,
    });
};

async function runAlone(
  context: Context,
  settings: Settings,
  files: readonly string[],
  log: Logger,
  end: End,
): Promise<void> {
  const opening = openGateway({ settings, log });
  const reloader = createReloader({ load: reloadable(context), gateway: opening, settings, files, log });
  const gateway = await opening;
  log.info('ready', {
    url: settings.publicUrl,
    port: gateway.port,
    adminPort: gateway.adminPort,
    pid: process.pid,
  });
  process.on('SIGHUP', () => void reloader.reload('SIGHUP'));
  onEnd(log, async () => {
    reloader.close();
    await gateway.drain();
    end(EXIT.ok);
  });
}

async function runSupervisor(settings: Settings, log: Logger, workers: number, end: End): Promise<void> {
  const supervisor = await openSupervisor({
    settings,
    workers,
    log,
    onHopeless: (problems) => log.error('worker_cannot_start', { problems }),
  });
  log.info('ready', {
    url: settings.publicUrl,
    port: supervisor.port,
    adminPort: supervisor.adminPort,
    pid: process.pid,
    workers: supervisor.pids().map(String),
  });
  process.on('SIGHUP', () => supervisor.reload());
  onEnd(log, async () => {
    await supervisor.drain();
    end(EXIT.ok);
  });
}

async function runWorker(
  context: Context,
  settings: Settings,
  files: readonly string[],
  log: Logger,
  workers: number,
  end: End,
): Promise<void> {
  // The supervisor says when to stop; a terminal sends its signals to the workers as well.
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => {});
  const opening = openGateway({ settings, log, role: 'worker', workers });
  const reloader = createReloader({ load: reloadable(context), gateway: opening, settings, files, log });
  const gateway = await opening;
  const drain = async (): Promise<void> => {
    reloader.close();
    await gateway.drain();
    // Nothing more is expected from the supervisor, so the line to it no longer keeps this process alive.
    process.channel?.unref();
    end(EXIT.ok);
  };
  process.on('message', (message: ToWorker) => {
    if (message.kind === 'reload') void reloader.reload('SIGHUP');
    else void drain();
  });
  // Without a supervisor nobody holds the store's lock.
  process.on('disconnect', () => process.exit(EXIT.internal));
  process.send?.({ kind: 'ready', port: gateway.port } satisfies FromWorker);
}

function onEnd(log: Logger, stop: () => Promise<void>): void {
  let ending = false;
  for (const signal of ['SIGTERM', 'SIGINT'] as const)
    process.on(signal, () => {
      if (ending) process.exit(1);
      ending = true;
      stop().catch((error: unknown) => {
        log.error('stop_failed', errorFields(error));
        process.exit(1);
      });
    });
}

/** A full disk below the log, or a reader of it that has gone, costs lines and not the service. It ends other commands. */
function outliveOutput(): void {
  for (const stream of [process.stdout, process.stderr])
    stream.removeAllListeners('error').on('error', () => {});
}

/** An error nobody expected: said, and ended. A process in an unknown state answers nobody; a supervisor starts it again. */
function endOnSurprise(log: Logger, flush: () => void): void {
  const end = (event: string) => (error: unknown) => {
    log.error(event, errorFields(error));
    flush();
    process.exit(1);
  };
  process.on('uncaughtException', end('uncaught_exception'));
  process.on('unhandledRejection', end('unhandled_rejection'));
}
