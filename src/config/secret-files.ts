import { isAbsolute, resolve } from 'node:path';
import { readFileBytes } from '../lib/read-file.ts';
import { getChild, getKnownSettings, type KnownSetting, listSecretNames } from './known-settings.ts';
import type { RawSettings } from './raw-settings.ts';
import { formatPath, type SettingPath } from './setting-path.ts';
import { isObject, type Tree } from './tree.ts';

const MAX_BYTES = 64 * 1_024;

/** Replaces `passwordHashFile` and similar settings with the content of the file. Returns the files it has read. */
export function resolveSecretFiles(raw: RawSettings, folder: string): readonly string[] {
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
        raw.findings.push({ path: filePath, message: `is set in addition to ${name}; remove one of them` });
        continue;
      }
      const file = isAbsolute(fileValue) ? fileValue : resolve(folder, fileValue);
      files.push(file);
      try {
        node[name] = readSecret(file);
        raw.origins.set(formatPath([...path, name]), formatPath(filePath));
      } catch (error) {
        raw.findings.push({ path: filePath, message: `${file} ${(error as Error).message}` });
        raw.invalidPaths.push([...path, name]);
      }
    }
    for (const [name, inner] of Object.entries(node)) {
      const child = getChild(known, name);
      if (child) visit(inner, child, [...path, name]);
    }
  };
  visit(raw.tree, getKnownSettings(), []);
  return files;
}

function readSecret(file: string): string {
  const text = readFileBytes(file, MAX_BYTES).toString('utf8').trim();
  if (text === '') throw new Error('is empty');
  return text;
}
