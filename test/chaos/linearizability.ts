/**
 * Checks whether a history is linearizable: whether there is one order in which each operation takes effect at a moment
 * between its call and its response. The algorithm is that of Wing and Gong with Lowe's memoization, per grant, so that
 * histories stay small.
 *
 * The record of a grant is one register: redeemed or not, generation, sealed or not. The revocation state in each process
 * is another, which only changes from "accepts" to "refuses": a revocation in progress has reached some processes and not
 * others, and gets its response only when all of them refuse.
 */
export interface Operation {
  readonly grant: string;
  readonly kind: 'redeem' | 'refresh' | 'revoke' | 'validate';
  /** The process that handled the operation; a restarted process has another name. */
  readonly at: string;
  readonly calledAt: number;
  /** Missing if it is unknown whether the operation took effect or still will. */
  readonly respondedAt?: number;
  readonly outcome: 'ok' | 'refused' | 'unknown';
  /** The generation of the token that a refresh presented. */
  readonly presented?: number;
  /** The generation that a successful redemption or refresh issued, and the token itself. */
  readonly issued?: number;
  readonly token?: string;
}

export interface Verdict {
  /** Violations for which no order exists; empty if there are none. */
  readonly violations: readonly string[];
  /** Whether the search was aborted without a result. */
  readonly undecided: boolean;
}

export interface CheckOptions {
  /** Whether the grant exists from the beginning; otherwise it has to be redeemed first. */
  readonly exists: boolean;
}

export function checkGrant(operations: readonly Operation[], { exists }: CheckOptions): Verdict {
  const violations = [...findForks(operations), ...findWrongRefusals(operations)];
  const record = operations.filter(({ kind }) => kind !== 'validate');
  const order = hasOrder(record, { exists, generation: 1, sealed: false });
  if (order === 'no') violations.push('no order of redemptions, refreshes and revocations explains the responses');
  return { violations, undecided: order === 'gave up' };
}

const getResponseTime = ({ respondedAt = Number.POSITIVE_INFINITY }: Operation): number => respondedAt;

/** One generation has one refresh token. */
function findForks(operations: readonly Operation[]): readonly string[] {
  const tokens = new Map<number, Set<string>>();
  for (const { issued, token } of operations)
    if (issued !== undefined && token !== undefined) tokens.set(issued, (tokens.get(issued) ?? new Set()).add(token));
  return [...tokens].flatMap(([generation, all]) =>
    all.size > 1 ? [`${all.size} different tokens of generation ${generation}`] : [],
  );
}

/** Whether this operation can revoke the grant. A refresh can if its token may be two generations behind. */
function mayRevoke(operation: Operation, operations: readonly Operation[]): boolean {
  const { kind, presented = 0, outcome } = operation;
  if (kind === 'revoke') return true;
  if (kind !== 'refresh' || outcome === 'ok') return false;
  const refreshes = operations.filter((other) => other.kind === 'refresh' && other !== operation);
  const known = Math.max(1, ...refreshes.map(({ issued = 0 }) => issued));
  const hidden = new Set(
    refreshes.filter((refresh) => refresh.outcome === 'unknown').map((refresh) => refresh.presented),
  ).size;
  return presented + 2 <= known + hidden;
}

/** Checks the revocation state of each process: no refusal without a revocation, and no acceptance after a refusal. */
function findWrongRefusals(operations: readonly Operation[]): readonly string[] {
  const found: string[] = [];
  const revocations = operations.filter((operation) => mayRevoke(operation, operations));
  const firstRevocation = Math.min(...revocations.map(({ calledAt }) => calledAt));
  // From this time on no process may accept: a revocation was acknowledged, or a reuse that must have revoked the grant.
  const revokedSince = Math.min(
    ...revocations
      .filter(
        (revocation) =>
          (revocation.kind === 'revoke' && revocation.outcome === 'ok') ||
          (revocation.kind === 'refresh' &&
            revocation.outcome === 'refused' &&
            revocations.every((other) => other === revocation || other.calledAt > getResponseTime(revocation))),
      )
      .map(getResponseTime),
  );
  const refusedAt = new Map<string, number>();
  for (const { kind, outcome, at, respondedAt = 0 } of operations)
    if (kind === 'validate' && outcome === 'refused')
      refusedAt.set(at, Math.min(refusedAt.get(at) ?? Number.POSITIVE_INFINITY, respondedAt));
  for (const operation of operations) {
    const { kind, outcome, at, calledAt } = operation;
    if (kind === 'validate' && outcome === 'refused' && getResponseTime(operation) < firstRevocation)
      found.push(`refused by ${at} before anything could have revoked the grant`);
    const isAccepted = outcome === 'ok' && (kind === 'validate' || kind === 'refresh');
    if (!isAccepted) continue;
    if (calledAt > revokedSince)
      found.push(`${kind} accepted by ${at} after the revocation of the grant was acknowledged`);
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

/** The state after this operation; undefined if it cannot take effect here with the observed outcome. */
function applyOperation(state: State, operation: Operation, mayBeDenied: boolean): State | undefined {
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
        if (!works || mayBeDenied) return works && presented < generation - 1 ? { ...state, sealed: true } : state;
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

const MAX_TRIED = 500_000;

function hasOrder(operations: readonly Operation[], first: State): 'yes' | 'no' | 'gave up' {
  const sorted = operations.toSorted((a, b) => a.calledAt - b.calledAt);
  const bit = sorted.map((_, index) => 1n << BigInt(index));
  const needed = sorted.reduce(
    (all, { outcome }, index) => (outcome === 'unknown' ? all : all | (bit[index] ?? 0n)),
    0n,
  );
  // A revocation that is announced but not yet stored is known to the refusing process and not to the record.
  const denials = sorted.map((operation) =>
    sorted.some(
      (other) => other !== operation && mayRevoke(other, sorted) && other.calledAt < getResponseTime(operation),
    ),
  );
  const tried = new Set<string>();
  const stack: { readonly done: bigint; readonly state: State }[] = [{ done: 0n, state: first }];
  for (let node = stack.pop(); node !== undefined; node = stack.pop()) {
    const { done, state } = node;
    if ((done & needed) === needed) return 'yes';
    const key = `${done.toString(36)} ${state.exists} ${state.generation} ${state.sealed}`;
    if (tried.has(key)) continue;
    tried.add(key);
    if (tried.size > MAX_TRIED) return 'gave up';
    // An operation called after the response of another comes after it.
    let firstResponse = Number.POSITIVE_INFINITY;
    for (const [index, operation] of sorted.entries())
      if ((done & (bit[index] ?? 0n)) === 0n) firstResponse = Math.min(firstResponse, getResponseTime(operation));
    for (const [index, operation] of sorted.entries()) {
      if (operation.calledAt > firstResponse) break;
      if ((done & (bit[index] ?? 0n)) !== 0n) continue;
      const next = applyOperation(state, operation, denials[index] ?? false);
      // An operation of unknown outcome that changes nothing can be ignored.
      if (next === undefined || (operation.outcome === 'unknown' && next === state)) continue;
      stack.push({ done: done | (bit[index] ?? 0n), state: next });
    }
  }
  return 'no';
}
