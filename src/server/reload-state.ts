import { boundProblems, type RejectedReload } from '../observability/gateway-status.ts';

/** Whether the configuration on disk is in use. */
export class ReloadState {
  readonly #now: () => number;
  /** When the configuration in use was applied, in seconds since 1970. */
  appliedAt: number;
  #rejected: RejectedReload | undefined;
  #isStopped = false;

  /** `problems`: of the file on disk, if this process starts with an earlier configuration. */
  constructor(now: () => number, problems?: readonly string[]) {
    this.#now = now;
    this.appliedAt = now();
    if (problems !== undefined) this.reject(problems);
  }

  get rejected(): RejectedReload | undefined {
    return this.#isStopped ? undefined : this.#rejected;
  }

  /** It is undefined once this process no longer reloads. */
  get isLastSuccessful(): boolean | undefined {
    return this.#isStopped ? undefined : this.#rejected === undefined;
  }

  apply(): void {
    this.appliedAt = this.#now();
    this.#rejected = undefined;
  }

  reject(problems: readonly string[]): void {
    this.#rejected = { since: this.#rejected?.since ?? this.#now(), problems: boundProblems(problems) };
  }

  /** A worker that drains would report its last state for as long as its requests take. */
  stop(): void {
    this.#isStopped = true;
  }
}
