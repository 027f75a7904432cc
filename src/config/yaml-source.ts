import { isNode, LineCounter, parseDocument } from 'yaml';
import type { SettingPath } from './setting-path.ts';
import type { Tree } from './tree.ts';

export type ReadYaml =
  | {
      readonly ok: true;
      readonly value: Tree | undefined;
      readonly lineOf: (path: SettingPath) => number | undefined;
    }
  | {
      readonly ok: false;
      readonly problems: readonly { readonly line?: number; readonly message: string }[];
    };

/** More than a hand-written file needs, and little enough that nobody can make us grow without end. */
const MAX_ALIASES = 100;

/** YAML 1.2, core schema (`no` is a word, not false). A key that stands twice is refused. */
export function readYaml(text: string): ReadYaml {
  const lines = new LineCounter();
  try {
    const document = parseDocument(text, {
      version: '1.2',
      uniqueKeys: true,
      prettyErrors: false,
      lineCounter: lines,
      logLevel: 'error',
    });
    const wrong = [...document.errors, ...document.warnings];
    if (wrong.length > 0)
      return {
        ok: false,
        problems: wrong.slice(0, 20).map(({ message, pos }) => ({
          line: lines.linePos(pos[0]).line,
          message: `not valid YAML: ${sentence(message)}`,
        })),
      };
    const value = document.toJS({ maxAliasCount: MAX_ALIASES }) as Tree | undefined;
    return { ok: true, value, lineOf: (path) => lineOf(document, lines, path) };
  } catch (error) {
    return { ok: false, problems: [{ message: `not valid YAML: ${whyThrown(error)}` }] };
  }
}

function whyThrown(error: unknown): string {
  if (error instanceof RangeError) return 'it is nested too deeply';
  if (error instanceof ReferenceError)
    return `an alias has no anchor (put names that begin with * in quotes), or there are more than ${MAX_ALIASES} aliases in it`;
  return 'it cannot be read';
}

const sentence = (message: string): string => {
  const [first = message] = message.split('\n');
  return first.charAt(0).toLowerCase() + first.slice(1);
};

/** The line of a setting, or of the nearest thing above it that is in the file. */
function lineOf(
  document: ReturnType<typeof parseDocument>,
  lines: LineCounter,
  path: SettingPath,
): number | undefined {
  for (let length = path.length; length > 0; length -= 1) {
    const offset = offsetOf(document, path.slice(0, length));
    if (offset !== undefined) return lines.linePos(offset).line;
  }
  return undefined;
}

function offsetOf(document: ReturnType<typeof parseDocument>, path: SettingPath): number | undefined {
  try {
    const node = document.getIn([...path], true);
    return isNode(node) ? node.range?.[0] : undefined;
  } catch {
    return undefined;
  }
}
