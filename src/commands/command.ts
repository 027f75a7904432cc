import { printableJson } from '../lib/printable.ts';

/** One file of this folder per command; `registry.ts` lists them. */
export interface Command {
  readonly name: string;
  /** One line, for the list of commands. */
  readonly summary: string;
  readonly usage: readonly string[];
  readonly options: Readonly<Record<string, Option>>;
  /** If omitted, the command takes none. `complete` is what a shell offers for each of them, after the subcommand. */
  readonly positionals?: {
    readonly min: number;
    readonly max: number;
    readonly complete?: readonly (Completion | undefined)[];
  };
  /** The values of the first positional. */
  readonly subcommands?: Readonly<Record<string, Subcommand>>;
  /** Arguments that match are positionals, even with a leading dash. */
  readonly positionalPattern?: RegExp;
  /** Paragraphs below the options in the help text. */
  readonly notes?: readonly string[];
  /** Returns the exit code, if it is not 0. */
  run(context: CommandContext): Promise<number | void>;
}

export interface Subcommand {
  /** One line. */
  readonly summary: string;
  readonly usage: readonly string[];
  /** Names of the options of the command that apply. */
  readonly options: readonly string[];
}

/** What a shell offers: these words, or paths. */
export type Completion = readonly string[] | 'file' | 'folder';

/** Offered for METHOD; others are possible. */
export const COMMON_METHODS: Completion = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS'];

export interface Option {
  readonly short?: string;
  readonly multiple?: boolean;
  /**
   * Placeholder in the help text, such as FILE, or the possible values: `text|json`. Completion scripts use it too. An option
   * without it takes no value.
   */
  readonly value?: string;
  readonly help: string;
}

/** The arguments and the process environment; tests provide their own. */
export interface CommandContext {
  readonly positionals: readonly string[];
  /** The last value of an option. */
  readonly option: (name: string) => string | undefined;
  readonly options: (name: string) => readonly string[];
  readonly flag: (name: string) => boolean;
  /** `--output json`. */
  readonly json: boolean;
  readonly stdout: (text: string) => void;
  readonly stderr: (text: string) => void;
  /** Standard output is a terminal. */
  readonly isTerminal?: boolean;
  /** Standard error is a terminal. */
  readonly isErrorTerminal?: boolean;
  /** Width of the terminal of standard error. */
  readonly errorColumns?: number | undefined;
  readonly stdin: NodeJS.ReadableStream & Partial<Pick<NodeJS.ReadStream, 'isTTY'>>;
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly cwd: string;
  /** Options of the Node process. */
  readonly execArgv: readonly string[];
}

/** As in sysexits.h. */
export const EXIT = {
  ok: 0,
  usage: 64,
  data: 65,
  noInput: 66,
  unavailable: 69,
  internal: 70,
  cannotCreate: 73,
  signIn: 77,
  configuration: 78,
} as const;

/** Invalid arguments: one line, exit code 64. */
export class UsageError extends Error {}

/** An expected error: one line, and this exit code. */
export class CommandError extends Error {
  readonly exitCode: number;

  constructor(message: string, exitCode: number) {
    super(message);
    this.exitCode = exitCode;
  }
}

/** Ends a command that has already printed its errors. */
export class ExitError extends Error {
  readonly exitCode: number;

  constructor(exitCode: number) {
    super(`exit code ${exitCode}`);
    this.exitCode = exitCode;
  }
}

export const CONFIG_OPTIONS = {
  config: {
    short: 'c',
    value: 'FILE',
    help: 'the configuration file (default: GATEHOUSE_CONFIG, or /etc/gatehouse/gatehouse.yaml)',
  },
  set: {
    multiple: true,
    value: 'PATH=VALUE',
    help: 'overrides the configuration file and the environment; may be repeated',
  },
} as const satisfies Readonly<Record<string, Option>>;

export const writeJson = (context: CommandContext, value: unknown): void => context.stdout(`${printableJson(value)}\n`);
