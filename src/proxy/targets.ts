import { EJECTION, type EjectionTerms } from './upstream-settings.ts';

/** One of the addresses of an upstream, and how it has been doing. */
export interface Target {
  readonly place: number;
  readonly url: string;
  /** What it was given and has not ended yet: requests, also those that wait for a connection, and WebSockets. */
  pending: number;
}

/** Something to tell the operator. */
export type TargetEvent =
  | {
      readonly event: 'target_left_out';
      readonly target: string;
      readonly why: string;
      readonly seconds?: number;
    }
  | { readonly event: 'target_back'; readonly target: string };

export interface Targets {
  readonly all: readonly Target[];
  /** The one with the least to do, of those that are well; with none that is well, the least bad. */
  choose(except?: Target): Target;
  /** Is there another one that is well? */
  hasOther(than: Target): boolean;
  /** Another one that is well; the same where there is none. */
  another(than: Target): Target;
  /** It answered, whatever the answer was. */
  answered(target: Target): void;
  /** No connection to it could be made, or it closed one instead of answering. */
  failed(target: Target): void;
  /** How many are left out now. */
  leftOut(): number;
  /** What the health check thinks of it. */
  judged(target: Target, well: boolean): void;
}

export interface TargetsOptions {
  readonly ejection?: EjectionTerms | undefined;
  readonly tell?: (event: TargetEvent) => void;
  /** Seconds that only ever grow. */
  readonly clock?: () => number;
}

interface Condition {
  failures: number;
  /** How often in a row it was left out. */
  ejections: number;
  /** Left out until then; 0 when it is not. */
  outUntil: number;
  well: boolean;
}

const steadyClock = (): number => performance.now() / 1_000;

export function watchTargets(urls: readonly string[], options: TargetsOptions = {}): Targets {
  const { ejection = EJECTION, tell = () => {}, clock = steadyClock } = options;
  const all = urls.map((url, place): Target => ({ place, url, pending: 0 }));
  const conditions = all.map((): Condition => ({ failures: 0, ejections: 0, outUntil: 0, well: true }));
  const conditionOf = ({ place }: Target): Condition => conditions[place] as Condition;
  let turn = 0;

  /** After its time out a target is tried with one request at a time until it has answered one. */
  const isIn = (target: Target, now: number): boolean => {
    const { well, outUntil } = conditionOf(target);
    return well && (outUntil === 0 || (outUntil <= now && target.pending === 0));
  };
  /** The lower the better. */
  const badness = (target: Target): number => {
    const { well, outUntil } = conditionOf(target);
    return (well ? 0 : 1e9) + outUntil;
  };

  const choose = (except?: Target): Target => {
    const now = clock();
    const start = turn++ % all.length;
    let best: Target | undefined;
    let leastBad: Target | undefined;
    for (let step = 0; step < all.length; step += 1) {
      const target = all[(start + step) % all.length] as Target;
      if (target === except && all.length > 1) continue;
      if (isIn(target, now)) {
        if (best === undefined || target.pending < best.pending) best = target;
      } else if (leastBad === undefined || badness(target) < badness(leastBad)) leastBad = target;
    }
    return (best ?? leastBad) as Target;
  };

  const hasOther = (than: Target): boolean => {
    const now = clock();
    return all.some((target) => target !== than && isIn(target, now));
  };

  return {
    all,
    choose,
    hasOther,
    another: (than) => (hasOther(than) ? choose(than) : than),
    answered(target) {
      const condition = conditionOf(target);
      if (condition.failures === 0 && condition.outUntil === 0) return;
      const wasOut = condition.outUntil !== 0;
      condition.failures = 0;
      condition.ejections = 0;
      condition.outUntil = 0;
      if (wasOut) tell({ event: 'target_back', target: target.url });
    },
    failed(target) {
      const condition = conditionOf(target);
      const now = clock();
      condition.failures += 1;
      // What was under way when it was left out fails as well, and tells nothing new.
      if (condition.failures < ejection.failures || condition.outUntil > now) return;
      const seconds = Math.min(ejection.first * 2 ** Math.min(condition.ejections, 30), ejection.longest);
      condition.ejections += 1;
      condition.outUntil = now + seconds;
      if (all.length > 1)
        tell({ event: 'target_left_out', target: target.url, why: 'connections failed', seconds });
    },
    leftOut() {
      const now = clock();
      return conditions.filter(({ well, outUntil }) => !well || outUntil > now).length;
    },
    judged(target, well) {
      const condition = conditionOf(target);
      if (condition.well === well) return;
      condition.well = well;
      tell(
        well
          ? { event: 'target_back', target: target.url }
          : { event: 'target_left_out', target: target.url, why: 'health check' },
      );
    },
  };
}
