import { execFile } from 'node:child_process';
import type { Logger } from '../observability/logger.ts';

/**
 * Tells systemd how far we are (sd_notify(3)): units of `Type=notify`. Does nothing where nobody asked for it.
 *
 * Node opens no datagram sockets of the unix kind, and native code of our own is not worth these few words; so they go
 * through systemd's own program. It is a child of ours, hence `NotifyAccess=all` in the unit.
 */
export interface ServiceManager {
  ready(status: string): void;
  reloading(): void;
  stopping(): void;
}

export interface ServiceManagerOptions {
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly log: Logger;
  readonly pid?: number;
  readonly program?: string;
}

const PROGRAM = '/usr/bin/systemd-notify';
const LIMIT_MS = 5_000;
const NOBODY: ServiceManager = { ready: () => {}, reloading: () => {}, stopping: () => {} };

export function serviceManager(options: ServiceManagerOptions): ServiceManager {
  const { env, log, pid = process.pid, program = PROGRAM } = options;
  const socket = env['NOTIFY_SOCKET'];
  if (socket === undefined || !/^[/@]/.test(socket)) return NOBODY;

  // One after the other: READY must not overtake RELOADING.
  let last: Promise<void> = Promise.resolve();
  let waiting = 0;
  let toldOff = false;
  const send = (...words: readonly string[]): void => {
    if (waiting >= MOST_WAITING) return;
    waiting += 1;
    last = last
      .then(() => say(program, socket, words))
      .then((problem) => {
        waiting -= 1;
        if (problem === undefined || toldOff) return;
        toldOff = true;
        log.warn('service_manager_unreachable', { problem });
      });
  };

  const beat = watchdogBeat(env, pid);
  let beating: NodeJS.Timeout | undefined;
  return {
    ready(status) {
      send('READY=1', `MAINPID=${pid}`, `STATUS=${status}`);
      // A process whose event loop stands still does not get here, and is started again.
      if (beat !== undefined)
        beating ??= setInterval(() => waiting === 0 && send('WATCHDOG=1'), beat).unref();
    },
    reloading: () => send('RELOADING=1', 'STATUS=reading the configuration again'),
    stopping: () => send('STOPPING=1', 'STATUS=draining'),
  };
}

const MOST_WAITING = 16;

/** Milliseconds: twice as often as asked for. Undefined when nobody watches, or watches another process. */
function watchdogBeat(env: ServiceManagerOptions['env'], pid: number): number | undefined {
  const microseconds = Number(env['WATCHDOG_USEC']);
  const meant = env['WATCHDOG_PID'];
  if (!(microseconds >= 1_000) || (meant !== undefined && Number(meant) !== pid)) return undefined;
  return Math.max(1, Math.floor(microseconds / 2_000));
}

/** Tells what went wrong, if anything did. The program gets the socket's name and nothing else of our environment. */
const say = (program: string, socket: string, words: readonly string[]): Promise<string | undefined> =>
  new Promise((resolve) => {
    execFile(
      program,
      [...words],
      { env: { NOTIFY_SOCKET: socket }, timeout: LIMIT_MS, killSignal: 'SIGKILL' },
      (error) =>
        resolve(error === null ? undefined : `${program} (${error.code ?? error.signal ?? 'failed'})`),
    );
  });
