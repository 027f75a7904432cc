import { isAbsolute, resolve } from 'node:path';
import { getChild, getKnownSettings, type KnownSetting } from './known-settings.ts';
import type { SettingPath } from './setting-path.ts';
import { isObject, type Tree, type TreeObject } from './tree.ts';

export interface FileSetting {
  readonly path: SettingPath;
  /** Absolute. */
  readonly file: string;
}

/** The settings that name a file or a folder. */
export function listFileSettings(tree: TreeObject, folder: string): readonly FileSetting[] {
  const found: FileSetting[] = [];
  const visit = (node: Tree, known: KnownSetting, path: SettingPath): void => {
    if (typeof node === 'string') {
      if (known.titles.has('path'))
        found.push({ path, file: isAbsolute(node) ? node : resolve(folder, node) });
    } else if (Array.isArray(node)) {
      const { items } = known;
      if (items) node.forEach((item, index) => visit(item, items, [...path, index]));
    } else if (isObject(node))
      for (const [name, inner] of Object.entries(node)) {
        const child = getChild(known, name);
        if (child) visit(inner, child, [...path, name]);
      }
  };
  visit(tree, getKnownSettings(), []);
  return found;
}
