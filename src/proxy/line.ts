import type { Target } from './targets.ts';

/** Somebody who wants a connection to a target. */
export interface Turn {
  /** It has its turn; from now on it counts among those that run. */
  takeTurn(): void;
}

/** Those who have, or wait for, a connection to one target. One line for all, whichever lane they come from. */
export interface Line {
  readonly target: Target;
  /** As many as there may be connections. */
  running: number;
  /** Those that wait for their turn, in their order. */
  readonly waiting: Set<Turn>;
}

/** How long a line may become. */
export interface LineTerms {
  readonly connections: number;
  readonly maxPending: number;
}

export const isFull = ({ running, waiting }: Line, { connections, maxPending }: LineTerms): boolean =>
  running >= connections && waiting.size >= maxPending;

/** Takes its turn now, or waits for it. */
export function enterLine(line: Line, { connections }: LineTerms, turn: Turn): void {
  line.target.pending += 1;
  if (line.running < connections && line.waiting.size === 0) {
    line.running += 1;
    turn.takeTurn();
  } else line.waiting.add(turn);
}

/** Once for each time it entered. */
export function leaveLine(line: Line, terms: LineTerms, turn: Turn): void {
  if (line.waiting.size > 0 && line.waiting.delete(turn)) line.target.pending -= 1;
  else freePlace(line, terms);
}

/** Somebody who had his turn has left; whoever waits is next. */
export function freePlace(line: Line, terms: LineTerms): void {
  line.target.pending -= 1;
  line.running -= 1;
  // Later, so that many that fail at once do not stand on each other's shoulders.
  if (line.waiting.size > 0) queueMicrotask(() => callNext(line, terms));
}

function callNext(line: Line, { connections }: LineTerms): void {
  for (const next of line.waiting) {
    if (line.running >= connections) return;
    line.waiting.delete(next);
    line.running += 1;
    next.takeTurn();
  }
}
