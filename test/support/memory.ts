import { readFileSync } from 'node:fs';

/** Bytes of memory of a process that belong to it alone (Linux). */
export function anonymousMemory(pid: number): number {
  const kib = /^RssAnon:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1];
  if (kib === undefined) throw new Error(`no RssAnon of process ${pid}`);
  return Number(kib) * 1_024;
}
