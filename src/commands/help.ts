import { COMMON } from './arguments.ts';
import type { Command, Option } from './command.ts';
import { COMMANDS } from './table.ts';

/** Where nobody tells how wide the terminal is, and where it is wider than lines are easy to read. */
const USUAL_WIDTH = 80;
const MOST_WIDTH = 120;
const LEAST_WIDTH = 40;

/** The columns help is written in: those of the terminal, within reason. */
export const helpWidth = (columns: number | undefined): number =>
  columns === undefined || columns <= 0 ? USUAL_WIDTH : Math.min(MOST_WIDTH, Math.max(LEAST_WIDTH, columns));

/** What `gatehouse help` prints: every command with what it does. */
export async function helpForAll(columns: number = USUAL_WIDTH): Promise<string> {
  const commands = await Promise.all(Object.values(COMMANDS).map(async (load) => (await load()).command));
  const width = Math.max(...commands.map(({ name }) => name.length));
  return [
    'gatehouse: issues bearer tokens and checks them in front of a REST API',
    '',
    'usage: gatehouse COMMAND [options]',
    '',
    ...commands.flatMap(({ name, summary }) => hanging(`  ${name.padEnd(width)}  `, summary, columns)),
    '',
    '`gatehouse COMMAND --help` tells more about one of them.',
    '',
    ...EXIT_CODES,
    '',
  ].join('\n');
}

const EXIT_CODES = [
  'exit codes:',
  '   0  done',
  '  64  called in a way that is not understood',
  '  69  not available: not ready, cannot be reached',
  '  70  an error within gatehouse, or a runtime it cannot run on',
  '  77  not signed in, or not allowed: run gatehouse login',
  '  78  something is wrong with the configuration or a file it names',
];

export function helpFor(
  { summary, usage, options, notes = [] }: Command,
  columns: number = USUAL_WIDTH,
): string {
  const lines = Object.entries({ ...options, ...COMMON }).map(
    ([name, option]) => [optionText(name, option), option.help] as const,
  );
  const width = Math.max(...lines.map(([text]) => text.length));
  return [
    ...hanging('', summary, columns),
    '',
    ...usage.flatMap((line, index) => usageLines(`${index === 0 ? 'usage:' : '      '} `, line, columns)),
    '',
    'options:',
    ...lines.flatMap(([text, help]) => hanging(`  ${text.padEnd(width)}  `, help, columns)),
    ...(notes.length > 0 ? ['', ...notes.flatMap((note) => hanging('', note, columns))] : []),
    '',
  ].join('\n');
}

const optionText = (name: string, { short, value }: Option): string =>
  `${short === undefined ? '    ' : `-${short}, `}--${name}${value === undefined ? '' : ` ${value}`}`;

/** A call stays readable when it is cut between options, never within `--name VALUE` or `[…]`. */
const usageLines = (head: string, line: string, columns: number): string[] =>
  hanging(head, line.match(/\[[^\]]*\]…?|--\S+ [A-Z]\S*|\S+/g) ?? [], columns, '    ');

/** Text beside what it is about; its further lines begin below its first. */
function hanging(head: string, text: string | readonly string[], columns: number, further = ''): string[] {
  const words = typeof text === 'string' ? text.split(' ') : text;
  const indent = ' '.repeat(head.length) + further;
  const lines: string[] = [];
  let line = head;
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
