import { printable, printableLines } from '../client/printable.ts';
import { nearest } from '../config/nearest.ts';
import { Fault } from '../ports/fault.ts';
import { readArguments } from './arguments.ts';
import { CommandError, type Context, EXIT, UsageError } from './command.ts';
import { COMMANDS } from './table.ts';

export type Surroundings = Pick<Context, 'stdout' | 'stderr' | 'stdin' | 'env' | 'cwd' | 'execArgv'>;

/** Runs what the command line asks for and tells the exit code. Errors are one line; a trace only when asked for. */
export async function run(args: readonly string[], around: Surroundings): Promise<number> {
  const traced = args.includes('--trace') || !['', '0', undefined].includes(around.env['GATEHOUSE_TRACE']);
  try {
    return await dispatch(args, around);
  } catch (error) {
    return explainError(error, traced, around);
  }
}

async function dispatch(args: readonly string[], around: Surroundings): Promise<number> {
  const [first, ...rest] = args;
  const asked = first === '--version' || first === '-v' ? 'version' : first;
  if (asked === undefined || asked === 'help' || asked === '--help' || asked === '-h') {
    const [about] = rest;
    if (about !== undefined && !about.startsWith('-')) return dispatch([about, '--help'], around);
    const { helpForAll, helpWidth } = await import('./help.ts');
    const columns = helpWidth(process[asked === undefined ? 'stderr' : 'stdout'].columns);
    around[asked === undefined ? 'stderr' : 'stdout'](await helpForAll(columns));
    return asked === undefined ? EXIT.usage : EXIT.ok;
  }
  const load = Object.hasOwn(COMMANDS, asked) ? COMMANDS[asked] : undefined;
  if (load === undefined) throw new UsageError(`gatehouse: ${unknownCommand(asked)}`);
  const { command } = await load();
  const given = readArguments(command, rest);
  if (given.flag('help')) {
    const { helpFor, helpWidth } = await import('./help.ts');
    around.stdout(helpFor(command, helpWidth(process.stdout.columns)));
    return EXIT.ok;
  }
  return command.run({ ...around, ...given });
}

function unknownCommand(asked: string): string {
  if (asked.startsWith('-')) return 'the command comes before its options; see `gatehouse help`';
  const near = nearest(asked, Object.keys(COMMANDS));
  const hint = near === undefined ? 'see `gatehouse help`' : `did you mean ${near}?`;
  return `there is no command "${asked.slice(0, 64)}"; ${hint}`;
}

function explainError(error: unknown, traced: boolean, { stderr }: Surroundings): number {
  const message = error instanceof Error ? error.message : String(error);
  const line = (text: string): void => stderr(`${printable(text.replaceAll('\n', ' '))}\n`);
  if (error instanceof UsageError) {
    line(message);
    return EXIT.usage;
  }
  if (error instanceof CommandError || error instanceof Fault) {
    line(`gatehouse: ${message}`);
    if (traced) stderr(`${printableLines(String(error.stack))}\n`);
    return error instanceof CommandError ? error.exitCode : EXIT.unavailable;
  }
  line(`gatehouse: internal error: ${message}${traced ? '' : ' (--trace shows where)'}`);
  if (traced && error instanceof Error) stderr(`${printableLines(String(error.stack))}\n`);
  return EXIT.internal;
}
