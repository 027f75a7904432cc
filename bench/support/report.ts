/** A measured value and its target. */
export interface Figure {
  readonly name: string;
  readonly value: number;
  readonly unit: string;
  /** Minimum and maximum over the rounds. */
  readonly spread?: readonly [number, number];
  readonly aim?: { readonly is: 'at least' | 'at most'; readonly value: number };
}

export const isMet = ({ value, aim }: Figure): boolean | undefined =>
  aim && (aim.is === 'at least' ? value >= aim.value : value <= aim.value);

export function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = Math.floor(sorted.length / 2);
  const upper = sorted[middle] ?? Number.NaN;
  return sorted.length % 2 === 1 ? upper : (upper + (sorted[middle - 1] ?? Number.NaN)) / 2;
}

export const figure = (name: string, values: readonly number[], unit: string, aim?: Figure['aim']): Figure => ({
  name,
  value: median(values),
  unit,
  ...(values.length > 1 && { spread: [Math.min(...values), Math.max(...values)] as const }),
  ...(aim && { aim }),
});

const formatNumber = (value: number): string =>
  value >= 100 ? Math.round(value).toLocaleString('en') : value.toFixed(value >= 10 ? 1 : 2);

export function table(figures: readonly Figure[]): string {
  const rows = figures.map((entry) => [
    entry.name,
    `${formatNumber(entry.value)} ${entry.unit}`.trim(),
    entry.spread === undefined ? '' : `${formatNumber(entry.spread[0])} – ${formatNumber(entry.spread[1])}`,
    entry.aim === undefined ? '' : `${entry.aim.is} ${formatNumber(entry.aim.value)}`,
    ({ true: 'met', false: 'MISSED', undefined: '' } as const)[`${isMet(entry)}`],
  ]);
  const all = [['figure', 'median', 'rounds from – to', 'aim', ''], ...rows];
  const widths = all[0]?.map((_, column) => Math.max(...all.map((row) => row[column]?.length ?? 0))) ?? [];
  return all
    .map((row) => `| ${row.map((cell, column) => cell.padEnd(widths[column] ?? 0)).join(' | ')} |`)
    .toSpliced(1, 0, `|${widths.map((width) => '-'.repeat(width + 2)).join('|')}|`)
    .join('\n');
}
