import { printableJson } from '../client/printable.ts';

/** What a command is, and what it is given. One file of this folder for each; `table.ts` lists them. */
export interface Command {
  readonly name: string;
  /** One line, for the list of commands. */
  readonly summary: string;
  /** How it is called, one line for each way. */
  readonly usage: readonly string[];
  readonly options: Readonly<Record<string, Option>>;
  /** How many words it takes beside options; none unless told. */
  readonly words?: { readonly least: number; readonly most: number };
  /** What looks like this is a word, even when it begins with a dash as options do. */
  readonly wordForm?: RegExp;
  /** More to know, below the options in its help. */
  readonly notes?: readonly string[];
  /** Does it, and tells the exit code. */
  run(context: Context): Promise<number>;
}

export interface Option {
  readonly type: 'string' | 'boolean';
  readonly short?: string;
  readonly multiple?: boolean;
  /** What stands for the value in its help, such as FILE. */
  readonly value?: string;
  readonly help: string;
}

/** Everything a command may touch of the process around it, so that tests can be that process. */
export interface Context {
  readonly words: readonly string[];
  /** The value of an option, when it was given (the last one, when several were). */
  readonly option: (name: string) => string | undefined;
  /** All values of an option. */
  readonly options: (name: string) => readonly string[];
  readonly flag: (name: string) => boolean;
  /** `--output json`: for programs. */
  readonly json: boolean;
  readonly stdout: (text: string) => void;
  readonly stderr: (text: string) => void;
  readonly stdin: NodeJS.ReadableStream & Partial<Pick<NodeJS.ReadStream, 'isTTY' | 'setRawMode'>>;
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly cwd: string;
  /** Options the runtime was started with. */
  readonly execArgv: readonly string[];
}

/** As in sysexits.h, so that scripts and supervisors can tell them apart. */
export const EXIT = {
  ok: 0,
  usage: 64,
  unavailable: 69,
  internal: 70,
  signIn: 77,
  configuration: 78,
} as const;

/** The command was called in a way it does not understand. One line; exit 64. */
export class UsageError extends Error {}

/** Something is wrong that is not our bug: one line, and this exit code. */
export class CommandError extends Error {
  readonly exitCode: number;

  constructor(message: string, exitCode: number) {
    super(message);
    this.exitCode = exitCode;
  }
}

export const CONFIG_OPTIONS = {
  config: {
    type: 'string',
    short: 'c',
    value: 'FILE',
    help: 'the configuration file (default: GATEHOUSE_CONFIG, or /etc/gatehouse/gatehouse.yaml)',
  },
  set: {
    type: 'string',
    multiple: true,
    value: 'PATH=VALUE',
    help: 'a setting that counts before the file and the environment; may be repeated',
  },
} as const satisfies Readonly<Record<string, Option>>;

export const writeJson = (context: Context, value: unknown): void =>
  context.stdout(`${printableJson(value)}\n`);
