export interface Rate {
  readonly burst: number;
  readonly perSecond: number;
}

/** What the requests of a route are counted by. */
export const LIMIT_KEYS = ['identity', 'client', 'address', 'route'] as const;
export type LimitKey = (typeof LIMIT_KEYS)[number];

/** A limit on the requests that a route forwards. */
export interface RouteLimit {
  /** Unique on its route: `identity`, or `identity-2` for the second one by identity. */
  readonly name: string;
  readonly per: LimitKey;
  readonly rate: Rate;
  /** As configured: `quota` requests per `window` seconds. */
  readonly quota: number;
  readonly window: number;
}

const PERIODS: ReadonlyMap<number, string> = new Map([
  [1, 's'],
  [60, 'm'],
  [3_600, 'h'],
]);

/** `100/s per identity, burst 200`. */
export function formatRouteLimit({ quota, window, per, rate }: RouteLimit): string {
  const burst = rate.burst === quota ? '' : `, burst ${rate.burst}`;
  return `${quota}/${PERIODS.get(window) ?? `${window}s`} per ${per}${burst}`;
}
