import { parseArgs } from 'node:util';
import { nearest } from '../config/nearest.ts';
import { type Command, type Context, type Option, UsageError } from './command.ts';

/** Options every command has. */
export const COMMON = {
  output: { type: 'string', value: 'text|json', help: 'text for people (default) or json for programs' },
  help: { type: 'boolean', short: 'h', help: 'how to call it' },
  trace: { type: 'boolean', help: 'show the stack trace of an internal error (also GATEHOUSE_TRACE=1)' },
} as const satisfies Readonly<Record<string, Option>>;

export type Arguments = Pick<Context, 'words' | 'option' | 'options' | 'flag' | 'json'>;

/** Reads a command's arguments. Throws a `UsageError` that says what is wrong in one line. */
export function readArguments(command: Command, args: readonly string[]): Arguments {
  const known: Readonly<Record<string, Option>> = { ...command.options, ...COMMON };
  const { values, positionals } = parse(command, known, args);
  const texts = (name: string): string[] =>
    [values[name] ?? []].flat().filter((value) => typeof value === 'string');
  const output = texts('output').at(-1) ?? 'text';
  if (output !== 'text' && output !== 'json')
    throw new UsageError(`gatehouse ${command.name}: --output is text or json, not "${output}"`);
  const flag = (name: string): boolean => values[name] === true;
  if (!flag('help')) checkWords(command, positionals);
  return {
    words: positionals,
    option: (name) => texts(name).at(-1),
    options: texts,
    flag,
    json: output === 'json',
  };
}

/** Put before what is a word: nobody can type it. */
const WORD = '\0';

function parse(command: Command, options: Readonly<Record<string, Option>>, args: readonly string[]) {
  try {
    const { wordForm } = command;
    const parsed = parseArgs({
      args: wordForm === undefined ? [...args] : args.map((arg) => (wordForm.test(arg) ? WORD + arg : arg)),
      options: Object.fromEntries(
        Object.entries(options).map(([name, { type, short, multiple }]) => [
          name,
          { type, ...(short !== undefined && { short }), ...(multiple && { multiple }) },
        ]),
      ),
      allowPositionals: true,
    });
    return {
      ...parsed,
      positionals: parsed.positionals.map((word) => (word.startsWith(WORD) ? word.slice(WORD.length) : word)),
    };
  } catch (error) {
    throw new UsageError(`gatehouse ${command.name}: ${whyWrong(error, Object.keys(options))}`);
  }
}

function whyWrong(error: unknown, names: readonly string[]): string {
  const { code, message } = error as { readonly code?: string; readonly message: string };
  const asked = /--[^\s'=<,]+|-[^\s'=<,]/.exec(message)?.[0] ?? 'given';
  if (code === 'ERR_PARSE_ARGS_UNKNOWN_OPTION') {
    const near = nearest(asked, names);
    return `there is no option ${asked}${near === undefined ? '' : `; did you mean --${near}?`}`;
  }
  if (code === 'ERR_PARSE_ARGS_INVALID_OPTION_VALUE')
    return message.includes('does not take')
      ? `option ${asked} takes no value`
      : `option ${asked} needs a value`;
  return 'the arguments cannot be understood';
}

function checkWords(command: Command, words: readonly string[]): void {
  const { least, most } = command.words ?? { least: 0, most: 0 };
  if (words.length < least)
    throw new UsageError(
      `gatehouse ${command.name}: something is missing; usage: ${command.usage[0]}${
        command.usage.length > 1 ? `; more with gatehouse ${command.name} --help` : ''
      }`,
    );
  if (words.length > most)
    throw new UsageError(
      `gatehouse ${command.name}: "${words[most]}" is one word too many; usage: ${command.usage[0]}`,
    );
}
