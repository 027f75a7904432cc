import { COMMON } from './arguments.ts';
import type { Command, Option } from './command.ts';
import { COMMANDS } from './table.ts';

/** What `gatehouse help` prints: every command in one line. */
export async function helpForAll(): Promise<string> {
  const commands = await Promise.all(Object.values(COMMANDS).map(async (load) => (await load()).command));
  const width = Math.max(...commands.map(({ name }) => name.length));
  return [
    'gatehouse: issues bearer tokens and checks them in front of a REST API',
    '',
    'usage: gatehouse COMMAND [options]',
    '',
    ...commands.map(({ name, summary }) => `  ${name.padEnd(width)}  ${summary}`),
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

export function helpFor({ summary, usage, options, notes = [] }: Command): string {
  const lines = Object.entries({ ...options, ...COMMON }).map(
    ([name, option]) => [optionText(name, option), option.help] as const,
  );
  const width = Math.max(...lines.map(([text]) => text.length));
  return [
    summary,
    '',
    ...usage.map((line, index) => `${index === 0 ? 'usage:' : '      '} ${line}`),
    '',
    'options:',
    ...lines.map(([text, help]) => `  ${text.padEnd(width)}  ${help}`),
    ...(notes.length > 0 ? ['', ...notes] : []),
    '',
  ].join('\n');
}

const optionText = (name: string, { short, value }: Option): string =>
  `${short === undefined ? '    ' : `-${short}, `}--${name}${value === undefined ? '' : ` ${value}`}`;
