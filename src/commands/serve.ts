import cluster from 'node:cluster';
import { availableParallelism } from 'node:os';
import { type Loaded, loadSettings } from '../config/load.ts';
import type { Settings } from '../config/schema.ts';
import { type DrainTerms, openGateway } from '../gateway/gateway.ts';
import { limitLine } from '../gateway/limit-line.ts';
import { guardLoop, type LoopGuard } from '../gateway/loop-guard.ts';
import { createReloader } from '../gateway/reloader.ts';
import { StartError } from '../gateway/start-error.ts';
import { openSupervisor } from '../gateway/supervisor.ts';
import type { FromWorker, ToWorker } from '../gateway/workers.ts';
import { createLogger, errorFields, type Logger, stdoutSink } from '../observability/logger.ts';
import { createMetrics, type Metrics } from '../observability/metrics.ts';
import { CONFIG_OPTIONS, type Command, type Context, EXIT } from './command.ts';
import { selfCheck, thisRuntime } from './self-check.ts';
import { type ServiceManager, serviceManager } from './service-manager.ts';
import { settingsFor } from './settings.ts';

export const command: Command = {
  name: 'serve',
  summary: 'runs the gateway',
  usage: ['gatehouse serve [--config FILE]'],
  options: CONFIG_OPTIONS,
  notes: [
    'SIGHUP reads the configuration and every file it names again; changed files are noticed without it. Settings that need a restart are logged as restart_needed.',
    'SIGTERM drains and ends; a second one ends at once.',
    'SIGUSR2 replaces the workers one by one (listen.workers above 1); no request is lost over it.',
  ],
  async run(context) {
    const problems = selfCheck(thisRuntime(context.env, context.execArgv));
    if (problems.length > 0) return refuse(context, problems);
    try {
      const loaded = (cluster.isWorker && (await lastGood(context))) || (await settingsFor(context));
      if (typeof loaded === 'number') return loaded;
      return await serve(context, loaded);
    } finally {
      // A worker that could not start must end, so that the supervisor tries again: the line to it would keep it alive.
      if (cluster.isWorker) process.channel?.unref();
    }
  },
};

/** A worker that finds the file broken begins with what it said when it was sound, and follows it from there. */
async function lastGood(context: Context): Promise<Loaded | undefined> {
  const load = reloadable(context);
  const onDisk = load();
  if (onDisk.ok) return onDisk;
  const text = await new Promise<string | undefined>((resolve) => {
    const timer = setTimeout(() => resolve(undefined), ANSWER_MS);
    process.once('message', (message: ToWorker) => {
      clearTimeout(timer);
      resolve(message.kind === 'settings' ? message.text : undefined);
    });
    tell({ kind: 'settings_wanted' });
  });
  const before = text === undefined ? undefined : load(text);
  return before?.ok === true ? before : undefined;
}

const ANSWER_MS = 5_000;
const FIGURES_EVERY_MS = 5_000;
const countRefused = (metrics: Metrics) => (): void => {
  metrics.counter('gatehouse_config_reload_failed_total').value += 1;
};
const tell = (message: FromWorker): void => void process.send?.(message);

/** Runs until a signal ends it; tells the exit code. */
export async function serve(context: Context, loaded: Loaded): Promise<number> {
  const { settings } = loaded;
  outliveOutput();
  const sink = stdoutSink(process.stdout, (lines) => log.error('log_lines_lost', { lines }));
  const log = createLogger({
    ...settings.log,
    write: (line, matters) => sink.write(line, matters),
    ...(cluster.isWorker && { fields: { worker: process.pid } }),
  });
  const metrics = createMetrics();
  metrics.collect((set) => set('gatehouse_log_lines_dropped_total', sink.lost()));
  const ended = Promise.withResolvers<number>();
  const count = settings.listen.workers === 'auto' ? availableParallelism() : settings.listen.workers;
  // Node opens its debugger on this signal unless somebody listens: keys and tokens would lie open.
  process.on('SIGUSR1', () => log.warn('debugger_refused'));
  const surprise = endOnSurprise(log, () => sink.flush());
  try {
    const manager = serviceManager({ env: cluster.isWorker ? {} : context.env, log });
    const run = { context, loaded, log, metrics, surprise, manager, end: ended.resolve };
    if (cluster.isWorker) await runWorker(run, count);
    else if (count === 1) await runAlone(run);
    else await runSupervisor(run, count);
  } catch (error) {
    sink.flush();
    if (!(error instanceof StartError)) throw error;
    if (cluster.isWorker) {
      tell({ kind: 'cannot_start', problems: error.problems });
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

interface Run {
  readonly context: Context;
  readonly loaded: Loaded;
  readonly log: Logger;
  readonly metrics: Metrics;
  readonly surprise: Surprise;
  readonly manager: ServiceManager;
  readonly end: (code: number) => void;
}

const reloadable = (context: Context) => {
  const file = context.option('config');
  return (text?: string) =>
    loadSettings({
      ...(file !== undefined && { file }),
      ...(text !== undefined && { text }),
      env: context.env,
      overrides: context.options('set'),
      cwd: context.cwd,
    });
};

/** Watches the event loop from `begin` on: loading and opening everything holds it up, but no request waits for that. */
function watchedLoop(log: Logger, onChange?: (pressed: boolean) => void) {
  let guard: LoopGuard | undefined;
  return {
    isPressed: () => guard?.isPressed() === true,
    begin() {
      guard = guardLoop({
        onChange(pressed, delayMs) {
          log.warn(pressed ? 'overloaded' : 'keeps_up_again', { delayMs });
          onChange?.(pressed);
        },
      });
    },
  };
}

async function runAlone({ context, loaded, log, metrics, surprise, manager, end }: Run): Promise<void> {
  const { settings, files } = loaded;
  const loop = watchedLoop(log);
  const opening = openGateway({ settings, log, metrics, loop });
  const reloader = createReloader({
    load: () => reloadable(context)(),
    gateway: opening,
    settings,
    files,
    log,
    onRefused: countRefused(metrics),
  });
  const gateway = await opening;
  loop.begin();
  log.info('ready', {
    url: settings.publicUrl,
    port: gateway.port,
    adminPort: gateway.adminPort,
    pid: process.pid,
  });
  manager.ready(`serving ${settings.publicUrl}`);
  const stop = (terms?: DrainTerms): Promise<boolean> => {
    manager.stopping();
    reloader.close();
    return gateway.drain(terms);
  };
  surprise.stopBy(stop);
  process.on('SIGHUP', () => {
    manager.reloading();
    gateway.reopenFiles();
    void reloader.reload('SIGHUP').then(() => manager.ready(`serving ${settings.publicUrl}`));
  });
  process.on('SIGUSR2', () =>
    log.warn('restart_refused', { note: 'there is one process and no workers; set listen.workers above 1' }),
  );
  onEnd(log, async () => end(codeFor(await stop())));
}

async function runSupervisor(
  { context, loaded, log, metrics, surprise, manager, end }: Run,
  workers: number,
): Promise<void> {
  const { settings, text } = loaded;
  let good = settings;
  const latest = (): Settings => {
    const now = reloadable(context)();
    if (now.ok) good = now.settings;
    return good;
  };
  const supervisor = await openSupervisor({ settings, latest, text, workers, log, metrics });
  log.info('ready', {
    url: settings.publicUrl,
    port: supervisor.port,
    adminPort: supervisor.adminPort,
    pid: process.pid,
    workers: supervisor.pids().map(String),
  });
  const status = `serving ${settings.publicUrl} by ${workers} workers`;
  manager.ready(status);
  const stop = (terms?: DrainTerms): Promise<boolean> => {
    manager.stopping();
    return supervisor.drain(terms);
  };
  surprise.stopBy(stop);
  process.on('SIGHUP', () => {
    manager.reloading();
    // Each worker reads for itself and goes on serving meanwhile.
    supervisor.reload();
    manager.ready(status);
  });
  process.on('SIGUSR2', () => void supervisor.restartWorkers('SIGUSR2'));
  onEnd(log, async () => end(codeFor(await stop())));
}

async function runWorker(
  { context, loaded, log, metrics, surprise, end }: Run,
  workers: number,
): Promise<void> {
  const { settings, files } = loaded;
  // The supervisor says when to stop; a terminal sends its signals to the workers as well.
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGUSR2'] as const) process.on(signal, () => {});
  const loop = watchedLoop(log, (pressed) => tell({ kind: 'pressed', pressed }));
  const limits = limitLine(tell, workers);
  const opening = openGateway({ settings, log, metrics, role: 'worker', limits, loop });
  const reloader = createReloader({
    load: () => reloadable(context)(),
    gateway: opening,
    settings,
    files,
    log,
    onRefused: countRefused(metrics),
    onGood: ({ text }, needRestart) => tell({ kind: 'reloaded', text, needRestart }),
  });
  const gateway = await opening;
  loop.begin();
  const stop = (terms?: DrainTerms): Promise<boolean> => {
    reloader.close();
    return gateway.drain(terms);
  };
  surprise.stopBy(stop);
  const tellFigures = async (): Promise<void> => tell({ kind: 'figures', figures: await metrics.snapshot() });
  // Should it be killed, no more than this is lost.
  const telling = setInterval(() => void tellFigures(), FIGURES_EVERY_MS).unref();
  process.on('message', (message: ToWorker) => {
    if (message.kind === 'limit') limits.heard(message);
    if (message.kind === 'figures_wanted') void tellFigures();
    if (message.kind === 'reload') {
      gateway.reopenFiles();
      void reloader.reload('SIGHUP');
    }
    if (message.kind !== 'drain') return;
    void stop(message).then(async (gentle) => {
      // What it counted outlives it.
      clearInterval(telling);
      await tellFigures();
      // Nothing more is expected from the supervisor, so the line to it no longer keeps this process alive.
      process.channel?.unref();
      end(codeFor(gentle));
    });
  });
  // Without a supervisor nobody holds the store's lock.
  process.on('disconnect', () => process.exit(EXIT.internal));
  tell({ kind: 'ready', port: gateway.port });
}

/** Requests that were cut off are worth a code that somebody notices. */
const codeFor = (gentle: boolean): number => (gentle ? EXIT.ok : CUT_OFF);
const CUT_OFF = 1;

/** A terminal and a wrapper, or a control group, hand us the same signal twice: so soon it is still the first one. */
const SAME_SIGNAL_MS = 250;

function onEnd(log: Logger, stop: () => Promise<void>): void {
  let began: number | undefined;
  for (const signal of ['SIGTERM', 'SIGINT'] as const)
    process.on(signal, () => {
      if (began !== undefined) {
        if (performance.now() - began > SAME_SIGNAL_MS) process.exit(CUT_OFF);
        return;
      }
      began = performance.now();
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

/** What to do when an error comes that nobody expected. */
interface Surprise {
  stopBy(stop: (terms: DrainTerms) => Promise<unknown>): void;
}

const LAST_SECONDS = 2;

/**
 * An error nobody expected: said, counted, and ended. A process in an unknown state takes nothing new; what runs may end
 * within a moment, and a supervisor starts it again.
 */
function endOnSurprise(log: Logger, flush: () => void): Surprise {
  let stop = async (_terms: DrainTerms): Promise<unknown> => undefined;
  let count = 0;
  const exit = (): void => {
    flush();
    process.exit(1);
  };
  const leave = async (): Promise<void> => {
    setTimeout(exit, (LAST_SECONDS + 1) * 1_000);
    try {
      await stop({ preStop: 0, drain: LAST_SECONDS });
    } finally {
      exit();
    }
  };
  const end = (event: string) => (error: unknown) => {
    count += 1;
    log.error(event, { ...errorFields(error), count });
    if (count === 1) void leave();
  };
  process.on('uncaughtException', end('uncaught_exception'));
  process.on('unhandledRejection', end('unhandled_rejection'));
  return {
    stopBy: (how) => {
      stop = how;
    },
  };
}
