/**
 * Could what was seen have happened in one order, with each operation taking effect at one moment between its call and
 * its answer? After Wing and Gong, with Lowe's memory of what was tried: one grant at a time, so histories stay small.
 *
 * The record of a grant is one register: redeemed or not, generation, sealed or not. What each process refuses from
 * memory is another, which only ever goes from "accepts" to "refuses": a revocation under way has reached some processes
 * and not others, and answers only when all of them refuse.
 */
export interface Operation {
  readonly grant: string;
  readonly kind: 'redeem' | 'refresh' | 'revoke' | 'validate';
  /** The life of the process that was asked; a restarted one is another. */
  readonly at: string;
  readonly calledAt: number;
  /** Missing when nobody knows whether it happened, or will yet happen. */
  readonly respondedAt?: number;
  readonly outcome: 'ok' | 'refused' | 'unknown';
  /** Of a refresh: the generation of the token that was shown. */
  readonly presented?: number;
  /** Of a redemption or refresh that succeeded: the generation it gave, and the token itself. */
  readonly issued?: number;
  readonly token?: string;
}

export interface Verdict {
  /** What contradicts every order; empty when nothing does. */
  readonly violations: readonly string[];
  /** The search was given up: neither yes nor no. */
  readonly undecided: boolean;
}

export interface CheckOptions {
  /** Does the grant exist from the beginning, or is it still to be redeemed? */
  readonly exists: boolean;
}

export function checkGrant(operations: readonly Operation[], { exists }: CheckOptions): Verdict {
  const violations = [...forks(operations), ...refusals(operations)];
  const record = operations.filter(({ kind }) => kind !== 'validate');
  const order = hasOrder(record, { exists, generation: 1, sealed: false });
  if (order === 'no')
    violations.push('no order of redemptions, refreshes and revocations explains the answers');
  return { violations, undecided: order === 'gave up' };
}

const until = ({ respondedAt = Number.POSITIVE_INFINITY }: Operation): number => respondedAt;

/** One generation has one refresh token. */
function forks(operations: readonly Operation[]): readonly string[] {
  const tokens = new Map<number, Set<string>>();
  for (const { issued, token } of operations)
    if (issued !== undefined && token !== undefined)
      tokens.set(issued, (tokens.get(issued) ?? new Set()).add(token));
  return [...tokens].flatMap(([generation, all]) =>
    all.size > 1 ? [`${all.size} different tokens of generation ${generation}`] : [],
  );
}

/** Can this operation end the grant? A refresh can when the token it shows may be two behind by then. */
function mayEnd(operation: Operation, operations: readonly Operation[]): boolean {
  const { kind, presented = 0, outcome } = operation;
  if (kind === 'revoke') return true;
  if (kind !== 'refresh' || outcome === 'ok') return false;
  const refreshes = operations.filter((other) => other.kind === 'refresh' && other !== operation);
  const known = Math.max(1, ...refreshes.map(({ issued = 0 }) => issued));
  const hidden = new Set(refreshes.filter((one) => one.outcome === 'unknown').map((one) => one.presented))
    .size;
  return presented + 2 <= known + hidden;
}

/** What each process answers from memory: refused never without a cause, and never again accepted. */
function refusals(operations: readonly Operation[]): readonly string[] {
  const found: string[] = [];
  const ends = operations.filter((one) => mayEnd(one, operations));
  const firstEnd = Math.min(...ends.map(({ calledAt }) => calledAt));
  // From here on nobody accepts: a revocation was acknowledged, or a reuse was, when nothing else can have ended the grant.
  const over = Math.min(
    ...ends
      .filter(
        (end) =>
          (end.kind === 'revoke' && end.outcome === 'ok') ||
          (end.kind === 'refresh' &&
            end.outcome === 'refused' &&
            ends.every((other) => other === end || other.calledAt > until(end))),
      )
      .map(until),
  );
  const refusedAt = new Map<string, number>();
  for (const { kind, outcome, at, respondedAt = 0 } of operations)
    if (kind === 'validate' && outcome === 'refused')
      refusedAt.set(at, Math.min(refusedAt.get(at) ?? Number.POSITIVE_INFINITY, respondedAt));
  for (const one of operations) {
    const { kind, outcome, at, calledAt } = one;
    if (kind === 'validate' && outcome === 'refused' && until(one) < firstEnd)
      found.push(`refused by ${at} before anything could have ended the grant`);
    const accepts = outcome === 'ok' && (kind === 'validate' || kind === 'refresh');
    if (!accepts) continue;
    if (calledAt > over) found.push(`${kind} accepted by ${at} after the end of the grant was acknowledged`);
    if (calledAt > (refusedAt.get(at) ?? Number.POSITIVE_INFINITY))
      found.push(`${kind} accepted by ${at}, which had refused the grant before`);
  }
  return found;
}

interface State {
  readonly exists: boolean;
  readonly generation: number;
  readonly sealed: boolean;
}

/** The state after this operation, when it can take effect here with the outcome that was seen. */
function after(state: State, operation: Operation, mayBeDenied: boolean): State | undefined {
  const { exists, generation, sealed } = state;
  const { kind, outcome, presented = 0, issued } = operation;
  switch (kind) {
    case 'redeem':
      if (outcome === 'refused') return exists ? state : undefined;
      return exists ? undefined : { ...state, exists: true };
    case 'revoke':
      return { ...state, sealed: true };
    case 'validate':
      return state;
    case 'refresh': {
      const works = exists && !sealed;
      if (outcome === 'refused') {
        if (!works || mayBeDenied)
          return works && presented < generation - 1 ? { ...state, sealed: true } : state;
        return presented < generation - 1 ? { ...state, sealed: true } : undefined;
      }
      if (!works) return undefined;
      if (presented < generation - 1) return outcome === 'unknown' ? { ...state, sealed: true } : undefined;
      if (presented === generation)
        return outcome === 'unknown' || issued === generation + 1
          ? { ...state, generation: generation + 1 }
          : undefined;
      return presented === generation - 1 && issued === generation ? state : undefined;
    }
  }
}

const MOST_TRIED = 500_000;

function hasOrder(operations: readonly Operation[], first: State): 'yes' | 'no' | 'gave up' {
  const sorted = operations.toSorted((a, b) => a.calledAt - b.calledAt);
  const bit = sorted.map((_, index) => 1n << BigInt(index));
  const needed = sorted.reduce(
    (all, { outcome }, index) => (outcome === 'unknown' ? all : all | (bit[index] ?? 0n)),
    0n,
  );
  // Announced and not yet sealed, an end is known to the process that refuses and not to the record.
  const denials = sorted.map((one) =>
    sorted.some((other) => other !== one && mayEnd(other, sorted) && other.calledAt < until(one)),
  );
  const tried = new Set<string>();
  const stack: { readonly done: bigint; readonly state: State }[] = [{ done: 0n, state: first }];
  for (let node = stack.pop(); node !== undefined; node = stack.pop()) {
    const { done, state } = node;
    if ((done & needed) === needed) return 'yes';
    const key = `${done.toString(36)} ${state.exists} ${state.generation} ${state.sealed}`;
    if (tried.has(key)) continue;
    tried.add(key);
    if (tried.size > MOST_TRIED) return 'gave up';
    // Whoever was called after another was answered comes after it.
    let firstResponse = Number.POSITIVE_INFINITY;
    for (const [index, one] of sorted.entries())
      if ((done & (bit[index] ?? 0n)) === 0n) firstResponse = Math.min(firstResponse, until(one));
    for (const [index, one] of sorted.entries()) {
      if (one.calledAt > firstResponse) break;
      if ((done & (bit[index] ?? 0n)) !== 0n) continue;
      const next = after(state, one, denials[index] ?? false);
      // What nobody heard of and changes nothing need not have happened.
      if (next === undefined || (one.outcome === 'unknown' && next === state)) continue;
      stack.push({ done: done | (bit[index] ?? 0n), state: next });
    }
  }
  return 'no';
}
