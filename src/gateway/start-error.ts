/** Why gatehouse cannot start (or a new configuration cannot be taken): told to the operator, with what to do. */
export class StartError extends Error {
  readonly problems: readonly string[];

  constructor(problems: readonly string[], options?: ErrorOptions) {
    super(problems.join('; '), options);
    this.name = 'StartError';
    this.problems = problems;
  }
}
