import type { Progress, ReportProgress } from '../ports/progress.ts';
import type { CommandContext, Option } from './command.ts';

export const QUIET_OPTION: Option = { help: 'do not show progress' };

/** Milliseconds. Nothing is shown for work that is done within the first interval. */
const INTERVAL_MS = 5_000;

/** Shows progress on standard error: a line every few seconds. */
export async function withProgressLine<T>(
  { flag, stderr }: Pick<CommandContext, 'stderr' | 'flag'>,
  work: (report: ReportProgress) => Promise<T>,
  now: () => number = () => performance.now(),
): Promise<T> {
  if (flag('quiet')) return work(() => {});
  let showAt = now() + INTERVAL_MS;
  let step = { name: '', startedAt: 0 };
  return work((progress) => {
    const time = now();
    if (progress.step !== step.name) step = { name: progress.step, startedAt: time };
    if (time < showAt) return;
    showAt = time + INTERVAL_MS;
    stderr(`${formatProgress(progress, (time - step.startedAt) / 1_000)}\n`);
  });
}

/** `verifying the MAC: 512 MiB of 2 GiB (25 %), 210 MiB/s`. */
export function formatProgress({ step, unit, done, total }: Progress, seconds: number): string {
  const format = unit === 'bytes' ? formatBytes : formatCount;
  const amount = `${format(done)}${unit === 'records' && total === undefined ? ' records' : ''}`;
  const share =
    total === undefined || total === 0
      ? ''
      : ` of ${format(total)}${unit === 'records' ? ' records' : ''} (${Math.min(100, Math.floor((done / total) * 100))} %)`;
  const rate = seconds >= 0.5 ? `, ${format(Math.round(done / seconds))}/s` : '';
  return `${step}: ${amount}${share}${rate}`;
}

const formatCount = (count: number): string => count.toLocaleString('en');

const BYTE_UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB'] as const;

function formatBytes(bytes: number): string {
  const power = bytes < 1 ? 0 : Math.min(BYTE_UNITS.length - 1, Math.floor(Math.log2(bytes) / 10));
  const value = bytes / 1_024 ** power;
  return `${value >= 100 || power === 0 ? Math.round(value) : value.toFixed(1)} ${BYTE_UNITS[power]}`;
}
