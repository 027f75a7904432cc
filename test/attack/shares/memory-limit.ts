import { mkdirSync, rmdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

/** Runs a command with the memory limit of a container, where this process may create control groups. */
export interface MemoryLimit {
  /** To be put before the command. */
  readonly wrapper: readonly string[];
  remove(): void;
}

const HIERARCHIES = [
  { folder: '/sys/fs/cgroup/memory', limit: 'memory.limit_in_bytes' },
  { folder: '/sys/fs/cgroup', limit: 'memory.max' },
] as const;

/** The test does not read the access log: a gateway waits for the reader of its log. */
const WITHOUT_REQUESTS = `grep --line-buffered -v '"event":"request"'`;

export function limitMemory(bytes: number): MemoryLimit {
  for (const { folder, limit } of HIERARCHIES) {
    const group = join(folder, `gatehouse-test-${process.pid}-${crypto.randomUUID().slice(0, 8)}`);
    try {
      mkdirSync(group);
    } catch {
      continue;
    }
    try {
      writeFileSync(join(group, limit), String(bytes));
      return {
        wrapper: ['bash', '-c', `(echo $BASHPID > ${group}/cgroup.procs; exec "$@") | ${WITHOUT_REQUESTS}`, 'sh'],
        remove: () => rmdirSync(group),
      };
    } catch {
      rmdirSync(group);
    }
  }
  return { wrapper: ['sh', '-c', `"$@" | ${WITHOUT_REQUESTS}`, 'sh'], remove() {} };
}
