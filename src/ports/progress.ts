/** The progress of a long operation. */
export interface Progress {
  /** The current step, for people: `verifying the MAC`. */
  readonly step: string;
  readonly unit: 'bytes' | 'records';
  readonly done: number;
  /** It is undefined if it is not known in advance. */
  readonly total?: number;
}

/** It is called often: the receiver decides what to show. */
export type ReportProgress = (progress: Progress) => void;
