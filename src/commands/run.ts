import { findClosestName } from '../lib/closest-name.ts';
import { printable, printableLines } from '../lib/printable.ts';
import { StartError } from '../lib/start-error.ts';
import { Fault } from '../ports/fault.ts';
import { readArguments } from './arguments.ts';
import { type CommandContext, CommandError, EXIT, ExitError, UsageError } from './command.ts';
import { COMMANDS } from './registry.ts';

export type ProcessContext = Pick<
  CommandContext,
  'stdout' | 'stderr' | 'stdin' | 'env' | 'cwd' | 'execArgv' | 'isTerminal' | 'isErrorTerminal' | 'errorColumns'
>;

/** Runs a command line and returns the exit code. Errors are one line; `--trace` adds the stack. */
export async function run(args: readonly string[], processContext: ProcessContext): Promise<number> {
  const showTrace = args.includes('--trace') || !['', '0', undefined].includes(processContext.env['GATEHOUSE_TRACE']);
  try {
    return await dispatch(args, processContext);
  } catch (error) {
    return reportError(error, showTrace, processContext);
  }
}

async function dispatch(args: readonly string[], processContext: ProcessContext): Promise<number> {
  const [first, ...rest] = args;
  const commandName = first === '--version' || first === '-v' ? 'version' : first;
  if (commandName === undefined || commandName === 'help' || commandName === '--help' || commandName === '-h') {
    const topics = rest.filter((word) => !word.startsWith('-'));
    if (topics.length > 0) return dispatch([...topics, '--help'], processContext);
    const { formatOverview } = await import('./help.ts');
    const isError = commandName === undefined;
    processContext[isError ? 'stderr' : 'stdout'](await formatOverview());
    return isError ? EXIT.usage : EXIT.ok;
  }
  if (commandName === '__complete') {
    const { complete } = await import('./completion.ts');
    // After `--`.
    processContext.stdout(await complete(rest.slice(1)));
    return EXIT.ok;
  }
  const load = Object.hasOwn(COMMANDS, commandName) ? COMMANDS[commandName] : undefined;
  if (load === undefined) throw new UsageError(`gatehouse: ${describeUnknownCommand(commandName)}`);
  const { command } = await load();
  const parsed = readArguments(command, rest);
  if (parsed.flag('help')) {
    const { describeSubcommand, formatHelp } = await import('./help.ts');
    processContext.stdout(formatHelp(describeSubcommand(command, parsed.positionals[0] ?? '')));
    return EXIT.ok;
  }
  return (await command.run({ ...processContext, ...parsed })) ?? EXIT.ok;
}

function describeUnknownCommand(commandName: string): string {
  if (commandName.startsWith('-')) return 'the command comes before its options; see `gatehouse help`';
  const closest = findClosestName(commandName, Object.keys(COMMANDS));
  const hint = closest === undefined ? 'see `gatehouse help`' : `did you mean ${closest}?`;
  return `unknown command "${commandName.slice(0, 64)}"; ${hint}`;
}

const FAULT_EXIT_CODES = {
  missing: EXIT.noInput,
  invalid: EXIT.data,
  cannot_create: EXIT.cannotCreate,
  none: EXIT.unavailable,
} as const;

function reportError(error: unknown, showTrace: boolean, { stderr }: ProcessContext): number {
  const message = error instanceof Error ? error.message : String(error);
  const printLine = (text: string): void => stderr(`${printable(text.replaceAll('\n', ' '))}\n`);
  if (error instanceof ExitError) return error.exitCode;
  if (error instanceof UsageError) {
    printLine(message);
    return EXIT.usage;
  }
  if (error instanceof StartError) {
    for (const problem of error.problems) printLine(`gatehouse: ${problem}`);
    return EXIT.configuration;
  }
  if (error instanceof CommandError || error instanceof Fault) {
    printLine(`gatehouse: ${message}`);
    if (showTrace) stderr(`${printableLines(String(error.stack))}\n`);
    return error instanceof CommandError ? error.exitCode : FAULT_EXIT_CODES[error.fileProblem ?? 'none'];
  }
  printLine(`gatehouse: internal error: ${message}${showTrace ? '' : ' (use --trace for the stack)'}`);
  if (showTrace && error instanceof Error) stderr(`${printableLines(String(error.stack))}\n`);
  return EXIT.internal;
}
