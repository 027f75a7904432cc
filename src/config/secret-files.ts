import { readFileSync } from 'node:fs';
import { isAbsolute, resolve } from 'node:path';
import type { Draft } from './draft.ts';
import { getChild, getKnownSettings, type KnownSetting, listSecretNames } from './known-settings.ts';
import { formatPath, type SettingPath } from './setting-path.ts';
import { isObject, type Tree } from './tree.ts';

const MAX_BYTES = 64 * 1_024;

/** Replaces `passwordHashFile` and similar settings with the content of the file. Returns the files it has read. */
export function resolveSecretFiles(draft: Draft, folder: string): readonly string[] {
  const files: string[] = [];
  const visit = (node: Tree, known: KnownSetting, path: SettingPath): void => {
    if (Array.isArray(node)) {
      const { items } = known;
      if (items) node.forEach((item, index) => visit(item, items, [...path, index]));
      return;
    }
    if (!isObject(node)) return;
    for (const name of listSecretNames(known)) {
      const fileValue = node[`${name}File`];
      if (typeof fileValue !== 'string' || fileValue === '') continue;
      const filePath = [...path, `${name}File`];
      delete node[`${name}File`];
      if (node[name] !== undefined) {
        draft.findings.push({ path: filePath, message: `is set in addition to ${name}; remove one of them` });
        continue;
      }
      const file = isAbsolute(fileValue) ? fileValue : resolve(folder, fileValue);
      files.push(file);
      const read = readSecret(file);
      if (read.ok) {
        node[name] = read.text;
        draft.origins.set(formatPath([...path, name]), formatPath(filePath));
      } else {
        draft.findings.push({ path: filePath, message: read.problem });
        draft.invalidPaths.push([...path, name]);
      }
    }
    for (const [name, inner] of Object.entries(node)) {
      const child = getChild(known, name);
      if (child) visit(inner, child, [...path, name]);
    }
  };
  visit(draft.tree, getKnownSettings(), []);
  return files;
}

function readSecret(
  file: string,
): { readonly ok: true; readonly text: string } | { readonly ok: false; readonly problem: string } {
  try {
    const bytes = readFileSync(file);
    if (bytes.length > MAX_BYTES) return { ok: false, problem: `${file} is larger than 64 KiB` };
    const text = bytes.toString('utf8').trim();
    return text === '' ? { ok: false, problem: `${file} is empty` } : { ok: true, text };
  } catch (error) {
    return { ok: false, problem: describeReadError(file, error) };
  }
}

export function describeReadError(file: string, error: unknown): string {
  const { code } = error as { readonly code?: string };
  if (code === 'ENOENT' || code === 'ENOTDIR') return `${file} does not exist`;
  if (code === 'EACCES' || code === 'EPERM')
    return `${file} cannot be read by this user; check its permissions`;
  if (code === 'EISDIR') return `${file} is a folder`;
  return `${file} cannot be read (${code ?? 'unknown error'})`;
}
