import { readFileSync } from 'node:fs';
import { isMap, isScalar, parseDocument, type YAMLMap } from 'yaml';

export interface ValueLine {
  readonly path: string;
  readonly meaning: string | undefined;
  readonly value: unknown;
}

const MARK = '<!-- values -->';

/** Every value of values.yaml with the comment above it. A map with a comment is documented as a whole. */
export function valueLines(yaml: string): readonly ValueLine[] {
  const document = parseDocument(yaml);
  if (!isMap(document.contents)) throw new Error('values.yaml is not a map');
  return readLines(document.contents, [], document.commentBefore ?? '');
}

function readLines(map: YAMLMap, path: readonly string[], first: string): readonly ValueLine[] {
  return map.items.flatMap((pair, index) => {
    if (!isScalar(pair.key)) throw new Error('a key is not a scalar');
    const valuePath = [...path, String(pair.key.value)];
    const comment = pair.key.commentBefore ?? (index === 0 ? (map.commentBefore ?? first) : '');
    const meaning = comment
      .split('\n')
      .map((line) => line.trim())
      .find((line) => line.startsWith('-- '))
      ?.slice(3);
    if (meaning === undefined && isMap(pair.value) && pair.value.items.length > 0)
      return readLines(pair.value, valuePath, '');
    const value = pair.value === null ? null : (pair.value as { toJSON(): unknown }).toJSON();
    return [{ path: valuePath.join('.'), meaning, value }];
  });
}

const cell = (text: string): string => text.replaceAll('|', '\\|');
const formatDefault = (value: unknown): string => {
  const text = JSON.stringify(value);
  return text === '""' ? '' : `\`${cell(text)}\``;
};

/** README.md with a new table of values. */
export function renderReadme(readme: string, yaml: string): string {
  const [before, , after] = readme.split(MARK);
  if (before === undefined || after === undefined) throw new Error(`README.md lacks two ${MARK}`);
  const rows = valueLines(yaml).map(
    ({ path, meaning = '', value }) => `| \`${path}\` | ${cell(meaning)} | ${formatDefault(value)} |`,
  );
  return `${before}${MARK}\n${['| value | meaning | default |', '|---|---|---|', ...rows].join('\n')}\n${MARK}${after}`;
}

export const read = (file: URL): string => readFileSync(file, 'utf8');
