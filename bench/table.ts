/**
 * Writes the latest figures of `npm run bench` (bench/results/proxy.json, or the given file) into docs/performance.md, between
 * its two markers: `npm run bench:table`.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Figure } from './support/report.ts';
import { type BenchResult, rowTable } from './support/rows.ts';

const BEGIN = '<!-- figures of npm run bench: written by npm run bench:table -->';
const END = '<!-- end of the figures -->';

const root = join(import.meta.dirname, '..');
const [file = join(root, 'bench/results/proxy.json')] = process.argv.slice(2);
const page = join(root, 'docs/performance.md');
const result = JSON.parse(readFileSync(file, 'utf8')) as BenchResult;

const formatValue = (value: number, unit: string): string => `${value.toFixed(unit === 'MB' ? 0 : 2)} ${unit}`;
const verdict = (met: boolean | undefined): string => (met === undefined ? '' : met ? 'met' : '**missed**');

function ratioTable(ratios: BenchResult['ratios']): string {
  const row = ({ name, value, unit, spread, aim, met }: Figure & { readonly met: boolean | undefined }): string[] => [
    name,
    spread === undefined
      ? formatValue(value, unit)
      : `${formatValue(value, unit)} (${spread.map((end) => end.toFixed(2)).join(' – ')})`,
    aim === undefined ? '' : `${aim.is} ${aim.value.toFixed(2)}`,
    verdict(met),
  ];
  return [['ratio', 'median (from – to)', 'aim', ''], ['---', '---', '---', '---'], ...ratios.map(row)]
    .map((cells) => `| ${cells.join(' | ')} |`)
    .join('\n');
}

const { machine, settings, skipped } = result;
const text = `${BEGIN}
${result.date.slice(0, 10)}, commit ${result.commit}: ${machine.cores} cores of ${machine.cpu} (${machine.arch}), ${machine.memoryGiB} GiB, Node
${machine.node.slice(1)}, ${settings.rounds} rounds of ${settings.seconds} s${settings.quick ? ' (`--quick`)' : ''}, load average ${machine.loadAverage.before} before and ${machine.loadAverage.after} after.

${rowTable(result.rows)}

${ratioTable(result.ratios)}
${skipped.length === 0 ? '' : `\nNot measured: ${skipped.join('; ')}.\n`}
${END}`;

const before = readFileSync(page, 'utf8');
const [from, to] = [before.indexOf(BEGIN), before.indexOf(END)];
if (from < 0 || to < from) throw new Error(`${page} lacks the markers for the figures`);
writeFileSync(page, before.slice(0, from) + text + before.slice(to + END.length));
process.stdout.write(`written to docs/performance.md: ${result.rows.length} rows, ${result.ratios.length} ratios\n`);
