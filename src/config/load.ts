import { dirname, resolve } from 'node:path';
import * as z from 'zod';
import { readFileBytes } from '../lib/read-file.ts';
import { collectProblems, createDescriber, locateMessage } from './describe-finding.ts';
import { listFileSettings, listReloadedFiles, resolveSecretFiles } from './file-settings.ts';
import { type ConfigProblem, WHOLE_FILE } from './format-problems.ts';
import { convertIssues } from './issues.ts';
import { applyEnvironment, applyFlags } from './overrides.ts';
import { parseForCrossChecks, parseForFileChecks } from './parse-invalid-settings.ts';
import { parseYaml, type YamlProblem } from './parse-yaml.ts';
import { applyFile, createRawSettings, type Environment, type Finding, type RawSettings } from './raw-settings.ts';
import {
  CROSS_CHECKS,
  createSections,
  createSettingsSchema,
  PARSE_OPTIONS,
  type Settings,
  type SettingsSections,
} from './schema.ts';
import { formatPath } from './setting-path.ts';

export type { ConfigProblem } from './format-problems.ts';
export { formatProblem, formatProblems } from './format-problems.ts';

const DEFAULT_FILE = '/etc/gatehouse/gatehouse.yaml';
const MAX_FILE_BYTES = 8 * 1_048_576;

export interface LoadOptions {
  /** The file named on the command line; overrides GATEHOUSE_CONFIG and the default. */
  readonly file?: string;
  readonly env: Environment;
  /** `path=value`; override everything else. */
  readonly overrides?: readonly string[];
  readonly cwd?: string;
  /** An earlier content of the file, to use instead of the current one. */
  readonly text?: string;
}

interface LoadResult {
  /** For messages: the file, or the variable that contains the configuration. */
  readonly name: string;
  /** Every file that a reload reads, as far as it is known: a change of one causes a reload. */
  readonly files: readonly string[];
}

export interface LoadedConfig extends LoadResult {
  readonly ok: true;
  /** Content of the file; undefined if the configuration is in a variable. */
  readonly text: string | undefined;
  readonly settings: Settings;
}

export interface InvalidConfig extends LoadResult {
  readonly ok: false;
  readonly problems: readonly ConfigProblem[];
  /** Sections and entries that could not be cross-checked because they are invalid themselves. */
  readonly unchecked: readonly string[];
}

/** A configuration with what `gatehouse check` needs to report more about it. */
export type Inspection = ReturnType<typeof inspectSettings>;

interface FolderSchema {
  readonly folder: string;
  readonly sections: SettingsSections;
  readonly schema: ReturnType<typeof createSettingsSchema>;
}
/** Creating the schema takes longer than parsing. A weak reference: it is 1.5 MB that are rarely needed again. */
let lastSchema: WeakRef<FolderSchema> | undefined;

function schemaFor(folder: string): FolderSchema {
  const last = lastSchema?.deref();
  if (last?.folder === folder) return last;
  const sections = createSections(folder);
  const created = { folder, sections, schema: createSettingsSchema(sections) };
  lastSchema = new WeakRef(created);
  return created;
}

/** Reads and validates the configuration. Returns the settings, or all problems at once. */
export const loadSettings = (options: LoadOptions): LoadedConfig | InvalidConfig => inspectSettings(options).result;

export function inspectSettings(options: LoadOptions) {
  const source = readSource(options);
  const raw = createRawSettings();
  const files = source.file === undefined ? [] : [source.file];
  const describe = createDescriber(raw, source.yaml, source.ok ? source.findPosition : () => undefined);
  const inspect = (result: LoadedConfig | InvalidConfig, parseUsable: () => Settings | undefined) => {
    const fileSettings = source.ok ? listFileSettings(raw.tree, source.folder) : [];
    const byFile = Map.groupBy(fileSettings, ({ file }) => file);
    return {
      result,
      /** The settings without their invalid values, for checking the files that they name. */
      parseUsable,
      /** The settings that name a file or a folder. */
      fileSettings,
      /** Adds setting and line to a message that begins with a setting or a file, and a colon. */
      locate: (message: string) => locateMessage(message, byFile, describe),
    };
  };
  const fail = (unchecked: readonly string[], secretFiles: readonly string[] = []): InvalidConfig => ({
    ok: false,
    name: source.name,
    files: [...files, ...secretFiles],
    problems: collectProblems(raw.findings, describe),
    unchecked,
  });

  if (!source.ok) {
    raw.findings.push(...source.problems.map(toFinding));
    // A file that could not be read has no other settings to check.
    const isRead = source.problems.some(({ line }) => line !== undefined);
    return inspect(fail(isRead ? [WHOLE_FILE] : []), () => undefined);
  }
  raw.findings.push(...source.duplicates.map(toFinding));
  applyFile(raw, source.value, options.env);
  applyEnvironment(raw, options.env);
  applyFlags(raw, options.overrides ?? []);
  const secretFiles = resolveSecretFiles(raw, source.folder);

  const { sections, schema } = schemaFor(source.folder);
  const parsed = schema.safeParse(raw.tree, PARSE_OPTIONS);
  if (parsed.success && raw.findings.length === 0) {
    const loaded: LoadedConfig = {
      ok: true,
      name: source.name,
      text: source.text,
      files: [...files, ...secretFiles, ...listReloadedFiles(parsed.data).map(({ file }) => file)],
      settings: parsed.data,
    };
    return inspect(loaded, () => parsed.data);
  }
  if (parsed.success) return inspect(fail([], secretFiles), () => parsed.data);

  const { misspelledSections } = raw;
  const { valid, unchecked } = parseForCrossChecks(sections, raw.tree, misspelledSections);
  // Without the cross-checks, which run below.
  const { issues } =
    misspelledSections.size === 0
      ? parsed.error
      : (z.strictObject(sections).safeParse(raw.tree, PARSE_OPTIONS).error ?? { issues: [] });
  const findings = [...convertIssues(raw, issues)];
  for (const rule of CROSS_CHECKS) rule.run(valid, (path, message) => findings.push({ path, message }));
  const isReported = createReportedFilter(raw);
  for (const finding of findings) if (!isReported(finding)) raw.findings.push(finding);
  return inspect(fail(unchecked, secretFiles), () => parseForFileChecks(sections, raw.tree));
}

const toFinding = (problem: YamlProblem): Finding => ({ path: [], showsLine: true, ...problem });

type Source =
  | ({ readonly ok: true; readonly folder: string; readonly text: string | undefined } & SourceName &
      Extract<ReturnType<typeof parseYaml>, { ok: true }>)
  | ({ readonly ok: false; readonly problems: readonly YamlProblem[] } & SourceName);

interface SourceName {
  readonly name: string;
  readonly file?: string;
  /** The YAML text, for excerpts; undefined if it could not be read. */
  readonly yaml?: string;
}

function readSource({ file, env, cwd = process.cwd(), text }: LoadOptions): Source {
  const { GATEHOUSE_CONFIG: fileFromEnv, GATEHOUSE_CONFIG_YAML: yamlFromEnv } = env;
  if (file === undefined && yamlFromEnv !== undefined) {
    const name = 'GATEHOUSE_CONFIG_YAML';
    if (fileFromEnv !== undefined)
      return {
        ok: false,
        name,
        problems: [{ message: 'GATEHOUSE_CONFIG and GATEHOUSE_CONFIG_YAML are both set; unset one of them' }],
      };
    const yaml = parseYaml(yamlFromEnv);
    const source = { name, yaml: yamlFromEnv };
    return yaml.ok ? { ...yaml, ...source, folder: cwd, text: undefined } : { ...yaml, ...source };
  }
  const path = resolve(cwd, file ?? (fileFromEnv || DEFAULT_FILE));
  let content: string;
  try {
    content = text ?? new TextDecoder('utf-8', { fatal: true }).decode(readFileBytes(path, MAX_FILE_BYTES));
  } catch (error) {
    const problem = error instanceof TypeError ? 'is not UTF-8 text' : (error as Error).message;
    const isDefaultFile = file === undefined && !fileFromEnv;
    const hint = isDefaultFile ? '; set another one with --config FILE or GATEHOUSE_CONFIG' : '';
    return { ok: false, name: path, file: path, problems: [{ message: `${path} ${problem}${hint}` }] };
  }
  const yaml = parseYaml(content);
  const source = { name: path, file: path, yaml: content };
  return yaml.ok ? { ...yaml, ...source, folder: dirname(path), text: content } : { ...yaml, ...source };
}

/** Is a finding about a value that has already been reported, or about a group that lacks it for that reason? */
function createReportedFilter({ invalidPaths }: RawSettings): (finding: Finding) => boolean {
  const reported = new Set(invalidPaths.map(formatPath));
  const groups = new Set(invalidPaths.filter(({ length }) => length > 1).map((path) => formatPath(path.slice(0, -1))));
  return ({ path }) =>
    groups.has(formatPath(path)) || path.some((_, at) => reported.has(formatPath(path.slice(0, at + 1))));
}
