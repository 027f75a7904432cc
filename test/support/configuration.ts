import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { onTestFinished } from 'vitest';
import {
  type ConfigProblem,
  type InvalidConfig,
  type LoadedConfig,
  type LoadOptions,
  loadSettings,
} from '../../src/config/load.ts';

/** The sample of the configuration contract, with its ellipses filled in. */
export const SAMPLE = readFileSync(new URL('../config/sample-configuration.yaml', import.meta.url), 'utf8');

/** A folder that is gone after the test. */
export function testFolder(): string {
  const directory = mkdtempSync(join(tmpdir(), 'gatehouse-'));
  onTestFinished(() => rmSync(directory, { recursive: true, force: true }));
  return directory;
}

/** Loads this text as the file of a folder of its own. */
export function loadText(
  text: string,
  {
    files = {},
    ...request
  }: Partial<LoadOptions> & { readonly files?: Readonly<Record<string, string>> } = {},
): (LoadedConfig | InvalidConfig) & { readonly folder: string } {
  const directory = testFolder();
  for (const [name, content] of Object.entries(files)) writeFileSync(join(directory, name), content);
  const file = join(directory, 'gatehouse.yaml');
  writeFileSync(file, text);
  return { ...loadSettings({ file, env: {}, ...request }), folder: directory };
}

/** The settings of a configuration that must be sound. */
export function loadValid(...[text, options]: Parameters<typeof loadText>): LoadedConfig['settings'] {
  const result = loadText(text, options);
  if (!result.ok) throw new Error(`not sound: ${JSON.stringify(result.problems)}`);
  return result.settings;
}

/** The problems of a configuration that must have some. */
export function loadProblems(...[text, options]: Parameters<typeof loadText>): readonly ConfigProblem[] {
  const result = loadText(text, options);
  if (result.ok) throw new Error('valid, but problems were expected');
  return result.problems;
}

/** The least that can be started: plain HTTP behind something else. */
export const MINIMAL_CONFIG = 'listen: { behindTls: true }\n';
