import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { stringify } from 'yaml';
import { type Program, program } from '../../tools/chart/install.ts';
import { CHART } from './manifests.ts';

export interface CommandResult {
  readonly status: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

/** Runs helm with its own folders, independent of the caller's repositories, plugins and clusters. */
export function run(
  name: Program,
  args: readonly string[],
  input?: string,
  more: Readonly<Record<string, string>> = {},
): CommandResult {
  const home = mkdtempSync(join(tmpdir(), 'gatehouse-chart-'));
  try {
    const { status, stdout, stderr } = spawnSync(program(name), [...args], {
      encoding: 'utf8',
      timeout: 110_000,
      maxBuffer: 64 * 1_024 * 1_024,
      env: {
        PATH: process.env['PATH'] ?? '',
        HOME: home,
        XDG_CACHE_HOME: home,
        XDG_CONFIG_HOME: home,
        ...more,
      },
      ...(input !== undefined && { input }),
    });
    return { status, stdout, stderr };
  } finally {
    rmSync(home, { recursive: true, force: true });
  }
}

export const RELEASE = ['gate', CHART, '--namespace', 'shop'] as const;

export function template(file: string, more: readonly string[] = []): string {
  const { status, stdout, stderr } = run('helm', ['template', ...RELEASE, '-f', file, ...more]);
  if (status !== 0) throw new Error(stderr);
  return stdout;
}

/** Renders a values file of the matrix with changes. */
export function templateWith(file: string, changes: unknown, more: readonly string[] = []): CommandResult {
  const folder = mkdtempSync(join(tmpdir(), 'gatehouse-values-'));
  try {
    const changed = join(folder, 'changes.yaml');
    writeFileSync(changed, stringify(changes));
    return run('helm', ['template', ...RELEASE, '-f', file, '-f', changed, ...more]);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}
