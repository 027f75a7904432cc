import { readFileSync } from 'node:fs';

/** Anonymous resident memory of a process in bytes (Linux). */
export function anonymousMemory(pid: number): number {
  const kib = /^RssAnon:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1];
  if (kib === undefined) throw new Error(`no RssAnon for process ${pid}`);
  return Number(kib) * 1_024;
}
