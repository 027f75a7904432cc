import { readdirSync, readFileSync } from 'node:fs';
import { setTimeout as wait } from 'node:timers/promises';
import { type Command, CommandError, EXIT, UsageError } from './command.ts';
import { parseSeconds } from './sleep.ts';
import { DRAIN_SIGNAL } from './stop-signals.ts';

export const command: Command = {
  name: 'drain',
  summary: 'announces the shutdown of the running gatehouse and waits N seconds, for preStop hooks',
  usage: ['gatehouse drain N [--pid PID]'],
  options: {
    pid: { value: 'PID', help: 'the process id of gatehouse serve (default: the only one running here)' },
  },
  positionals: { min: 1, max: 1 },
  notes: [
    'gatehouse then reports that it is not ready, but serves every request until SIGTERM. It asks clients to reconnect elsewhere, with Connection: close or, over HTTP/2, GOAWAY. Idle connections are closed one second before the end of shutdown.preStop.',
    'For the preStop hook of a native sidecar, which gets SIGTERM only after the application has exited.',
    'Waits even if there is no process to signal; the exit code is then 69.',
  ],
  async run({ positionals: [text = ''], option }) {
    const seconds = parseSeconds('gatehouse drain', text);
    const pid = parsePid(option('pid'));
    const problem = announce(pid);
    // Load balancers need the time in any case.
    await wait(seconds * 1_000);
    if (problem !== undefined) throw new CommandError(problem, EXIT.unavailable);
  },
};

function parsePid(text: string | undefined): number | undefined {
  if (text === undefined) return undefined;
  // Not 0 or less: these address groups of processes.
  if (!/^[1-9]\d{0,9}$/.test(text))
    throw new UsageError(`gatehouse drain: --pid must be a process id, not "${text.slice(0, 32)}"`);
  return Number(text);
}

/** Returns why it could not be announced. */
function announce(given: number | undefined): string | undefined {
  const pids = given === undefined ? findServeProcesses() : [given];
  const [pid] = pids;
  if (pid === undefined) return 'no `gatehouse serve` process is running here; pass --pid';
  if (pids.length > 1) return `several \`gatehouse serve\` processes are running here (${pids.join(', ')}); pass --pid`;
  try {
    process.kill(pid, DRAIN_SIGNAL);
    return undefined;
  } catch (error) {
    return `process ${pid} cannot be signalled: ${(error as Error).message}`;
  }
}

/**
 * Processes that run `serve` with the program file that runs this command; other programs in the process namespace of a pod
 * must not be signalled. Without workers, which have the same arguments as the process that started them.
 */
function findServeProcesses(): readonly number[] {
  const ownArguments = readArguments(process.pid);
  const program = ownArguments[ownArguments.indexOf('drain') - 1];
  if (program === undefined) return [];
  const isServe = (args: readonly string[]): boolean =>
    args.some((arg, index) => arg === program && args[index + 1] === 'serve');
  const parents = new Map(
    listProcesses()
      .filter((pid) => isServe(readArguments(pid)))
      .map((pid) => [pid, readParent(pid)]),
  );
  return [...parents].flatMap(([pid, parent]) => (parents.has(parent) ? [] : [pid]));
}

function listProcesses(): readonly number[] {
  try {
    return readdirSync('/proc')
      .filter((name) => /^\d+$/.test(name))
      .map(Number);
  } catch {
    // Not Linux.
    return [];
  }
}

const readArguments = (pid: number): readonly string[] => readProcessFile(pid, 'cmdline').split('\0');

/** Empty for a process that has ended. */
function readProcessFile(pid: number, name: string): string {
  try {
    return readFileSync(`/proc/${pid}/${name}`, 'latin1');
  } catch {
    return '';
  }
}

/** proc_pid_stat(5): the fourth field. The second one, in parentheses, may contain anything. */
function readParent(pid: number): number {
  const stat = readProcessFile(pid, 'stat');
  const [, parent = '0'] = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  return Number(parent);
}
