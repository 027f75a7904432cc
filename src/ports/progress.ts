/** How far a long operation is. */
export interface Progress {
  /** What is being done, for people: `copying the store`. */
  readonly step: string;
  readonly unit: 'bytes' | 'records';
  readonly done: number;
  /** Undefined if not known in advance. */
  readonly total?: number;
}

/** Called often: the receiver decides what to show. */
export type ReportProgress = (progress: Progress) => void;
