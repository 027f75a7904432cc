import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

export type Figures = Readonly<Record<string, number | string>>;

/** Prints the figures of a test. `npm run reliability` reads them from files. */
export function recordFigures(name: string, figures: Figures): void {
  const width = Math.max(...Object.keys(figures).map((key) => key.length));
  const lines = Object.entries(figures).map(([key, value]) => `  ${key.padEnd(width)}  ${value}`);
  console.info([name, ...lines].join('\n'));
  const folder = process.env['FIGURES_FOLDER'];
  if (folder === undefined) return;
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, `${name}.json`), `${JSON.stringify({ name, figures }, undefined, 2)}\n`);
}
