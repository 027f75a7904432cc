import type { Progress, ReportProgress } from '../ports/progress.ts';
import type { CommandContext, Option } from './command.ts';
import { getColumns } from './style.ts';

export const QUIET_OPTION: Option = { help: 'do not show progress' };

/** Nothing is shown for work that is done within the first of these times, in milliseconds. */
const TIMES = {
  terminal: { first: 1_000, next: 100 },
  lines: { first: 5_000, next: 5_000 },
} as const;

type Context = Pick<CommandContext, 'stderr' | 'flag' | 'env' | 'isErrorTerminal' | 'errorColumns'>;

/** Shows progress on standard error: one line that is updated on a terminal, otherwise a line every few seconds. */
export async function withProgressLine<T>(
  context: Context,
  work: (report: ReportProgress) => Promise<T>,
  now: () => number = () => performance.now(),
): Promise<T> {
  if (context.flag('quiet')) return work(() => {});
  const isTerminal = context.isErrorTerminal === true && context.env['TERM'] !== 'dumb';
  const { first, next } = isTerminal ? TIMES.terminal : TIMES.lines;
  const columns = getColumns(true, context.errorColumns) - 1;
  let showAt = now() + first;
  let step = { name: '', startedAt: 0 };
  let shown = 0;
  /** Spaces instead of an escape sequence: this is not about colours. */
  const show = (text: string): void => {
    context.stderr(`\r${text.padEnd(shown)}${text === '' ? '\r' : ''}`);
    shown = text.length;
  };
  const report: ReportProgress = (progress) => {
    const time = now();
    if (progress.step !== step.name) step = { name: progress.step, startedAt: time };
    if (time < showAt) return;
    showAt = time + next;
    const text = formatProgress(progress, (time - step.startedAt) / 1_000);
    if (isTerminal) show(text.slice(0, columns));
    else context.stderr(`${text}\n`);
  };
  try {
    return await work(report);
  } finally {
    if (shown > 0) show('');
  }
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
