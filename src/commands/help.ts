import { largest } from '../lib/extremes.ts';
import { wrapText } from '../lib/wrap-text.ts';
import { COMMON_OPTIONS } from './arguments.ts';
import { type Command, EXIT, type Option } from './command.ts';
import { loadGroups } from './registry.ts';
import { PLAIN, type TextStyle } from './style.ts';

const DEFAULT_WIDTH = 80;
const MAX_WIDTH = 120;
const MIN_WIDTH = 40;

/** The width of the terminal, within readable bounds. */
export const getHelpWidth = (columns: number | undefined): number =>
  columns === undefined || columns <= 0 ? DEFAULT_WIDTH : Math.min(MAX_WIDTH, Math.max(MIN_WIDTH, columns));

export async function formatOverview(columns: number = DEFAULT_WIDTH, emphasize: TextStyle = PLAIN): Promise<string> {
  const groups = await loadGroups();
  const width = largest(groups.flatMap(({ commands }) => commands.map(({ name }) => name.length)));
  return [
    'gatehouse: issues bearer tokens and checks them in front of a REST API',
    '',
    `${emphasize('usage:')} gatehouse COMMAND [options]`,
    ...groups.flatMap(({ title, commands }) => [
      '',
      emphasize(`${title}:`),
      ...commands.flatMap(({ name, summary }) => formatEntry(name, summary, { width, columns, emphasize })),
    ]),
    '',
    '`gatehouse COMMAND --help` describes a command.',
    '',
    emphasize('exit codes:'),
    ...EXIT_CODES.map(([code, meaning]) => `  ${String(code).padStart(2)}  ${meaning}`),
    '',
  ].join('\n');
}

export const EXIT_CODES: readonly (readonly [code: number, meaning: string])[] = [
  [EXIT.ok, 'success'],
  [EXIT.usage, 'invalid arguments'],
  [EXIT.data, 'a file that an argument names is damaged, altered or not of this kind'],
  [EXIT.noInput, 'a file that an argument names, or the store, does not exist'],
  [EXIT.unavailable, 'unavailable: not ready, or unreachable'],
  [EXIT.internal, 'internal error, or an unsupported Node version'],
  [EXIT.cannotCreate, 'a file or folder exists already or cannot be created'],
  [EXIT.signIn, 'not signed in, or not allowed: run gatehouse login'],
  [EXIT.configuration, 'the configuration, or a file it names, cannot be used'],
];

export function formatHelp(
  { name, summary, usage, options, subcommands = {}, notes = [] }: Omit<Command, 'run'>,
  columns: number = DEFAULT_WIDTH,
  emphasize: TextStyle = PLAIN,
): string {
  const formatEntries = (entries: readonly (readonly [name: string, text: string])[]): string[] => {
    const width = largest(entries.map(([entryName]) => entryName.length));
    return entries.flatMap(([entryName, text]) => formatEntry(entryName, text, { width, columns, emphasize }));
  };
  const usageLines = usage.flatMap((line, index) =>
    formatUsage(`${index === 0 ? USAGE : ' '.repeat(USAGE.length)} `, line, columns),
  );
  const hasSubcommands = Object.keys(subcommands).length > 0;
  return [
    ...wrapText('', summary, columns),
    '',
    ...usageLines.with(0, emphasize(USAGE) + (usageLines[0] ?? '').slice(USAGE.length)),
    '',
    ...(hasSubcommands
      ? [
          emphasize('subcommands:'),
          ...formatEntries(
            Object.entries(subcommands).map(([subcommandName, { summary: text }]) => [subcommandName, text]),
          ),
          '',
        ]
      : []),
    emphasize('options:'),
    ...formatEntries(
      Object.entries({ ...options, ...COMMON_OPTIONS }).map(([optionName, option]) => [
        formatOption(optionName, option),
        option.help,
      ]),
    ),
    ...(notes.length > 0 ? ['', ...notes.flatMap((note) => wrapText('', note, columns))] : []),
    ...(hasSubcommands ? ['', `\`gatehouse ${name} SUBCOMMAND --help\` describes a subcommand.`] : []),
    '',
  ].join('\n');
}

const USAGE = 'usage:';

/** The help of a subcommand: only the options that apply to it. */
export function describeSubcommand(command: Command, subcommandName: string): Omit<Command, 'run'> {
  const subcommand = command.subcommands?.[subcommandName];
  if (subcommand === undefined) return command;
  const prefix = `${subcommandName}: `;
  return {
    name: `${command.name} ${subcommandName}`,
    summary: subcommand.summary,
    usage: subcommand.usage,
    options: Object.fromEntries(
      Object.entries(command.options)
        .filter(([name]) => subcommand.options.includes(name))
        .map(([name, option]) => [
          name,
          {
            ...option,
            help: option.help.startsWith(prefix) ? option.help.slice(prefix.length) : option.help,
          },
        ]),
    ),
    ...(command.notes && { notes: command.notes }),
  };
}

interface EntryOptions {
  /** The width of the longest name. */
  readonly width: number;
  readonly columns: number;
  readonly emphasize: TextStyle;
}

function formatEntry(name: string, text: string, { width, columns, emphasize }: EntryOptions): string[] {
  const [first = '', ...rest] = wrapText(`  ${name.padEnd(width)}  `, text, columns);
  // Escape sequences have no width.
  return [`  ${emphasize(name)}${first.slice(2 + name.length)}`, ...rest];
}

const formatOption = (name: string, { short, value }: Option): string =>
  `${short === undefined ? '    ' : `-${short}, `}--${name}${value === undefined ? '' : ` ${value}`}`;

/** Breaks lines between options, never within `--name VALUE` or `[…]`. */
const formatUsage = (prefix: string, line: string, columns: number): string[] =>
  wrapText(prefix, line.match(/\[[^\]]*\]…?|--\S+ [A-Z]\S*|\S+/g) ?? [], columns, '    ');
