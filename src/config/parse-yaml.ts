import { isNode, LineCounter, parseDocument } from 'yaml';
import type { SettingPath } from './setting-path.ts';
import type { Tree } from './tree.ts';

export type YamlResult =
  | {
      readonly ok: true;
      readonly value: Tree | undefined;
      readonly findLine: (path: SettingPath) => number | undefined;
    }
  | {
      readonly ok: false;
      readonly problems: readonly { readonly line?: number; readonly message: string }[];
    };

/** Enough for hand-written files; limits the expansion of nested aliases. */
const MAX_ALIASES = 100;

/** YAML 1.2, core schema (`no` is text, not false). Duplicate keys are errors. */
export function parseYaml(text: string): YamlResult {
  const lines = new LineCounter();
  try {
    const document = parseDocument(text, {
      version: '1.2',
      uniqueKeys: true,
      prettyErrors: false,
      lineCounter: lines,
      logLevel: 'error',
    });
    const issues = [...document.errors, ...document.warnings];
    if (issues.length > 0)
      return {
        ok: false,
        problems: issues.slice(0, 20).map(({ message, pos }) => ({
          line: lines.linePos(pos[0]).line,
          message: `not valid YAML: ${formatYamlMessage(message)}`,
        })),
      };
    const value = document.toJS({ maxAliasCount: MAX_ALIASES }) as Tree | undefined;
    return { ok: true, value, findLine: (path) => findLine(document, lines, path) };
  } catch (error) {
    return { ok: false, problems: [{ message: `not valid YAML: ${describeParseError(error)}` }] };
  }
}

function describeParseError(error: unknown): string {
  if (error instanceof RangeError) return 'it is nested too deeply';
  if (error instanceof ReferenceError)
    return `an alias has no anchor (put names that begin with * in quotes), or there are more than ${MAX_ALIASES} aliases`;
  return 'it cannot be read';
}

const formatYamlMessage = (message: string): string => {
  const [first = message] = message.split('\n');
  return first.charAt(0).toLowerCase() + first.slice(1);
};

/** The line of a setting, or of its closest ancestor in the file. */
function findLine(
  document: ReturnType<typeof parseDocument>,
  lines: LineCounter,
  path: SettingPath,
): number | undefined {
  for (let length = path.length; length > 0; length -= 1) {
    const node = document.getIn(path.slice(0, length), true);
    if (isNode(node) && node.range) return lines.linePos(node.range[0]).line;
  }
  return undefined;
}
