import { statSync } from 'node:fs';
import type { ReportProgress } from '../../ports/progress.ts';

const POLL_MS = 200;

/** Reports the growth of a file while another thread writes it. */
export async function reportGrowth<T>(
  file: string,
  { step, total, report }: { readonly step: string; readonly total?: number; readonly report: ReportProgress },
  write: () => Promise<T>,
): Promise<T> {
  const timer = setInterval(() => {
    const done = readSize(file);
    report({ step, unit: 'bytes', done, ...(total !== undefined && { total }) });
  }, POLL_MS);
  try {
    return await write();
  } finally {
    clearInterval(timer);
  }
}

/** Returns zero if the size cannot be read: the file may not exist yet, and the writer reports other errors. */
function readSize(file: string): number {
  try {
    return statSync(file).size;
  } catch {
    return 0;
  }
}
