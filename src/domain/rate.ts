export interface Rate {
  readonly burst: number;
  readonly perSecond: number;
}
