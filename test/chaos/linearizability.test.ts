import { describe, expect, test } from 'vitest';
import { checkGrant, type Operation } from './linearizability.ts';
import { randomFrom } from './report.ts';

type Written = Partial<Operation> & Pick<Operation, 'kind' | 'outcome'>;

/** One after another, unless times are given. */
const history = (...written: readonly Written[]): readonly Operation[] =>
  written.map((one, index) => ({
    grant: 'g',
    at: 'a',
    calledAt: index * 10,
    ...(one.outcome !== 'unknown' && { respondedAt: index * 10 + 5 }),
    ...(one.issued !== undefined && { token: `token ${one.issued}` }),
    ...one,
  }));
const refresh = (presented: number, issued: number, more: Partial<Operation> = {}): Written => ({
  kind: 'refresh',
  outcome: 'ok',
  presented,
  issued,
  ...more,
});
const refreshRefused = (presented: number, more: Partial<Operation> = {}): Written => ({
  kind: 'refresh',
  outcome: 'refused',
  presented,
  ...more,
});
const lost = (presented: number, more: Partial<Operation> = {}): Written => ({
  kind: 'refresh',
  outcome: 'unknown',
  presented,
  ...more,
});
const revoke = (outcome: Operation['outcome'] = 'ok', more: Partial<Operation> = {}): Written => ({
  kind: 'revoke',
  outcome,
  ...more,
});
const validate = (outcome: 'ok' | 'refused', more: Partial<Operation> = {}): Written => ({
  kind: 'validate',
  outcome,
  ...more,
});
const redeem = (outcome: Operation['outcome'], more: Partial<Operation> = {}): Written => ({
  kind: 'redeem',
  outcome,
  ...(outcome === 'ok' && { issued: 1 }),
  ...more,
});

const violationsOf = (operations: readonly Operation[], exists = true): readonly string[] => {
  const { violations, undecided } = checkGrant(operations, { exists });
  expect(undecided).toBe(false);
  return violations;
};

describe('a possible history is accepted', () => {
  test.each<[string, readonly Operation[], boolean?]>([
    ['rotations, and a retry', history(refresh(1, 2), refresh(1, 2), refresh(2, 3), refresh(2, 3))],
    [
      'many at once',
      history(
        refresh(1, 2, { calledAt: 0, respondedAt: 50 }),
        refresh(1, 2, { calledAt: 1, respondedAt: 40 }),
        refresh(2, 3, { calledAt: 45, respondedAt: 60 }),
      ),
    ],
    ['an answer that was lost, before and after', history(lost(1), refresh(1, 2), lost(2), refresh(3, 4))],
    ['a reuse ends the grant', history(refresh(1, 2), refresh(2, 3), refreshRefused(1), refreshRefused(3))],
    [
      'a revocation that reached one process and not the other',
      history(
        revoke('unknown'),
        validate('refused', { at: 'a' }),
        validate('ok', { at: 'b' }),
        refreshRefused(1, { at: 'a' }),
        refresh(1, 2, { at: 'b' }),
      ),
    ],
    [
      'what a revocation under way may still let through',
      history(revoke('ok', { respondedAt: 100 }), validate('ok')),
    ],
    ['a code redeemed once', history(redeem('ok'), redeem('refused'), refresh(1, 2)), false],
    ['a redemption whose answer was lost', history(redeem('unknown'), redeem('refused')), false],
    ['a redemption that never happened', history(redeem('unknown'), redeem('ok')), false],
  ])('%s', (_, operations, exists = true) => {
    expect(violationsOf(operations, exists)).toEqual([]);
  });
});

describe('a history that cannot have happened is found', () => {
  test.each<[string, readonly Operation[], boolean?]>([
    [
      'a lost update: a rotation that was acknowledged is undone',
      history(refresh(1, 2), refresh(2, 3), refresh(1, 2)),
    ],
    [
      'a lost update among many at once',
      history(
        refresh(1, 2, { calledAt: 0, respondedAt: 10 }),
        refresh(2, 3, { calledAt: 11, respondedAt: 20 }),
        refresh(2, 4, { calledAt: 12, respondedAt: 30 }),
      ),
    ],
    ['two different successors', history(refresh(1, 2), refresh(1, 2, { token: 'another' }))],
    ['a generation nobody rotated to', history(refresh(1, 3))],
    ['a lost grant', history(refresh(1, 2), refreshRefused(2))],
    ['a client punished for our lost answer', history(lost(1), refreshRefused(1))],
    ['a refresh after the revocation', history(revoke(), refresh(1, 2))],
    ['a revoked grant that comes back', history(revoke(), validate('refused'), validate('ok'))],
    [
      'another process that did not hear of the revocation',
      history(revoke('ok', { at: 'a' }), validate('ok', { at: 'b' })),
    ],
    ['a process that forgets what it knew', history(revoke('unknown'), validate('refused'), validate('ok'))],
    ['a token refused without a cause', history(refresh(1, 2), validate('refused'))],
    ['a reuse that ended nothing', history(refresh(1, 2), refresh(2, 3), refreshRefused(1), validate('ok'))],
    [
      'a refresh that goes on after a reuse',
      history(refresh(1, 2), refresh(2, 3), refreshRefused(1), refresh(3, 4)),
    ],
    ['a code redeemed twice', history(redeem('ok'), redeem('ok')), false],
    [
      'a code redeemed twice at once',
      history(redeem('ok', { calledAt: 0, respondedAt: 10 }), redeem('ok', { calledAt: 1, respondedAt: 9 })),
      false,
    ],
    ['a refresh before the redemption', history(refresh(1, 2), redeem('ok')), false],
    ['a code spent by nobody', history(redeem('refused')), false],
  ])('%s', (_, operations, exists = true) => {
    expect(violationsOf(operations, exists)).not.toEqual([]);
  });
});

/** A right store, run in memory at random; a second one that forgets its last rotation now and then. */
function made(
  seed: number,
  forgets: boolean,
): { readonly operations: Operation[]; readonly forgot: boolean } {
  const random = randomFrom(seed);
  const operations: Operation[] = [];
  let generation = 1;
  let sealed = false;
  let forgot = false;
  let now = 0;
  for (let index = 0; index < 40; index += 1) {
    const calledAt = now;
    const effect = calledAt + random() * 10;
    now += random() * 4;
    const presented = random() < 0.8 ? generation : Math.max(1, generation - 1);
    const times = { grant: 'g', at: 'a', calledAt, respondedAt: effect + random() * 10 };
    if (sealed || (index === 35 && random() < 0.5)) {
      operations.push({
        ...times,
        kind: sealed ? 'refresh' : 'revoke',
        outcome: sealed ? 'refused' : 'ok',
        presented,
      });
      sealed = true;
      // Later operations come after: this store takes one at a time once it has ended.
      now = Math.max(now, times.respondedAt + 1);
      continue;
    }
    if (presented === generation) generation += 1;
    operations.push({
      ...times,
      kind: 'refresh',
      outcome: 'ok',
      presented,
      issued: generation,
      token: `t${generation}`,
    });
    now = Math.max(now, effect);
    if (forgets && generation > 3 && random() < 0.1) {
      generation -= 2;
      forgot = true;
      now = Math.max(now, times.respondedAt + 1);
    }
  }
  return { operations, forgot };
}

test('500 random histories of a correct store are accepted; those of one that forgets rotations are detected', () => {
  let found = 0;
  let broken = 0;
  for (let seed = 1; seed <= 500; seed += 1) {
    expect(violationsOf(made(seed, false).operations)).toEqual([]);
    const { operations, forgot } = made(seed, true);
    if (!forgot) continue;
    broken += 1;
    if (violationsOf(operations).length > 0) found += 1;
  }
  expect(broken).toBeGreaterThan(200);
  // What was forgotten last may not have been looked at again.
  expect(found).toBeGreaterThan(broken * 0.9);
});
