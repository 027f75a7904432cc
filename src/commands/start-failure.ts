import { type CommandContext, EXIT } from './command.ts';

/** `getHint`: an extra line for a problem. */
export function reportStartFailure(
  { stderr }: CommandContext,
  problems: readonly string[],
  getHint: (problem: string) => string | undefined = () => undefined,
): number {
  const count = problems.length === 1 ? 'one problem' : `${problems.length} problems`;
  stderr(`gatehouse: cannot start, ${count}\n`);
  for (const problem of problems) {
    stderr(`  ${problem}\n`);
    const hint = getHint(problem);
    if (hint !== undefined) stderr(`  ${hint}\n`);
  }
  return EXIT.configuration;
}
