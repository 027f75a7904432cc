import { COMMON_OPTIONS } from '../arguments.ts';
import type { Command, Completion, Option } from '../command.ts';

/** What can follow a command, or a command and its subcommand. */
export interface CompletionNode {
  /** Such as `keys rotate`. */
  readonly path: readonly string[];
  readonly summary: string;
  readonly options: readonly CompletionOption[];
  readonly subcommands: readonly CompletionNode[];
  /** By position; empty where nothing can be offered. */
  readonly positionals: readonly (Completion | undefined)[];
}

export interface CompletionOption {
  readonly name: string;
  readonly short: string | undefined;
  readonly help: string;
  readonly multiple: boolean;
  /** Undefined if the option takes no value. */
  readonly value: string | undefined;
  readonly complete: Completion | undefined;
}

export function createNode(command: Command): CompletionNode {
  const { name, summary, subcommands = {}, positionals } = command;
  const options = Object.entries({ ...command.options, ...COMMON_OPTIONS }).map(createOption);
  const common = Object.keys(COMMON_OPTIONS);
  return {
    path: [name],
    summary,
    options,
    subcommands: Object.entries(subcommands).map(([subcommandName, subcommand]) => ({
      path: [name, subcommandName],
      summary: subcommand.summary,
      options: options.filter((option) => subcommand.options.includes(option.name) || common.includes(option.name)),
      subcommands: [],
      positionals: positionals?.complete ?? [],
    })),
    positionals: command.subcommands === undefined ? (positionals?.complete ?? []) : [],
  };
}

const createOption = ([name, option]: readonly [string, Option]): CompletionOption => ({
  name,
  short: option.short,
  help: option.help,
  multiple: option.multiple === true,
  value: option.type === 'boolean' ? undefined : (option.value ?? 'VALUE'),
  complete: getCompletion(option),
});

const PATH_PLACEHOLDERS: Readonly<Record<string, 'file' | 'folder'>> = {
  FILE: 'file',
  CONFIGURATION: 'file',
  FOLDER: 'folder',
};

function getCompletion({ value = '' }: Option): Completion | undefined {
  return value.includes('|') ? value.split('|') : PATH_PLACEHOLDERS[value];
}

/** Quotes text for a shell. */
export const quote = (text: string): string => `'${text.replaceAll("'", String.raw`'\''`)}'`;
