import {
  type Document,
  isAlias,
  isMap,
  isNode,
  isScalar,
  isSeq,
  LineCounter,
  type Pair,
  parseDocument,
  type YAMLMap,
} from 'yaml';
import type { SettingPath } from './setting-path.ts';
import type { Tree } from './tree.ts';
import { explainYamlIssues, findUnresolvedAliases, MAX_ALIASES, type YamlProblem } from './yaml-problem.ts';

/** Counted from 1. */
export interface Position {
  readonly line: number;
  readonly column: number;
}

type YamlResult =
  | {
      readonly ok: true;
      readonly value: Tree | undefined;
      /** Settings that are given twice: an error, but the rest can be checked. */
      readonly duplicates: readonly YamlProblem[];
      /** Returns the position of a setting, or of its closest ancestor in the file. */
      readonly findPosition: (path: SettingPath) => Position | undefined;
    }
  | { readonly ok: false; readonly problems: readonly YamlProblem[] };

/** YAML 1.2, core schema (`no` is text, not false). Duplicate keys are errors. */
export function parseYaml(text: string): YamlResult {
  const counter = new LineCounter();
  try {
    const document = parseDocument(text, {
      version: '1.2',
      uniqueKeys: true,
      prettyErrors: false,
      lineCounter: counter,
      logLevel: 'error',
    });
    const source = { text, document, counter };
    const issues = [...document.errors, ...document.warnings];
    if (issues.some(({ code }) => code !== 'DUPLICATE_KEY'))
      return { ok: false, problems: explainYamlIssues(source, issues) };
    const aliases = findUnresolvedAliases(source);
    if (aliases.length > 0) return { ok: false, problems: aliases };
    const positions = { document, counter, pairs: new Map() };
    return {
      ok: true,
      value: document.toJS({ maxAliasCount: MAX_ALIASES }) as Tree | undefined,
      duplicates: explainYamlIssues(source, issues),
      findPosition: (path) => findPosition(positions, path),
    };
  } catch (error) {
    return { ok: false, problems: [{ message: `not valid YAML: ${describeParseError(error)}` }] };
  }
}

function describeParseError(error: unknown): string {
  if (error instanceof RangeError) return 'it is nested too deeply';
  if (error instanceof ReferenceError) return `it has more than ${MAX_ALIASES} aliases`;
  return 'it cannot be read';
}

type PairsByName = ReadonlyMap<string, Pair>;

/** If a setting is given twice, the last value applies. */
const groupPairs = (map: YAMLMap): PairsByName =>
  new Map(map.items.flatMap((pair) => (isScalar(pair.key) ? [[String(pair.key.value), pair]] : [])));

/** The position of a scalar, or of the name of a group or list. */
function findPosition(
  { document, counter, pairs }: { document: Document; counter: LineCounter; pairs: Map<YAMLMap, PairsByName> },
  path: SettingPath,
): Position | undefined {
  let node: unknown = document.contents;
  let offset: number | undefined;
  for (const segment of path) {
    if (isAlias(node)) node = node.resolve(document);
    if (isMap(node)) {
      const byName = pairs.get(node) ?? groupPairs(node);
      pairs.set(node, byName);
      const pair = byName.get(String(segment));
      if (pair === undefined) break;
      node = pair.value;
      const located = isScalar(node) && node.value !== null ? node : pair.key;
      offset = (isNode(located) ? located.range?.[0] : undefined) ?? offset;
    } else if (isSeq(node) && typeof segment === 'number' && segment < node.items.length) {
      node = node.items[segment];
      offset = (isNode(node) ? node.range?.[0] : undefined) ?? offset;
    } else break;
  }
  if (offset === undefined) return undefined;
  const { line, col } = counter.linePos(offset);
  return { line, column: col };
}
