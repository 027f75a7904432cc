import { isAbsolute, resolve } from 'node:path';
import { readFileBytes } from '../lib/read-file.ts';
import { getChild, getKnownSettings, type KnownSetting, listSecretNames } from './known-settings.ts';
import type { RawSettings } from './raw-settings.ts';
import type { Settings } from './schema.ts';
import { formatPath, isObject, type SettingPath, type Tree, type TreeObject } from './setting-path.ts';
import type { ReadAt } from './units.ts';

export interface FileSetting {
  readonly path: SettingPath;
  /** Absolute. */
  readonly file: string;
  readonly readAt: ReadAt;
}

/** The settings that name a file or a folder, except those of an audit sink or a store that is not used. */
export const listUsedFiles = (settings: Settings): readonly FileSetting[] =>
  listFileSettings(settings as unknown as TreeObject).filter(({ path }) => isFileUsed(settings, path));

export function isFileUsed({ audit, store }: Settings, [section, group]: SettingPath): boolean {
  if (section === 'audit' && group === 'webhook') return audit.sink === group;
  return section !== 'store' || group !== 'tls' || store.type === 'redis';
}

/** The files of a configuration that are read at a reload, except those of secrets, whose settings the loader replaces. */
export const listReloadedFiles = (settings: Settings): readonly FileSetting[] =>
  listFileSettings(settings as unknown as TreeObject).filter(({ readAt }) => readAt === 'reload');

/** The settings that name a file or a folder, before or after validation, which makes their paths absolute. */
export function listFileSettings(tree: TreeObject, folder = '/'): readonly FileSetting[] {
  const found: FileSetting[] = [];
  const visit = (node: Tree, known: KnownSetting, path: SettingPath): void => {
    if (typeof node === 'string') {
      if (known.readAt !== undefined) found.push({ path, file: resolve(folder, node), readAt: known.readAt });
    } else if (Array.isArray(node)) {
      const { items } = known;
      if (items) node.forEach((item, index) => visit(item, items, [...path, index]));
    } else if (isObject(node))
      for (const name of Object.keys(node)) {
        const child = getChild(known, name);
        const inner = child !== undefined && hasFiles(child) ? node[name] : undefined;
        if (child !== undefined && inner !== undefined) visit(inner, child, [...path, name]);
      }
  };
  visit(tree, getKnownSettings(), []);
  return found;
}

const knownToHaveFiles = new WeakMap<KnownSetting, boolean>();

/** Does the setting, or a setting in it, name a file? */
function hasFiles(known: KnownSetting): boolean {
  const children = [...known.properties.values(), known.items, known.entries];
  const found =
    knownToHaveFiles.get(known) ??
    (known.readAt !== undefined || children.some((child) => child !== undefined && hasFiles(child)));
  knownToHaveFiles.set(known, found);
  return found;
}

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
