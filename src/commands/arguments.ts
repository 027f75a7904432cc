import { parseArgs } from 'node:util';
import { findClosestName, formatAlternatives } from '../lib/closest-name.ts';
import { type Command, type CommandContext, type Option, UsageError } from './command.ts';

/** Options of all commands. */
export const COMMON_OPTIONS = {
  output: { value: 'text|json', help: 'text (default) or json' },
  help: { short: 'h', help: 'show this help' },
  trace: { help: 'show the stack trace of an internal error (also GATEHOUSE_TRACE=1)' },
} as const satisfies Readonly<Record<string, Option>>;

export type Arguments = Pick<CommandContext, 'positionals' | 'option' | 'options' | 'flag' | 'json'>;

export function readArguments(command: Command, args: readonly string[]): Arguments {
  const options: Readonly<Record<string, Option>> = { ...command.options, ...COMMON_OPTIONS };
  const { values, positionals } = parseCommandLine(command, options, args);
  const getValues = (name: string): string[] =>
    [values[name] ?? []].flat().filter((value) => typeof value === 'string');
  const output = getValues('output').at(-1) ?? 'text';
  if (output !== 'text' && output !== 'json')
    throw new UsageError(`gatehouse ${command.name}: --output must be text or json, not "${output}"`);
  const flag = (name: string): boolean => values[name] === true;
  if (!flag('help')) checkPositionals(command, positionals);
  checkSubcommand(command, positionals[0]);
  if (!flag('help')) checkSubcommandOptions(command, positionals[0], Object.keys(values));
  return {
    positionals,
    option: (name) => getValues(name).at(-1),
    options: getValues,
    flag,
    json: output === 'json',
  };
}

/** Prefix for positionals with a leading dash; arguments cannot contain NUL. */
const POSITIONAL_MARK = '\0';

function parseCommandLine(command: Command, options: Readonly<Record<string, Option>>, args: readonly string[]) {
  // `-config` would be read as `-c onfig`.
  for (const arg of args) {
    const name = /^-([a-z][a-z-]+)(?:=|$)/.exec(arg)?.[1];
    if (name !== undefined && Object.hasOwn(options, name))
      throw new UsageError(`gatehouse ${command.name}: write --${name}, with two dashes`);
  }
  try {
    const { positionalPattern } = command;
    const parsed = parseArgs({
      args:
        positionalPattern === undefined
          ? [...args]
          : args.map((arg) => (positionalPattern.test(arg) ? POSITIONAL_MARK + arg : arg)),
      options: Object.fromEntries(
        Object.entries(options).map(([name, { value, short, multiple = false }]) => [
          name,
          { type: value === undefined ? 'boolean' : 'string', multiple, ...(short !== undefined && { short }) },
        ]),
      ),
      allowPositionals: true,
    });
    return {
      ...parsed,
      positionals: parsed.positionals.map((word) =>
        word.startsWith(POSITIONAL_MARK) ? word.slice(POSITIONAL_MARK.length) : word,
      ),
    };
  } catch (error) {
    throw new UsageError(`gatehouse ${command.name}: ${explainParseError(error, command.name, Object.keys(options))}`);
  }
}

function explainParseError(error: unknown, commandName: string, names: readonly string[]): string {
  const { code, message } = error as { readonly code?: string; readonly message: string };
  const optionName = /--[^\s'=<,]+|-[^\s'=<,]/.exec(message)?.[0] ?? '';
  if (code === 'ERR_PARSE_ARGS_UNKNOWN_OPTION') {
    const closest = findClosestName(optionName, names);
    const hint = closest === undefined ? `see gatehouse ${commandName} --help` : `did you mean --${closest}?`;
    return `unknown option ${optionName}; ${hint}`;
  }
  if (code === 'ERR_PARSE_ARGS_INVALID_OPTION_VALUE')
    return message.includes('does not take')
      ? `option ${optionName} takes no value`
      : `option ${optionName} needs a value`;
  return 'invalid arguments';
}

function checkPositionals(command: Command, positionals: readonly string[]): void {
  const { min, max } = command.positionals ?? { min: 0, max: 0 };
  if (positionals.length < min)
    throw new UsageError(
      `gatehouse ${command.name}: missing argument; usage: ${command.usage[0]}${
        command.usage.length > 1 ? `; see gatehouse ${command.name} --help` : ''
      }`,
    );
  if (positionals.length > max)
    throw new UsageError(
      `gatehouse ${command.name}: unexpected argument "${positionals[max]}"; usage: ${command.usage[0]}`,
    );
}

/** The first argument of a command with subcommands; it may be missing with --help only. */
function checkSubcommand({ name, subcommands }: Command, action: string | undefined): void {
  if (subcommands === undefined || action === undefined || Object.hasOwn(subcommands, action)) return;
  const names = Object.keys(subcommands);
  const closest = findClosestName(action, names);
  const hint = closest === undefined ? '' : `; did you mean ${closest}?`;
  throw new UsageError(`gatehouse ${name}: expected ${formatAlternatives(names)}, not "${action.slice(0, 32)}"${hint}`);
}

/** An option that has no effect is most likely a mistake. */
function checkSubcommandOptions(
  { name, subcommands }: Command,
  action: string | undefined,
  given: readonly string[],
): void {
  const allowed = action === undefined ? undefined : subcommands?.[action]?.options;
  const option = given.find((one) => !Object.hasOwn(COMMON_OPTIONS, one) && allowed?.includes(one) === false);
  if (subcommands === undefined || option === undefined) return;
  const owners = Object.keys(subcommands).filter((other) => subcommands[other]?.options.includes(option));
  throw new UsageError(`gatehouse ${name} ${action}: --${option} is for ${formatAlternatives(owners)}`);
}
