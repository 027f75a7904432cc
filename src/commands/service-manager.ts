import { execFile } from 'node:child_process';
import type { Logger } from '../observability/logger.ts';

/**
 * Notifies systemd (sd_notify(3)) for units with `Type=notify`; does nothing without NOTIFY_SOCKET.
 *
 * Node has no Unix datagram sockets, so systemd-notify sends the messages. It is a child process, hence `NotifyAccess=all` in
 * the unit.
 */
export interface ServiceManager {
  ready(status: string): void;
  reloading(): void;
  stopping(): void;
}

interface ServiceManagerOptions {
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly log: Logger;
  readonly pid?: number;
  readonly program?: string;
}

const PROGRAM = '/usr/bin/systemd-notify';
const TIMEOUT_MS = 5_000;
const NO_SERVICE_MANAGER: ServiceManager = { ready: () => {}, reloading: () => {}, stopping: () => {} };

export function createServiceManager(options: ServiceManagerOptions): ServiceManager {
  const { env, log, pid = process.pid, program = PROGRAM } = options;
  const socket = env['NOTIFY_SOCKET'];
  if (socket === undefined || !/^[/@]/.test(socket)) return NO_SERVICE_MANAGER;

  // In order: READY must not overtake RELOADING.
  let last: Promise<void> = Promise.resolve();
  let queued = 0;
  let isFailureReported = false;
  const send = (...assignments: readonly string[]): void => {
    if (queued >= MAX_QUEUED) return;
    queued += 1;
    last = last
      .then(() => notify(program, socket, assignments))
      .then((problem) => {
        queued -= 1;
        if (problem === undefined || isFailureReported) return;
        isFailureReported = true;
        log.warn('service_manager_unreachable', { problem });
      });
  };

  const watchdogInterval = getWatchdogInterval(env, pid);
  let watchdogTimer: NodeJS.Timeout | undefined;
  return {
    ready(status) {
      send('READY=1', `MAINPID=${pid}`, `STATUS=${status}`);
      // A stalled event loop sends no keep-alive, and systemd restarts the process.
      if (watchdogInterval !== undefined)
        watchdogTimer ??= setInterval(() => queued === 0 && send('WATCHDOG=1'), watchdogInterval).unref();
    },
    reloading: () => send('RELOADING=1', 'STATUS=reloading the configuration'),
    stopping: () => send('STOPPING=1', 'STATUS=draining'),
  };
}

const MAX_QUEUED = 16;

/** Milliseconds, half the watchdog timeout; undefined without a watchdog for this process. */
function getWatchdogInterval(env: ServiceManagerOptions['env'], pid: number): number | undefined {
  const microseconds = Number(env['WATCHDOG_USEC']);
  const watchdogPid = env['WATCHDOG_PID'];
  if (!(microseconds >= 1_000) || (watchdogPid !== undefined && Number(watchdogPid) !== pid)) return undefined;
  return Math.max(1, Math.floor(microseconds / 2_000));
}

/** Returns the problem, if any. The child gets only NOTIFY_SOCKET of the environment. */
const notify = (program: string, socket: string, assignments: readonly string[]): Promise<string | undefined> =>
  new Promise((resolve) => {
    execFile(
      program,
      [...assignments],
      { env: { NOTIFY_SOCKET: socket }, timeout: TIMEOUT_MS, killSignal: 'SIGKILL' },
      (error) => resolve(error === null ? undefined : `${program} (${error.code ?? error.signal ?? 'failed'})`),
    );
  });
