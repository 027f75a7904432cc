import { readFileSync } from 'node:fs';
import { isAbsolute, resolve } from 'node:path';
import type { Draft } from './draft.ts';
import { childOf, type KnownSetting, knownSettings, secretTwins } from './known-settings.ts';
import { type SettingPath, writePath } from './setting-path.ts';
import { isObject, type Tree } from './tree.ts';

const MAX_BYTES = 64 * 1_024;

/** Puts what `passwordHashFile` and its like point to in the place of the file. Tells which files were read. */
export function resolveSecretFiles(draft: Draft, folder: string): readonly string[] {
  const files: string[] = [];
  const visit = (here: Tree, known: KnownSetting, path: SettingPath): void => {
    if (Array.isArray(here)) {
      const { items } = known;
      if (items) here.forEach((item, index) => visit(item, items, [...path, index]));
      return;
    }
    if (!isObject(here)) return;
    for (const name of secretTwins(known)) {
      const asked = here[`${name}File`];
      if (typeof asked !== 'string' || asked === '') continue;
      const place = [...path, `${name}File`];
      delete here[`${name}File`];
      if (here[name] !== undefined) {
        draft.findings.push({ path: place, message: `stands beside ${name}; keep one of them` });
        continue;
      }
      const file = isAbsolute(asked) ? asked : resolve(folder, asked);
      files.push(file);
      const read = readSecret(file);
      if (read.ok) {
        here[name] = read.text;
        draft.origins.set(writePath([...path, name]), writePath(place));
      } else {
        draft.findings.push({ path: place, message: read.problem });
        draft.lost.push([...path, name]);
      }
    }
    for (const [name, inner] of Object.entries(here)) {
      const child = childOf(known, name);
      if (child) visit(inner, child, [...path, name]);
    }
  };
  visit(draft.tree, knownSettings(), []);
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
    return { ok: false, problem: whyUnreadable(file, error) };
  }
}

/** Why a file could not be read, in a few words. */
export function whyUnreadable(file: string, error: unknown): string {
  const { code } = error as { readonly code?: string };
  if (code === 'ENOENT' || code === 'ENOTDIR') return `there is no file ${file}`;
  if (code === 'EACCES' || code === 'EPERM') return `${file} may not be read by this user`;
  if (code === 'EISDIR') return `${file} is a folder`;
  return `${file} cannot be read (${code ?? 'unknown error'})`;
}
