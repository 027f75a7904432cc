import { COMMON_OPTIONS } from './arguments.ts';
import type { Command, Option } from './command.ts';
import { COMMANDS } from './registry.ts';

const DEFAULT_WIDTH = 80;
const MAX_WIDTH = 120;
const MIN_WIDTH = 40;

/** The width of the terminal, within readable bounds. */
export const getHelpWidth = (columns: number | undefined): number =>
  columns === undefined || columns <= 0 ? DEFAULT_WIDTH : Math.min(MAX_WIDTH, Math.max(MIN_WIDTH, columns));

export async function formatOverview(columns: number = DEFAULT_WIDTH): Promise<string> {
  const commands = await Promise.all(Object.values(COMMANDS).map(async (load) => (await load()).command));
  const width = Math.max(...commands.map(({ name }) => name.length));
  return [
    'gatehouse: issues bearer tokens and checks them in front of a REST API',
    '',
    'usage: gatehouse COMMAND [options]',
    '',
    ...commands.flatMap(({ name, summary }) =>
      formatHangingIndent(`  ${name.padEnd(width)}  `, summary, columns),
    ),
    '',
    '`gatehouse COMMAND --help` describes a command.',
    '',
    ...EXIT_CODES,
    '',
  ].join('\n');
}

const EXIT_CODES = [
  'exit codes:',
  '   0  success',
  '  64  invalid arguments',
  '  69  unavailable: not ready, or unreachable',
  '  70  internal error, or an unsupported Node version',
  '  77  not signed in, or not allowed: run gatehouse login',
  '  78  the configuration, or a file it names, cannot be used',
];

export function formatHelp(
  { summary, usage, options, notes = [] }: Command,
  columns: number = DEFAULT_WIDTH,
): string {
  const lines = Object.entries({ ...options, ...COMMON_OPTIONS }).map(
    ([name, option]) => [formatOption(name, option), option.help] as const,
  );
  const width = Math.max(...lines.map(([text]) => text.length));
  return [
    ...formatHangingIndent('', summary, columns),
    '',
    ...usage.flatMap((line, index) => formatUsage(`${index === 0 ? 'usage:' : '      '} `, line, columns)),
    '',
    'options:',
    ...lines.flatMap(([text, help]) => formatHangingIndent(`  ${text.padEnd(width)}  `, help, columns)),
    ...(notes.length > 0 ? ['', ...notes.flatMap((note) => formatHangingIndent('', note, columns))] : []),
    '',
  ].join('\n');
}

const formatOption = (name: string, { short, value }: Option): string =>
  `${short === undefined ? '    ' : `-${short}, `}--${name}${value === undefined ? '' : ` ${value}`}`;

/** Breaks lines between options, never within `--name VALUE` or `[…]`. */
const formatUsage = (prefix: string, line: string, columns: number): string[] =>
  formatHangingIndent(prefix, line.match(/\[[^\]]*\]…?|--\S+ [A-Z]\S*|\S+/g) ?? [], columns, '    ');

/** Wraps text after a prefix; further lines are indented to its column. */
function formatHangingIndent(
  prefix: string,
  text: string | readonly string[],
  columns: number,
  extraIndent = '',
): string[] {
  const words = typeof text === 'string' ? text.split(' ') : text;
  const indent = ' '.repeat(prefix.length) + extraIndent;
  const lines: string[] = [];
  let line = prefix;
  let isEmpty = true;
  for (const word of words) {
    if (!isEmpty && line.length + 1 + word.length > columns) {
      lines.push(line);
      line = indent;
      isEmpty = true;
    }
    line += isEmpty ? word : ` ${word}`;
    isEmpty = false;
  }
  return [...lines, line];
}
