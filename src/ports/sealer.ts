/** Marks values as ours, for one purpose each: a value sealed for one purpose does not open for another. */
export interface Sealer {
  seal(purpose: string, text: string): string;
  open(purpose: string, sealed: string): string | undefined;
  /** A keyed digest, for looking something up by a secret that is itself too short to be stored as a plain digest. */
  digest(purpose: string, text: string): string;
  /** The digests under every key that may have been current when the value was kept, newest first. */
  digests(purpose: string, text: string): readonly string[];
}
