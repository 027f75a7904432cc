export interface ConfigProblem {
  /** Such as `integrations[0].scope`; empty for the whole configuration. */
  readonly path: string;
  readonly message: string;
  readonly line?: number;
  readonly column?: number;
  /** This line of the file, without secrets, where it helps to see it. */
  readonly excerpt?: string;
  /** The variable, flag or setting that the value comes from, if it is not in the file. */
  readonly from?: string;
}
