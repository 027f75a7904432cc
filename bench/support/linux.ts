import { readdirSync, readFileSync } from 'node:fs';

/** /proc reports CPU times in clock ticks of 10 ms. */
const TICKS_PER_SECOND = 100;

const readOrEmpty = (file: string): string => {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    // The process has exited.
    return '';
  }
};

/** A process and its running descendants. */
export function listProcessTree(pid: number): number[] {
  let tasks: string[] = [];
  try {
    tasks = readdirSync(`/proc/${pid}/task`);
  } catch {
    return [];
  }
  const children = tasks.flatMap((task) =>
    readOrEmpty(`/proc/${pid}/task/${task}/children`).split(' ').filter(Boolean).map(Number),
  );
  return [pid, ...children.flatMap(listProcessTree)];
}

/** Fields of /proc/<pid>/stat from the third on; the second, a name, may contain spaces and parentheses. */
const readStat = (pid: number | 'self'): number[] =>
  (readOrEmpty(`/proc/${pid}/stat`).split(') ').at(-1) ?? '').split(' ').map(Number);

/** User and system time. */
export const cpuSeconds = (pids: readonly number[]): number =>
  pids.reduce((sum, pid) => {
    const fields = readStat(pid);
    return sum + ((fields[11] ?? 0) + (fields[12] ?? 0)) / TICKS_PER_SECOND;
  }, 0);

/** The same in nanosecond resolution, for running threads only: for samples shorter than a second. */
export const preciseCpuSeconds = (pids: readonly number[]): number =>
  pids.reduce((sum, pid) => {
    const threads = readdirSync(`/proc/${pid}/task`);
    return threads.reduce(
      (own, thread) => own + Number(readOrEmpty(`/proc/${pid}/task/${thread}/schedstat`).split(' ', 1)[0]) / 1e9,
      sum,
    );
  }, 0);

/** CPU time of this process and of its exited children, such as the load. */
export const ownCpuSeconds = (): number =>
  readStat('self')
    .slice(11, 15)
    .reduce((sum, ticks) => sum + ticks, 0) / TICKS_PER_SECOND;

export const residentMegabytes = (pids: readonly number[]): number =>
  pids.reduce((sum, pid) => {
    const [, kilobytes = '0'] = /VmRSS:\s+(\d+) kB/.exec(readOrEmpty(`/proc/${pid}/status`)) ?? [];
    return sum + (Number(kilobytes) * 1_024) / 1e6;
  }, 0);

export interface MachineTimes {
  /** Used by all processes of the machine. */
  readonly busy: number;
  /** Taken by other virtual machines (steal time). */
  readonly stolen: number;
}

/** The first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal. */
export function machineTimes(): MachineTimes {
  const [, user = 0, nice = 0, system = 0, , , , , stolen = 0] = (readOrEmpty('/proc/stat').split('\n')[0] ?? '')
    .split(/\s+/)
    .map(Number);
  return { busy: (user + nice + system) / TICKS_PER_SECOND, stolen: stolen / TICKS_PER_SECOND };
}

export const loadAverage = (): string => readOrEmpty('/proc/loadavg').split(' ').slice(0, 3).join(' ');

/** Memory that belongs to these processes alone, and all that is resident: programs and libraries are shared. */
export function readMemory(pids: readonly number[]): { readonly anonymous: number; readonly resident: number } {
  const sum = (name: string): number =>
    pids.reduce((total, pid) => {
      const [, kilobytes = '0'] =
        new RegExp(`^${name}:\\s+(\\d+) kB`, 'm').exec(readOrEmpty(`/proc/${pid}/smaps_rollup`)) ?? [];
      return total + (Number(kilobytes) * 1_024) / 1e6;
    }, 0);
  return { anonymous: sum('Anonymous'), resident: sum('Rss') };
}
