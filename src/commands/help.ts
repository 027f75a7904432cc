import { largest } from '../lib/extremes.ts';
import { wrapText } from '../lib/wrap-text.ts';
import { COMMON_OPTIONS } from './arguments.ts';
import { type Command, EXIT, type Option } from './command.ts';
import { loadGroups } from './registry.ts';

const COLUMNS = 80;

export async function formatOverview(): Promise<string> {
  const groups = await loadGroups();
  const width = largest(groups.flatMap(({ commands }) => commands.map(({ name }) => name.length)));
  return [
    'gatehouse: issues bearer tokens and checks them in front of a REST API',
    '',
    'usage: gatehouse COMMAND [options]',
    ...groups.flatMap(({ title, commands }) => [
      '',
      `${title}:`,
      ...commands.flatMap(({ name, summary }) => formatEntry(name, summary, width)),
    ]),
    '',
    '`gatehouse COMMAND --help` describes a command.',
    '',
    'exit codes:',
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

export function formatHelp(topic: Omit<Command, 'run'>): string {
  const { name, summary, usage, options, subcommands = {}, notes = [] } = topic;
  const hasSubcommands = Object.keys(subcommands).length > 0;
  return [
    ...wrapText('', summary, COLUMNS),
    '',
    ...usage.flatMap((line, index) => formatUsage(index === 0 ? 'usage: ' : '       ', line)),
    '',
    ...(hasSubcommands
      ? [
          'subcommands:',
          ...formatEntries(Object.entries(subcommands).map(([word, { summary: text }]) => [word, text])),
          '',
        ]
      : []),
    'options:',
    ...formatEntries(
      Object.entries<Option>({ ...options, ...COMMON_OPTIONS }).map(([word, option]) => [
        formatOption(word, option),
        option.help,
      ]),
    ),
    ...(notes.length > 0 ? ['', ...notes.flatMap((note) => wrapText('', note, COLUMNS))] : []),
    ...(hasSubcommands ? ['', `\`gatehouse ${name} SUBCOMMAND --help\` describes a subcommand.`] : []),
    '',
  ].join('\n');
}

/** The help of a subcommand: only the options that apply to it. */
export function describeSubcommand(command: Command, subcommandName: string): Omit<Command, 'run'> {
  const subcommand = new Map(Object.entries(command.subcommands ?? {})).get(subcommandName);
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

function formatEntries(entries: readonly (readonly [name: string, text: string])[]): string[] {
  const width = largest(entries.map(([name]) => name.length));
  return entries.flatMap(([name, text]) => formatEntry(name, text, width));
}

const formatEntry = (name: string, text: string, width: number): string[] =>
  wrapText(`  ${name.padEnd(width)}  `, text, COLUMNS);

const formatOption = (name: string, { short, value }: Option): string =>
  `${short === undefined ? '    ' : `-${short}, `}--${name}${value === undefined ? '' : ` ${value}`}`;

/** Breaks lines between options, never within `--name VALUE` or `[…]`. */
const formatUsage = (prefix: string, line: string): string[] =>
  wrapText(prefix, line.match(/\[[^\]]*\]…?|--\S+ [A-Z]\S*|\S+/g) ?? [], COLUMNS, '    ');
