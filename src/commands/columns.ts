import { printable } from '../client/printable.ts';
import type { Context } from './command.ts';

/** Rows below each other, each column as wide as its widest cell; the first row names them. */
export function printColumns(context: Context, rows: readonly (readonly string[])[]): void {
  const widths = (rows[0] ?? []).map((_, column) => Math.max(...rows.map((row) => row[column]?.length ?? 0)));
  for (const row of rows)
    context.stdout(
      `${row
        .map((cell, column) => cell.padEnd(widths[column] ?? 0))
        .join('  ')
        .trimEnd()}\n`,
    );
}

/** Text of a server, for a cell. */
export const plain = (value: unknown): string => printable(value);
