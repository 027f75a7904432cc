import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { onTestFinished } from 'vitest';
import {
  type Loaded,
  type LoadRequest,
  loadSettings,
  type Problem,
  type Problems,
} from '../../src/config/load.ts';

/** The sample of the configuration contract, with its ellipses filled in. */
export const SAMPLE = readFileSync(
  new URL('../behaviour/sample-configuration.yaml', import.meta.url),
  'utf8',
);

/** A folder that is gone after the test. */
export function folder(): string {
  const made = mkdtempSync(join(tmpdir(), 'gatehouse-'));
  onTestFinished(() => rmSync(made, { recursive: true, force: true }));
  return made;
}

/** Loads this text as the file of a folder of its own. */
export function load(
  text: string,
  {
    files = {},
    ...request
  }: Partial<LoadRequest> & { readonly files?: Readonly<Record<string, string>> } = {},
): (Loaded | Problems) & { readonly folder: string } {
  const place = folder();
  for (const [name, content] of Object.entries(files)) writeFileSync(join(place, name), content);
  const file = join(place, 'gatehouse.yaml');
  writeFileSync(file, text);
  return { ...loadSettings({ file, env: {}, ...request }), folder: place };
}

/** The settings of a configuration that must be sound. */
export function sound(...[text, options]: Parameters<typeof load>): Loaded['settings'] {
  const result = load(text, options);
  if (!result.ok) throw new Error(`not sound: ${JSON.stringify(result.problems)}`);
  return result.settings;
}

/** The problems of a configuration that must have some. */
export function problemsIn(...[text, options]: Parameters<typeof load>): readonly Problem[] {
  const result = load(text, options);
  if (result.ok) throw new Error('sound, though it should not be');
  return result.problems;
}

/** The least that can be started: plain HTTP behind something else. */
export const LEAST = 'listen: { behindTls: true }\n';
