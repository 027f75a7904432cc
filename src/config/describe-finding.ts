import { printable } from '../lib/printable.ts';
import { redactText } from '../lib/redact.ts';
import type { FileSetting } from './file-settings.ts';
import type { ConfigProblem } from './format-problems.ts';
import { isSecret, listAllNames, listAllSecretNames, settingAt } from './known-settings.ts';
import type { Position } from './parse-yaml.ts';
import type { Finding, RawSettings } from './raw-settings.ts';
import { comparePaths, formatPath, parsePath, type SettingPath } from './setting-path.ts';

type DescribeFinding = (finding: Finding) => ConfigProblem;

/** Adds to a finding where it was set. */
export function createDescriber(
  raw: RawSettings,
  /** The YAML text, for excerpts. */
  yaml: string | undefined,
  findPosition: (path: SettingPath) => Position | undefined,
): DescribeFinding {
  let lines: readonly string[] | undefined;
  return (finding) => {
    const path = formatPath(finding.path);
    // A single value in place of a list is reported as its first entry.
    const template = findNearest(raw.templates, finding.path);
    const message = template ? finding.message.replaceAll(template.value || '\0', template.template) : finding.message;
    const from = finding.from ?? findNearest(raw.origins, finding.path);
    const isInFile = from === undefined || isSettingPath(from);
    const { line, column } = finding.line === undefined && isInFile ? (findPosition(finding.path) ?? {}) : finding;
    const showsLine = finding.showsLine === true && !isSecret(finding.path) && line !== undefined;
    if (showsLine) lines ??= yaml?.split('\n') ?? [];
    const excerpt = showsLine ? createExcerpt(lines?.[line - 1]) : undefined;
    return {
      path,
      message: toSingleLine(redactText(message)),
      ...(line !== undefined && { line }),
      ...(excerpt !== undefined && column !== undefined && { column, excerpt }),
      ...(from !== undefined && { from }),
    };
  };
}

/** Sorted by setting, each once. */
export function collectProblems(found: readonly Finding[], describe: DescribeFinding): readonly ConfigProblem[] {
  const seen = new Map<string, ConfigProblem>();
  const findings = found.toSorted((a, b) => comparePaths(a.path, b.path) || (a.line ?? 0) - (b.line ?? 0));
  for (const finding of findings) {
    const problem = describe(finding);
    seen.set(`${problem.path}\0${problem.message}\0${problem.path === '' ? problem.line : ''}`, problem);
  }
  return [...seen.values()];
}

/**
 * Turns a message `<setting>: …` or `<file>: …` into a problem of the setting, or of the setting that names the file. `fileSettings` are grouped by
 * their file.
 */
export function locateMessage(
  text: string,
  fileSettings: ReadonlyMap<string, readonly FileSetting[]>,
  describe: DescribeFinding,
): ConfigProblem {
  const [, name = '', rest = ''] = /^([A-Za-z][\w.[\]"-]*): ([^]*)$/.exec(text) ?? [];
  const path = parsePath(name);
  const isSetting = path !== undefined && settingAt(path) !== undefined;
  const message = isSetting ? rest : text;
  const named = findNamedFile(message, fileSettings);
  if (isSetting) {
    // A list without its invalid entries has other indexes than the file.
    const isSame = named.length === 0 || named.some((entry) => formatPath(entry.path) === name);
    return describe({ path: isSame ? path : (named[0]?.path ?? path), message });
  }
  return describe({ path: named[0]?.path ?? [], message });
}

/** The message begins with the file, followed by a space or by a colon and a space. */
function findNamedFile<T>(message: string, byFile: ReadonlyMap<string, readonly T[]>): readonly T[] {
  for (const { index } of message.matchAll(/:? /g)) {
    const found = byFile.get(message.slice(0, index));
    if (found !== undefined) return found;
  }
  return [];
}

/** Control characters in values must not break lines or control a terminal. */
const toSingleLine = (text: string): string => text.replace(/\p{Cc}+/gu, ' ');

const isSettingPath = (from: string): boolean =>
  from !== '--set' && !from.startsWith('GATEHOUSE_') && parsePath(from) !== undefined;

/** What is known about the setting, or about the closest one that contains it. */
function findNearest<T>(known: ReadonlyMap<string, T>, path: SettingPath): T | undefined {
  for (let length = path.length; length > 0; length -= 1) {
    const found = known.get(formatPath(path.slice(0, length)));
    if (found !== undefined) return found;
  }
  return undefined;
}

/** Longer lines are not shown. */
const MAX_LENGTH = 400;

/** A line of the file for a message, without secrets; undefined if it may be part of one. */
export function createExcerpt(content: string | undefined): string | undefined {
  if (content === undefined || content.length > MAX_LENGTH || !beginsSetting(content)) return undefined;
  const visible = content.replace(getSecretPattern(), '$1…').replace(/(rediss?:\/\/).*/i, '$1…');
  return printable(redactText(visible).replaceAll('\t', '→').trimEnd());
}

/** Other lines may continue a secret of the line before. */
function beginsSetting(content: string): boolean {
  if (/^\s*(?:-(?:\s|$)|---|[[\]{}%]|(["']?)[A-Za-z_][\w.-]*\1\s*:(?:\s|$))/.test(content)) return true;
  const name = /^\s*([A-Za-z][\w-]*)\s*(?:[:=]|#|$)/.exec(content)?.[1];
  return name !== undefined && listAllNames().has(name);
}

let secretPattern: RegExp | undefined;

function getSecretPattern(): RegExp {
  if (secretPattern !== undefined) return secretPattern;
  // URLs may contain a password, which `redactText` removes; a JWK set contains public keys.
  const names = listAllSecretNames().difference(new Set(['url', 'jwks']));
  secretPattern = new RegExp(`(\\b(?:${[...names].join('|')})["']?\\s*[:=]\\s*).*`);
  return secretPattern;
}
