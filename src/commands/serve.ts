import cluster from 'node:cluster';
import { availableParallelism } from 'node:os';
import { formatProblem, type LoadedConfig } from '../config/load.ts';
import type { Settings } from '../config/schema.ts';
import { StartError } from '../lib/start-error.ts';
import { createLogger, createStdoutSink, errorFields, type Logger } from '../observability/logger.ts';
import { createMetrics, type Metrics } from '../observability/metrics.ts';
import { type EventLoopMonitor, startEventLoopMonitor } from '../server/event-loop-monitor.ts';
import { type DrainOptions, type Gateway, type GatewayOptions, openGateway } from '../server/gateway.ts';
import { returnIdleMemory } from '../server/idle-memory.ts';
import { Reloader, type ReloaderOptions } from '../server/reloader.ts';
import {
  createRateLimitClient,
  type SupervisorMessage,
  type WorkerMessage,
  type WorkerQuery,
} from '../server/workers/ipc.ts';
import { openSupervisor } from '../server/workers/supervisor-process.ts';
import { CONFIG_OPTIONS, type Command, type CommandContext, EXIT } from './command.ts';
import { getRuntime, selfCheck } from './self-check.ts';
import { createServiceManager, type ServiceManager } from './service-manager.ts';
import { createDescriber, loadCommandSettings, readConfig, reportStartFailure } from './settings.ts';
import { DRAIN_SIGNAL, onStopSignal, type StopSignal } from './stop-signals.ts';
import { getLogFormat, isInteractive } from './style.ts';

export const command: Command = {
  name: 'serve',
  summary: 'runs the gateway',
  usage: ['gatehouse serve [--config FILE]'],
  options: CONFIG_OPTIONS,
  notes: [
    'The configuration and the files it names are reloaded when they change, and on SIGHUP. Settings that need a restart are logged as restart_needed.',
    'SIGTERM drains and exits; a second one exits at once. Ctrl-C in a terminal does not wait for shutdown.preStop.',
    'On a terminal, the log is text instead of JSON (log.format).',
    'SIGPWR announces the shutdown without exiting, as `gatehouse drain` does.',
    'SIGUSR2 replaces the workers one by one (listen.workers above 1) without dropping requests.',
  ],
  async run(context) {
    const problems = selfCheck(getRuntime(context.env, context.execArgv));
    if (problems.length > 0) return reportStartFailure(context, problems);
    try {
      const lastGood = cluster.isWorker ? await loadLastGood(context) : undefined;
      return await serve(context, lastGood ?? { loaded: loadCommandSettings(context) });
    } finally {
      // The IPC channel would keep a worker alive that could not start.
      if (cluster.isWorker) process.channel?.unref();
    }
  },
};

const SETTINGS_TIMEOUT_MS = 5_000;
const METRICS_INTERVAL_MS = 5_000;
const sendToSupervisor = (message: WorkerMessage): void => void process.send?.(message);

/** A worker that finds the file invalid starts with its last valid text, and follows later changes. */
async function loadLastGood(context: CommandContext): Promise<FirstConfig | undefined> {
  const onDisk = readConfig(context);
  if (onDisk.ok) return { loaded: onDisk };
  const text = await new Promise<string | undefined>((resolve) => {
    const timer = setTimeout(() => resolve(undefined), SETTINGS_TIMEOUT_MS);
    process.once('message', (message: SupervisorMessage) => {
      clearTimeout(timer);
      resolve(message.kind === 'settings' ? message.text : undefined);
    });
    sendToSupervisor({ kind: 'config_request' });
  });
  const lastGood = text === undefined ? undefined : readConfig(context, text);
  return lastGood?.ok === true ? { loaded: lastGood, rejectedProblems: onDisk.problems.map(formatProblem) } : undefined;
}

interface FirstConfig {
  readonly loaded: LoadedConfig;
  /** Problems of the file on disk, if `loaded` is an earlier one. */
  readonly rejectedProblems?: readonly string[];
}

interface ServeContext extends FirstConfig {
  readonly context: CommandContext;
  readonly log: Logger;
  readonly metrics: Metrics;
  readonly manager: ServiceManager;
  readonly end: (code: number) => void;
  /** Sets how an unexpected error shuts down. */
  readonly setStop: (stop: StopFunction) => void;
}

type StopFunction = (options?: DrainOptions) => Promise<boolean>;

/** Runs until a signal ends it; returns the exit code. */
async function serve(context: CommandContext, firstConfig: FirstConfig): Promise<number> {
  const { loaded } = firstConfig;
  const { settings } = loaded;
  ignoreOutputErrors();
  const sink = createStdoutSink(process.stdout, (lines) => log.error('log_lines_lost', { lines }));
  const log = createLogger({
    ...settings.log,
    ...getLogFormat(settings.log, context),
    write: (line, isImportant) => sink.write(line, isImportant),
    ...(cluster.isWorker && { fields: { worker: process.pid } }),
  });
  const metrics = createMetrics();
  metrics.addCollector((set) => set('gatehouse_log_lines_dropped_total', sink.getLostCount()));
  const ended = Promise.withResolvers<number>();
  const count = settings.listen.workers === 'auto' ? availableParallelism() : settings.listen.workers;
  // Without a listener, Node opens its debugger on this signal, which would expose keys and tokens.
  process.on('SIGUSR1', () => log.warn('debugger_refused'));
  // Until the gateway is open: the default action ends the process.
  process.on(DRAIN_SIGNAL, () => {});
  const setStop = exitOnFatalError(log, () => sink.flush());
  try {
    const manager = createServiceManager({ env: cluster.isWorker ? {} : context.env, log });
    const serveContext = { ...firstConfig, context, log, metrics, manager, setStop, end: ended.resolve };
    if (cluster.isWorker) await runWorker(serveContext, count);
    else if (count === 1) await runSingleProcess(serveContext);
    else await runSupervisor(serveContext, count);
    using _ = returnIdleMemory();
    return await ended.promise;
  } catch (error) {
    if (!(error instanceof StartError)) throw error;
    const problems = createDescriber(context, loaded)(error.problems);
    if (!cluster.isWorker) return reportStartFailure(context, problems);
    sendToSupervisor({ kind: 'start_failed', problems });
    return EXIT.configuration;
  } finally {
    sink.flush();
  }
}

/** Opens the gateway and reloads it when files change. The event loop is monitored once it serves. */
async function openReloadingGateway(
  { context, loaded, rejectedProblems, log, metrics }: ServeContext,
  options: Pick<GatewayOptions, 'role' | 'limits'> & Pick<ReloaderOptions, 'onApplied'> = {},
  onOverload?: (isOverloaded: boolean) => void,
): Promise<{ readonly gateway: Gateway; readonly reloader: Reloader; readonly stop: StopFunction }> {
  const { settings, files } = loaded;
  const { onApplied, ...gatewayOptions } = options;
  let monitor: EventLoopMonitor | undefined;
  const eventLoop = { isOverloaded: () => monitor?.isOverloaded() === true };
  const describe = createDescriber(context, loaded);
  const opening = openGateway({
    settings,
    rejectedProblems,
    log,
    metrics,
    eventLoop,
    describe,
    ...gatewayOptions,
  });
  const reloader = new Reloader({
    load: () => readConfig(context),
    gateway: opening,
    settings,
    files,
    log,
    createDescriber: (next) => createDescriber(context, next),
    ...(onApplied && { onApplied }),
  });
  const gateway = await opening;
  monitor = startEventLoopMonitor({
    onChange(isOverloaded, delayMs) {
      log.warn(isOverloaded ? 'event_loop_overloaded' : 'event_loop_recovered', { delay_ms: delayMs });
      onOverload?.(isOverloaded);
    },
  });
  const stop: StopFunction = (drainOptions) => {
    reloader.close();
    return gateway.drain(drainOptions);
  };
  return { gateway, reloader, stop };
}

async function runSingleProcess(serveContext: ServeContext): Promise<void> {
  const { loaded, log, manager } = serveContext;
  const { publicUrl: url } = loaded.settings;
  const { gateway, reloader, stop } = await openReloadingGateway(serveContext);
  log.info('ready', { url, port: gateway.port, admin_port: gateway.adminPort, pid: process.pid });
  manager.ready(`serving ${url}`);
  process.on('SIGHUP', () => {
    manager.reloading();
    gateway.reopenFiles();
    void reloader.reload('SIGHUP').then(() => manager.ready(`serving ${url}`));
  });
  process.on('SIGUSR2', () =>
    log.warn('worker_restart_unavailable', {
      note: 'gatehouse runs as a single process without workers; set listen.workers above 1',
    }),
  );
  process.on(DRAIN_SIGNAL, () => gateway.announceShutdown());
  stopOnSignal(serveContext, stop);
}

async function runSupervisor(serveContext: ServeContext, workers: number): Promise<void> {
  const { context, loaded, log, metrics, manager } = serveContext;
  const { settings, text } = loaded;
  let lastGood = settings;
  const getSettings = (text?: string): Settings => {
    const latest = readConfig(context, text);
    if (latest.ok) lastGood = latest.settings;
    return lastGood;
  };
  const supervisor = await openSupervisor({ settings, getSettings, text, workers, log, metrics });
  log.info('ready', {
    url: settings.publicUrl,
    port: supervisor.port,
    admin_port: supervisor.adminPort,
    pid: process.pid,
    workers: supervisor.pids().map(String),
  });
  const status = `serving ${settings.publicUrl} with ${workers} workers`;
  manager.ready(status);
  process.on('SIGHUP', () => {
    manager.reloading();
    // The workers reload by themselves.
    supervisor.reload();
    manager.ready(status);
  });
  process.on('SIGUSR2', () => void supervisor.restartWorkers('SIGUSR2'));
  process.on(DRAIN_SIGNAL, () => supervisor.announceShutdown());
  stopOnSignal(serveContext, (options) => supervisor.drain(options));
}

async function runWorker(serveContext: ServeContext, workers: number): Promise<void> {
  const { metrics, end, setStop } = serveContext;
  // The supervisor decides when to stop; a terminal sends its signals to the workers as well.
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGUSR2', DRAIN_SIGNAL] as const) process.on(signal, () => {});
  const limits = createRateLimitClient(sendToSupervisor, workers);
  const { gateway, reloader, stop } = await openReloadingGateway(
    serveContext,
    {
      role: 'worker',
      limits,
      onApplied: ({ text }, pendingRestart) => sendToSupervisor({ kind: 'reloaded', text, pendingRestart }),
    },
    (overloaded) => sendToSupervisor({ kind: 'overload', overloaded }),
  );
  setStop(stop);
  const sendMetrics = async (): Promise<void> =>
    sendToSupervisor({ kind: 'snapshot', snapshot: await metrics.snapshot() });
  // Bounds what is lost when the worker is killed.
  const metricsTimer = setInterval(() => void sendMetrics(), METRICS_INTERVAL_MS).unref();
  const respond = async (id: number, query: WorkerQuery): Promise<void> => {
    if (query === 'snapshot') {
      await sendMetrics();
      return sendToSupervisor({ kind: 'query_result', id });
    }
    const result = query === 'status' ? gateway.getStatus() : gateway.findRecentEvents(query);
    sendToSupervisor({ kind: 'query_result', id, result });
  };
  const drainAndEnd = async (options: DrainOptions): Promise<void> => {
    const isDrained = await stop(options);
    clearInterval(metricsTimer);
    await sendMetrics();
    // No further message is expected: the IPC channel must not keep this process alive.
    process.channel?.unref();
    end(getExitCode(isDrained));
  };
  process.on('message', (message: SupervisorMessage) => {
    if (message.kind === 'limit') limits.onResponse(message);
    if (message.kind === 'query') void respond(message.id, message.query);
    if (message.kind === 'announce_shutdown') gateway.announceShutdown();
    if (message.kind === 'drain') void drainAndEnd(message);
    if (message.kind !== 'reload') return;
    gateway.reopenFiles();
    void reloader.reload('SIGHUP');
  });
  // Without the supervisor the store has no lock.
  process.on('disconnect', () => process.exit(EXIT.internal));
  sendToSupervisor({ kind: 'ready', port: gateway.port });
}

const EXIT_CUT_OFF = 1;
/** Requests that were cut off are reported by the exit code. */
const getExitCode = (isDrained: boolean): number => (isDrained ? EXIT.ok : EXIT_CUT_OFF);

/**
 * `shutdown.preStop` gives load balancers time to stop sending requests. A process that is stopped with Ctrl-C in a terminal
 * has none in front of it.
 */
const getDrainOptions = (signal: StopSignal, context: CommandContext): DrainOptions =>
  signal === 'SIGINT' && isInteractive(context) ? { preStop: 0 } : {};

function stopOnSignal({ context, log, manager, end, setStop }: ServeContext, drain: StopFunction): void {
  const stop: StopFunction = (options) => {
    manager.stopping();
    return drain(options);
  };
  setStop(stop);
  onStopSignal(
    (signal) => {
      stop(getDrainOptions(signal, context))
        .then((isDrained) => end(getExitCode(isDrained)))
        .catch((error: unknown) => {
          log.error('stop_failed', errorFields(error));
          process.exit(1);
        });
    },
    () => process.exit(EXIT_CUT_OFF),
  );
}

/** A full disk or a closed pipe loses log lines, but must not end the service. */
function ignoreOutputErrors(): void {
  for (const stream of [process.stdout, process.stderr]) stream.removeAllListeners('error').on('error', () => {});
}

const FINAL_DRAIN_SECONDS = 2;

/**
 * Ends the process after an unexpected error, since its state is unknown: running requests get a moment to complete, and a
 * supervisor starts it again. Returns a setter for the function that drains.
 */
function exitOnFatalError(log: Logger, flush: () => void): (stop: StopFunction) => void {
  let stop: StopFunction = async () => true;
  let count = 0;
  const exit = (): void => {
    flush();
    process.exit(1);
  };
  const shutDown = async (): Promise<void> => {
    setTimeout(exit, (FINAL_DRAIN_SECONDS + 1) * 1_000);
    try {
      await stop({ preStop: 0, drain: FINAL_DRAIN_SECONDS });
    } finally {
      exit();
    }
  };
  const createHandler = (event: string) => (error: unknown) => {
    count += 1;
    log.error(event, { ...errorFields(error), count });
    if (count === 1) void shutDown();
  };
  process.on('uncaughtException', createHandler('uncaught_exception'));
  process.on('unhandledRejection', createHandler('unhandled_rejection'));
  return (newStop) => {
    stop = newStop;
  };
}
