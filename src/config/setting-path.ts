/** `integrations[0].scope` is `['integrations', 0, 'scope']`. */
export type SettingPath = readonly (string | number)[];

const PLAIN = /^[A-Za-z0-9_-]+$/;

export function formatPath(path: SettingPath): string {
  let text = '';
  for (const segment of path) {
    if (typeof segment === 'number') text += `[${segment}]`;
    else if (!PLAIN.test(segment)) text += `[${JSON.stringify(segment)}]`;
    else text += text === '' ? segment : `.${segment}`;
  }
  return text;
}

/** Parses the output of `formatPath`, and `integrations.0.scope` too. Undefined if it is not a path. */
export function parsePath(text: string): SettingPath | undefined {
  const segment = /\.?([A-Za-z0-9_-]+)|\[(\d{1,6})\]|\[("(?:[^"\\]|\\.)*")\]/y;
  const path: (string | number)[] = [];
  while (segment.lastIndex < text.length) {
    const at = segment.lastIndex;
    const found = segment.exec(text);
    if (found === null) return undefined;
    const [whole, name, index, quoted] = found;
    if (name !== undefined && whole.startsWith('.') !== at > 0) return undefined;
    if (index !== undefined) path.push(Number(index));
    else if (quoted !== undefined) path.push(unquote(quoted));
    else if (name !== undefined) path.push(path.length > 0 && /^\d{1,6}$/.test(name) ? Number(name) : name);
  }
  return path.length === 0 ? undefined : path;
}

function unquote(text: string): string {
  try {
    return String(JSON.parse(text));
  } catch {
    return text;
  }
}

/** By name, indexes as numbers, parents first. */
export function comparePaths(a: SettingPath, b: SettingPath): number {
  for (let at = 0; at < Math.min(a.length, b.length); at += 1) {
    const [left, right] = [a[at], b[at]];
    if (left === right) continue;
    if (typeof left === 'number' && typeof right === 'number') return left - right;
    return String(left) < String(right) ? -1 : 1;
  }
  return a.length - b.length;
}

/** A configuration before validation. */
export type Tree = string | number | boolean | null | TreeList | TreeObject;
export type TreeList = Tree[];
export type TreeObject = { [name: string]: Tree };

export const isObject = (value: unknown): value is TreeObject =>
  typeof value === 'object' && value !== null && !Array.isArray(value);

export function getAt(tree: Tree | undefined, path: SettingPath): Tree | undefined {
  let node = tree;
  for (const segment of path) {
    if (typeof segment === 'number') node = Array.isArray(node) ? node[segment] : undefined;
    else node = isObject(node) && Object.hasOwn(node, segment) ? node[segment] : undefined;
  }
  return node;
}

export function describeType(value: Tree | undefined): string {
  if (value === undefined) return 'missing';
  if (value === null) return 'empty';
  if (Array.isArray(value)) return 'a list';
  if (typeof value === 'object') return 'a group of settings';
  return typeof value === 'string' ? 'a string' : typeof value === 'number' ? 'a number' : 'true or false';
}
