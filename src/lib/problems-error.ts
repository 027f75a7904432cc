/** Several problems at once, one actionable line for each. */
export class ProblemsError extends Error {
  readonly problems: readonly string[];

  constructor(problems: readonly string[], options?: ErrorOptions) {
    super(problems.join('; '), options);
    this.name = new.target.name;
    this.problems = problems;
  }
}
