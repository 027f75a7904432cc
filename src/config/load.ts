import { readFileSync } from 'node:fs';
import { dirname, resolve } from 'node:path';
import { redactText } from '../observability/redact.ts';
import { crossCheck } from './cross-check.ts';
import { type Draft, type Environment, type Finding, newDraft, takeFile } from './draft.ts';
import { findingsOf } from './issues.ts';
import { applyEnvironment, applyFlags } from './overrides.ts';
import { salvage } from './salvage.ts';
import { ONCE, type Settings, settingsSchema, settingsSections } from './schema.ts';
import { resolveSecretFiles, whyUnreadable } from './secret-files.ts';
import { comparePaths, readPath, type SettingPath, startsWithPath, writePath } from './setting-path.ts';
import { readYaml } from './yaml-source.ts';

const DEFAULT_FILE = '/etc/gatehouse/gatehouse.yaml';
const MAX_FILE_BYTES = 8 * 1_048_576;

export interface LoadRequest {
  /** The file named on the command line, which counts before GATEHOUSE_CONFIG and the default place. */
  readonly file?: string;
  readonly env: Environment;
  /** `path=value`, stronger than everything else. */
  readonly overrides?: readonly string[];
  readonly cwd?: string;
  /** What the file said when it was sound: read instead of what it says now. */
  readonly text?: string;
}

interface Read {
  /** How messages call the configuration: its file, or the variable it came in. */
  readonly name: string;
  /** Every file that was read or asked for: what a reload has to watch. */
  readonly files: readonly string[];
}

export interface Loaded extends Read {
  readonly ok: true;
  /** The file as it was read; undefined when the configuration came in a variable. */
  readonly text: string | undefined;
  readonly settings: Settings;
}

export interface Problems extends Read {
  readonly ok: false;
  readonly problems: readonly Problem[];
  /** What could not be compared with the rest before its own problems are solved. */
  readonly unchecked: readonly string[];
}

export interface Problem {
  /** Such as `integrations[0].scope`; empty for the configuration as a whole. */
  readonly path: string;
  readonly message: string;
  readonly line?: number;
  /** The variable, flag or setting the value came from, when it is not in the file. */
  readonly from?: string;
}

/** Reads the configuration: settings, or everything that is wrong with it at once. Nothing else happens. */
export function loadSettings(request: LoadRequest): Loaded | Problems {
  const source = readSource(request);
  const draft = newDraft();
  const files = source.file === undefined ? [] : [source.file];
  const fail = (unchecked: readonly string[], secretFiles: readonly string[] = []): Problems => ({
    ok: false,
    name: source.name,
    files: [...files, ...secretFiles],
    problems: problemsOf(draft, source.ok ? source.lineOf : () => undefined),
    unchecked,
  });

  if (!source.ok) {
    draft.findings.push(...source.problems.map((problem) => ({ path: [], ...problem })));
    // Of a file that was not read there is nothing else to compare.
    return fail(source.problems.some(({ line }) => line !== undefined) ? ['everything else'] : []);
  }
  takeFile(draft, source.value, request.env);
  applyEnvironment(draft, request.env);
  applyFlags(draft, request.overrides ?? []);
  const secretFiles = resolveSecretFiles(draft, source.folder);

  const sections = settingsSections(source.folder);
  const parsed = settingsSchema(sections).safeParse(draft.tree, ONCE);
  if (parsed.success && draft.findings.length === 0)
    return {
      ok: true,
      name: source.name,
      text: source.text,
      files: [...files, ...secretFiles],
      settings: parsed.data,
    };
  if (parsed.success) return fail([], secretFiles);

  const { sound, unchecked } = salvage(sections, draft.tree);
  const found = [...findingsOf(draft, parsed.error.issues)];
  crossCheck(sound, (path, message) => found.push({ path, message }));
  draft.findings.push(...found.filter((finding) => !isEcho(draft, finding)));
  return fail(unchecked, secretFiles);
}

type Source =
  | ({ readonly ok: true; readonly folder: string; readonly text: string | undefined } & SourceName &
      Extract<ReturnType<typeof readYaml>, { ok: true }>)
  | ({ readonly ok: false; readonly problems: readonly Omit<Finding, 'path'>[] } & SourceName);

interface SourceName {
  readonly name: string;
  readonly file?: string;
}

function readSource({ file, env, cwd = process.cwd(), text }: LoadRequest): Source {
  const { GATEHOUSE_CONFIG: fromEnv, GATEHOUSE_CONFIG_YAML: inEnv } = env;
  if (file === undefined && inEnv !== undefined) {
    const name = 'GATEHOUSE_CONFIG_YAML';
    if (fromEnv !== undefined)
      return {
        ok: false,
        name,
        problems: [{ message: 'GATEHOUSE_CONFIG and GATEHOUSE_CONFIG_YAML are both set; unset one of them' }],
      };
    const yaml = readYaml(inEnv);
    return yaml.ok ? { ...yaml, name, folder: cwd, text: undefined } : { ...yaml, name };
  }
  const path = resolve(cwd, file ?? (fromEnv || DEFAULT_FILE));
  const read = text === undefined ? readText(path) : { text };
  if ('problem' in read) {
    const unasked = file === undefined && !fromEnv;
    const hint = unasked ? '; name yours by --config FILE or GATEHOUSE_CONFIG' : '';
    return { ok: false, name: path, file: path, problems: [{ message: `${read.problem}${hint}` }] };
  }
  const yaml = readYaml(read.text);
  return yaml.ok
    ? { ...yaml, name: path, file: path, folder: dirname(path), text: read.text }
    : { ...yaml, name: path, file: path };
}

function readText(path: string): { readonly text: string } | { readonly problem: string } {
  try {
    const bytes = readFileSync(path);
    if (bytes.length > MAX_FILE_BYTES) return { problem: `${path} is larger than 8 MiB` };
    return { text: new TextDecoder('utf-8', { fatal: true }).decode(bytes) };
  } catch (error) {
    if (error instanceof TypeError) return { problem: `${path} is not UTF-8 text` };
    return { problem: whyUnreadable(path, error) };
  }
}

function problemsOf(draft: Draft, lineOf: (path: SettingPath) => number | undefined): readonly Problem[] {
  const seen = new Map<string, Problem>();
  const findings = draft.findings.toSorted(
    (a, b) => comparePaths(a.path, b.path) || (a.line ?? 0) - (b.line ?? 0),
  );
  for (const finding of findings) {
    const path = writePath(finding.path);
    const template = draft.templates.get(path);
    const message = template
      ? finding.message.replaceAll(template.value || '\0', template.template)
      : finding.message;
    const from = finding.from ?? originOf(draft, finding.path);
    const line =
      finding.line ?? (from === undefined || isSettingPath(from) ? lineOf(finding.path) : undefined);
    const problem: Problem = {
      path,
      message: oneLine(redactText(message)),
      ...(line !== undefined && { line }),
      ...(from !== undefined && { from }),
    };
    seen.set(`${path}\0${problem.message}`, problem);
  }
  return [...seen.values()];
}

/** Nothing a file says may break a line or steer a terminal. */
const oneLine = (text: string): string => text.replace(/\p{Cc}+/gu, ' ');

const isSettingPath = (from: string): boolean =>
  from !== '--set' && !from.startsWith('GATEHOUSE_') && readPath(from) !== undefined;

/** Told already, by whoever found that a value is lost: about that value, or about the group that now lacks it. */
const isEcho = (draft: Draft, { path }: Finding): boolean =>
  draft.lost.some(
    (lost) =>
      startsWithPath(path, lost) ||
      (path.length > 0 && path.length === lost.length - 1 && startsWithPath(lost, path)),
  );

function originOf(draft: Draft, path: SettingPath): string | undefined {
  for (let length = path.length; length > 0; length -= 1) {
    const from = draft.origins.get(writePath(path.slice(0, length)));
    if (from !== undefined) return from;
  }
  return undefined;
}

/** All problems as lines for a person: paths in one column, what to do in the next. */
export function writeProblems({ name, problems, unchecked }: Problems): string {
  const width = Math.min(44, Math.max(...problems.map(({ path }) => path.length), 0));
  const lines = problems.map(({ path, message, line, from }) => {
    const where = [from && `from ${from}`, line !== undefined && `line ${line}`].filter(Boolean).join(', ');
    return `  ${path.padEnd(width)}${width > 0 ? '  ' : ''}${message}${where === '' ? '' : ` (${where})`}`;
  });
  const count = problems.length === 1 ? '1 problem' : `${problems.length} problems`;
  const rest = unchecked.length === 0 ? [] : [`  not compared with the rest yet: ${unchecked.join(', ')}`];
  return `${[`gatehouse: ${count} in ${name}`, ...lines, ...rest].join('\n')}\n`;
}
