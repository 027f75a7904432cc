/** Why gatehouse cannot start, or cannot apply a new configuration: one actionable line per problem. */
export class StartError extends Error {
  readonly problems: readonly string[];

  constructor(problems: readonly string[], options?: ErrorOptions) {
    super(problems.join('; '), options);
    this.name = 'StartError';
    this.problems = problems;
  }
}
