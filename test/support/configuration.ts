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

/** The sample of the configuration reference, with its ellipses filled in. */
export const SAMPLE = readFileSync(new URL('../config/sample-configuration.yaml', import.meta.url), 'utf8');

/** A folder that is removed after the test. */
export function testFolder(): string {
  const directory = mkdtempSync(join(tmpdir(), 'gatehouse-'));
  onTestFinished(() => rmSync(directory, { recursive: true, force: true }));
  return directory;
}

/** Writes the text to a file in a new folder and loads it. */
export function loadText(
  text: string,
  { files = {}, ...request }: Partial<LoadOptions> & { readonly files?: Readonly<Record<string, string>> } = {},
): (LoadedConfig | InvalidConfig) & { readonly folder: string } {
  const directory = testFolder();
  for (const [name, content] of Object.entries(files)) writeFileSync(join(directory, name), content);
  const file = join(directory, 'gatehouse.yaml');
  writeFileSync(file, text);
  return { ...loadSettings({ file, env: {}, ...request }), folder: directory };
}

/** The settings of a configuration; throws if it is invalid. */
export function loadValid(...[text, options]: Parameters<typeof loadText>): LoadedConfig['settings'] {
  const result = loadText(text, options);
  if (!result.ok) throw new Error(`invalid configuration: ${JSON.stringify(result.problems)}`);
  return result.settings;
}

/** The problems of a configuration; throws if it is valid. */
export function loadProblems(...[text, options]: Parameters<typeof loadText>): readonly ConfigProblem[] {
  const result = loadText(text, options);
  if (result.ok) throw new Error('valid, but problems were expected');
  return result.problems;
}

/** The smallest configuration that starts: plain HTTP behind a TLS terminator. */
export const MINIMAL_CONFIG = 'listen: { behindTls: true }\n';

/** The required fields of a user in a directory. */
export const USER = 'id: "{5f0c2a52-6d0e-4d0c-9c3e-0d5a3c1f2b11}", name: alice';
