import { largest } from '../lib/extremes.ts';
import type { CommandContext } from './command.ts';

/** Prints a table; all rows have as many cells as the first, which usually is the header. */
export function printColumns({ stdout }: CommandContext, rows: readonly (readonly string[])[]): void {
  const widths = (rows[0] ?? []).map((_, column) => largest(rows.map((row) => row[column]?.length ?? 0)));
  for (const row of rows) {
    const cells = row.map((cell, column) => cell.padEnd(widths[column] ?? 0));
    stdout(`${cells.join('  ').trimEnd()}\n`);
  }
}
