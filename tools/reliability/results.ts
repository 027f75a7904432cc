import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Figures } from '../../test/support/figures.ts';

export interface RowResult {
  readonly date: string;
  readonly commit: string;
  readonly machine: string;
  readonly seconds: number;
  /** One-minute load average before and after. */
  readonly load: readonly [number, number];
  readonly passed: boolean;
  /** Of vitest; absent for other programs. */
  readonly tests?: { readonly passed: number; readonly failed: number; readonly skipped: number };
  readonly figures: Readonly<Record<string, Figures>>;
}

export type ReliabilityResults = Readonly<Record<string, RowResult>>;

export const RESULTS_FILE = fileURLToPath(new URL('../../docs/reliability.json', import.meta.url));

export const readResults = (): ReliabilityResults =>
  JSON.parse(readFileSync(RESULTS_FILE, 'utf8')) as ReliabilityResults;
