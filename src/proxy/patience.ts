/** Somebody who waits, and for how long at most. */
export interface Waiting {
  /** Called when the time is over, after which it waits no more. */
  late(): void;
  /** For `Patience` alone. */
  place: Place | undefined;
}

interface Place {
  readonly until: number;
  readonly who: Waiting;
  before: Place | undefined;
  after: Place | undefined;
}

/**
 * One timer for all who wait equally long: whoever came first is late first. Nearly nobody is ever late, so beginning and
 * ending to wait cost next to nothing, and the timer is set once in that time and not for each.
 */
export interface Patience {
  begin(who: Waiting): void;
  end(who: Waiting): void;
}

export function patience(seconds: number, clock: () => number = () => performance.now()): Patience {
  const milliseconds = seconds * 1_000;
  let first: Place | undefined;
  let last: Place | undefined;
  let armed = false;

  const arm = (at: number): void => {
    armed = true;
    // One more: timers count whole milliseconds and may be early by a part of one.
    setTimeout(look, Math.max(0, at - clock()) + 1).unref();
  };
  const look = (): void => {
    armed = false;
    const now = clock();
    for (let next = first; next !== undefined && next.until <= now; next = first) {
      const { who } = next;
      end(who);
      who.late();
    }
    if (first !== undefined && !armed) arm(first.until);
  };
  const end = (who: Waiting): void => {
    const { place } = who;
    if (place === undefined) return;
    who.place = undefined;
    if (place.before === undefined) first = place.after;
    else place.before.after = place.after;
    if (place.after === undefined) last = place.before;
    else place.after.before = place.before;
    // Whoever is gone points at nobody, or garbage would keep garbage alive.
    place.before = undefined;
    place.after = undefined;
  };
  return {
    begin(who) {
      end(who);
      const place: Place = { until: clock() + milliseconds, who, before: last, after: undefined };
      if (last === undefined) first = place;
      else last.after = place;
      last = place;
      who.place = place;
      if (!armed) arm(place.until);
    },
    end,
  };
}
