import { dirname, resolve } from 'node:path';
import { readFileBytes } from '../lib/read-file.ts';
import type { Logger } from '../observability/logger.ts';
import { redactText } from '../observability/redact.ts';
import {
  applyFile,
  createDraft,
  type Draft,
  type Environment,
  type Finding,
  reportDoubleNames,
} from './draft.ts';
import { convertIssues } from './issues.ts';
import { applyEnvironment, applyFlags } from './overrides.ts';
import { parseYaml } from './parse-yaml.ts';
import {
  CROSS_CHECKS,
  createSections,
  createSettingsSchema,
  PARSE_OPTIONS,
  type Settings,
  type SettingsSections,
} from './schema.ts';
import { resolveSecretFiles } from './secret-files.ts';
import { comparePaths, formatPath, parsePath, type SettingPath, startsWithPath } from './setting-path.ts';
import { parseValidSections } from './valid-sections.ts';

const DEFAULT_FILE = '/etc/gatehouse/gatehouse.yaml';
const MAX_FILE_BYTES = 8 * 1_048_576;

export interface LoadOptions {
  /** The file named on the command line; overrides GATEHOUSE_CONFIG and the default. */
  readonly file?: string;
  readonly env: Environment;
  /** `path=value`; override everything else. */
  readonly overrides?: readonly string[];
  readonly cwd?: string;
  /** A former content of the file, to use instead of the current one. */
  readonly text?: string;
}

interface LoadResult {
  /** For messages: the file, or the variable that contains the configuration. */
  readonly name: string;
  /** Every file that was read or could not be read: a reload watches them. */
  readonly files: readonly string[];
}

export interface LoadedConfig extends LoadResult {
  readonly ok: true;
  /** Content of the file; undefined if the configuration is in a variable. */
  readonly text: string | undefined;
  readonly settings: Settings;
  /** Settings that are given under a former name. */
  readonly deprecations: readonly ConfigProblem[];
}

export interface InvalidConfig extends LoadResult {
  readonly ok: false;
  readonly problems: readonly ConfigProblem[];
  /** Sections and entries that could not be cross-checked because they are invalid themselves. */
  readonly unchecked: readonly string[];
}

export interface ConfigProblem {
  /** Such as `integrations[0].scope`; empty for the whole configuration. */
  readonly path: string;
  readonly message: string;
  readonly line?: number;
  /** The variable, flag or setting that the value comes from, if it is not in the file. */
  readonly from?: string;
}

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
export function loadSettings(options: LoadOptions): LoadedConfig | InvalidConfig {
  const source = readSource(options);
  const draft = createDraft();
  const files = source.file === undefined ? [] : [source.file];
  const fail = (unchecked: readonly string[], secretFiles: readonly string[] = []): InvalidConfig => ({
    ok: false,
    name: source.name,
    files: [...files, ...secretFiles],
    problems: collectProblems(draft, draft.findings, source.ok ? source.findLine : () => undefined),
    unchecked,
  });

  if (!source.ok) {
    draft.findings.push(...source.problems.map((problem) => ({ path: [], ...problem })));
    // A file that could not be read has no other settings to check.
    return fail(source.problems.some(({ line }) => line !== undefined) ? ['everything else'] : []);
  }
  applyFile(draft, source.value, options.env);
  applyEnvironment(draft, options.env);
  applyFlags(draft, options.overrides ?? []);
  reportDoubleNames(draft);
  const secretFiles = resolveSecretFiles(draft, source.folder);

  const { sections, schema } = schemaFor(source.folder);
  const parsed = schema.safeParse(draft.tree, PARSE_OPTIONS);
  if (parsed.success && parsed.data.listen.http2 === 'node')
    draft.deprecations.push({
      path: ['listen', 'http2'],
      message:
        "node is deprecated: Node's HTTP/2 server will be removed in the next release; write true, or report what keeps you from it",
    });
  if (parsed.success && draft.findings.length === 0)
    return {
      ok: true,
      name: source.name,
      text: source.text,
      files: [...files, ...secretFiles],
      settings: parsed.data,
      deprecations: collectProblems(draft, draft.deprecations, source.findLine),
    };
  if (parsed.success) return fail([], secretFiles);

  const { valid, unchecked } = parseValidSections(sections, draft.tree);
  const findings = [...convertIssues(draft, parsed.error.issues)];
  for (const rule of CROSS_CHECKS) rule.run(valid, (path, message) => findings.push({ path, message }));
  draft.findings.push(...findings.filter((finding) => !isAlreadyReported(draft, finding)));
  return fail(unchecked, secretFiles);
}

type Source =
  | ({ readonly ok: true; readonly folder: string; readonly text: string | undefined } & SourceName &
      Extract<ReturnType<typeof parseYaml>, { ok: true }>)
  | ({ readonly ok: false; readonly problems: readonly Omit<Finding, 'path'>[] } & SourceName);

interface SourceName {
  readonly name: string;
  readonly file?: string;
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
    return yaml.ok ? { ...yaml, name, folder: cwd, text: undefined } : { ...yaml, name };
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
  return yaml.ok
    ? { ...yaml, name: path, file: path, folder: dirname(path), text: content }
    : { ...yaml, name: path, file: path };
}

function collectProblems(
  draft: Draft,
  found: readonly Finding[],
  lineOf: (path: SettingPath) => number | undefined,
): readonly ConfigProblem[] {
  const seen = new Map<string, ConfigProblem>();
  const findings = found.toSorted((a, b) => comparePaths(a.path, b.path) || (a.line ?? 0) - (b.line ?? 0));
  for (const finding of findings) {
    const path = formatPath(finding.path);
    const template = draft.templates.get(path);
    const message = template
      ? finding.message.replaceAll(template.value || '\0', template.template)
      : finding.message;
    const from = finding.from ?? findOrigin(draft, finding.path);
    const line =
      finding.line ?? (from === undefined || isSettingPath(from) ? lineOf(finding.path) : undefined);
    const problem: ConfigProblem = {
      path,
      message: toSingleLine(redactText(message)),
      ...(line !== undefined && { line }),
      ...(from !== undefined && { from }),
    };
    seen.set(`${path}\0${problem.message}`, problem);
  }
  return [...seen.values()];
}

/** Control characters in values must not break lines or control a terminal. */
const toSingleLine = (text: string): string => text.replace(/\p{Cc}+/gu, ' ');

const isSettingPath = (from: string): boolean =>
  from !== '--set' && !from.startsWith('GATEHOUSE_') && parsePath(from) !== undefined;

/** Is this about a value that has already been reported, or about a group that lacks it for that reason? */
const isAlreadyReported = (draft: Draft, { path }: Finding): boolean =>
  draft.invalidPaths.some(
    (invalidPath) =>
      startsWithPath(path, invalidPath) ||
      (path.length > 0 && path.length === invalidPath.length - 1 && startsWithPath(invalidPath, path)),
  );

function findOrigin(draft: Draft, path: SettingPath): string | undefined {
  for (let length = path.length; length > 0; length -= 1) {
    const from = draft.origins.get(formatPath(path.slice(0, length)));
    if (from !== undefined) return from;
  }
  return undefined;
}

/** All problems as text: paths in one column, messages in the next. */
export function formatProblems({ name, problems, unchecked }: InvalidConfig): string {
  const width = Math.min(44, Math.max(...problems.map(({ path }) => path.length), 0));
  const lines = problems.map(
    (problem) =>
      `  ${problem.path.padEnd(width)}${width > 0 ? '  ' : ''}${problem.message}${formatSource(problem)}`,
  );
  const count = problems.length === 1 ? '1 problem' : `${problems.length} problems`;
  const rest = unchecked.length === 0 ? [] : [`  not cross-checked yet: ${unchecked.join(', ')}`];
  return `${[`gatehouse: ${count} in ${name}`, ...lines, ...rest].join('\n')}\n`;
}

function formatSource({ line, from }: ConfigProblem): string {
  const source = [from && `from ${from}`, line !== undefined && `line ${line}`].filter(Boolean).join(', ');
  return source === '' ? '' : ` (${source})`;
}

/** The warnings of `gatehouse check` about settings under former names. */
export const formatDeprecations = ({ deprecations }: LoadedConfig): string[] =>
  deprecations.map((problem) => `${problem.path}: ${problem.message}${formatSource(problem)}`);

/** The same as log events, at start and at each reload. */
export function logDeprecations({ deprecations }: LoadedConfig, log: Pick<Logger, 'warn'>): void {
  for (const { path, message, from } of deprecations)
    log.warn('setting_deprecated', { setting: path, note: message, ...(from !== undefined && { from }) });
}
