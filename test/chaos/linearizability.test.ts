import { describe, expect, test } from 'vitest';
import { randomFrom } from './form.ts';
import { checkGrant, type Operation } from './linearizability.ts';

type Written = Partial<Operation> & Pick<Operation, 'kind' | 'outcome'>;

/** One after another, unless times are given. */
const history = (...written: readonly Written[]): readonly Operation[] =>
  written.map((one, index) => ({
    grant: 'g',
    at: 'a',
    called: index * 10,
    ...(one.outcome !== 'unknown' && { answered: index * 10 + 5 }),
    ...(one.gave !== undefined && { token: `token ${one.gave}` }),
    ...one,
  }));
const refresh = (shown: number, gave: number, more: Partial<Operation> = {}): Written => ({
  kind: 'refresh',
  outcome: 'ok',
  shown,
  gave,
  ...more,
});
const refreshRefused = (shown: number, more: Partial<Operation> = {}): Written => ({
  kind: 'refresh',
  outcome: 'refused',
  shown,
  ...more,
});
const lost = (shown: number, more: Partial<Operation> = {}): Written => ({
  kind: 'refresh',
  outcome: 'unknown',
  shown,
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
  ...(outcome === 'ok' && { gave: 1 }),
  ...more,
});

const violationsOf = (operations: readonly Operation[], exists = true): readonly string[] => {
  const { violations, undecided } = checkGrant(operations, { exists });
  expect(undecided).toBe(false);
  return violations;
};

describe('a history that can have happened is believed', () => {
  test.each<[string, readonly Operation[], boolean?]>([
    ['rotations, and a retry', history(refresh(1, 2), refresh(1, 2), refresh(2, 3), refresh(2, 3))],
    [
      'many at once',
      history(
        refresh(1, 2, { called: 0, answered: 50 }),
        refresh(1, 2, { called: 1, answered: 40 }),
        refresh(2, 3, { called: 45, answered: 60 }),
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
      history(revoke('ok', { answered: 100 }), validate('ok')),
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
        refresh(1, 2, { called: 0, answered: 10 }),
        refresh(2, 3, { called: 11, answered: 20 }),
        refresh(2, 4, { called: 12, answered: 30 }),
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
      history(redeem('ok', { called: 0, answered: 10 }), redeem('ok', { called: 1, answered: 9 })),
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
    const called = now;
    const effect = called + random() * 10;
    now += random() * 4;
    const shown = random() < 0.8 ? generation : Math.max(1, generation - 1);
    const times = { grant: 'g', at: 'a', called, answered: effect + random() * 10 };
    if (sealed || (index === 35 && random() < 0.5)) {
      operations.push({
        ...times,
        kind: sealed ? 'refresh' : 'revoke',
        outcome: sealed ? 'refused' : 'ok',
        shown,
      });
      sealed = true;
      // Later operations come after: this store takes one at a time once it has ended.
      now = Math.max(now, times.answered + 1);
      continue;
    }
    if (shown === generation) generation += 1;
    operations.push({
      ...times,
      kind: 'refresh',
      outcome: 'ok',
      shown,
      gave: generation,
      token: `t${generation}`,
    });
    now = Math.max(now, effect);
    if (forgets && generation > 3 && random() < 0.1) {
      generation -= 2;
      forgot = true;
      now = Math.max(now, times.answered + 1);
    }
  }
  return { operations, forgot };
}

test('500 random histories of a right store are believed; those of one that forgets rotations are found', () => {
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
