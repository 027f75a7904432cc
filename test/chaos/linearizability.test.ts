import { describe, expect, test } from 'vitest';
import { checkGrant, type Operation } from './linearizability.ts';
import { randomFrom } from './support.ts';

type PartialOperation = Partial<Operation> & Pick<Operation, 'kind' | 'outcome'>;

/** Sequential operations, unless times are given. */
const history = (...partial: readonly PartialOperation[]): readonly Operation[] =>
  partial.map((operation, index) => ({
    grant: 'g',
    at: 'a',
    calledAt: index * 10,
    ...(operation.outcome !== 'unknown' && { respondedAt: index * 10 + 5 }),
    ...(operation.issued !== undefined && { token: `token ${operation.issued}` }),
    ...operation,
  }));
const refresh = (presented: number, issued: number, more: Partial<Operation> = {}): PartialOperation => ({
  kind: 'refresh',
  outcome: 'ok',
  presented,
  issued,
  ...more,
});
const refreshRefused = (presented: number, more: Partial<Operation> = {}): PartialOperation => ({
  kind: 'refresh',
  outcome: 'refused',
  presented,
  ...more,
});
const lost = (presented: number, more: Partial<Operation> = {}): PartialOperation => ({
  kind: 'refresh',
  outcome: 'unknown',
  presented,
  ...more,
});
const revoke = (outcome: Operation['outcome'] = 'ok', more: Partial<Operation> = {}): PartialOperation => ({
  kind: 'revoke',
  outcome,
  ...more,
});
const validate = (outcome: 'ok' | 'refused', more: Partial<Operation> = {}): PartialOperation => ({
  kind: 'validate',
  outcome,
  ...more,
});
const redeem = (outcome: Operation['outcome'], more: Partial<Operation> = {}): PartialOperation => ({
  kind: 'redeem',
  outcome,
  ...(outcome === 'ok' && { issued: 1 }),
  ...more,
});

const findViolations = (operations: readonly Operation[], exists = true): readonly string[] => {
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
    ['lost responses, with and without effect', history(lost(1), refresh(1, 2), lost(2), refresh(3, 4))],
    ['a reuse that revokes the grant', history(refresh(1, 2), refresh(2, 3), refreshRefused(1), refreshRefused(3))],
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
      'a token accepted while its revocation is in progress',
      history(revoke('ok', { respondedAt: 100 }), validate('ok')),
    ],
    ['a code redeemed once', history(redeem('ok'), redeem('refused'), refresh(1, 2)), false],
    ['a redemption whose response was lost', history(redeem('unknown'), redeem('refused')), false],
    ['a redemption that never happened', history(redeem('unknown'), redeem('ok')), false],
  ])('%s', (_, operations, exists = true) => {
    expect(findViolations(operations, exists)).toEqual([]);
  });
});

describe('an impossible history is detected', () => {
  test.each<[string, readonly Operation[], boolean?]>([
    ['a lost update: a rotation that was acknowledged is undone', history(refresh(1, 2), refresh(2, 3), refresh(1, 2))],
    [
      'a lost update among many at once',
      history(
        refresh(1, 2, { calledAt: 0, respondedAt: 10 }),
        refresh(2, 3, { calledAt: 11, respondedAt: 20 }),
        refresh(2, 4, { calledAt: 12, respondedAt: 30 }),
      ),
    ],
    ['two different successors', history(refresh(1, 2), refresh(1, 2, { token: 'another' }))],
    ['a skipped generation', history(refresh(1, 3))],
    ['a lost grant', history(refresh(1, 2), refreshRefused(2))],
    ['a retry after a lost response that is refused', history(lost(1), refreshRefused(1))],
    ['a refresh after the revocation', history(revoke(), refresh(1, 2))],
    ['a revoked grant that is accepted again', history(revoke(), validate('refused'), validate('ok'))],
    [
      'another process that does not know the revocation',
      history(revoke('ok', { at: 'a' }), validate('ok', { at: 'b' })),
    ],
    ['a process that forgets a revocation', history(revoke('unknown'), validate('refused'), validate('ok'))],
    ['a token refused without a revocation', history(refresh(1, 2), validate('refused'))],
    [
      'a reuse that does not revoke the grant',
      history(refresh(1, 2), refresh(2, 3), refreshRefused(1), validate('ok')),
    ],
    ['a refresh that succeeds after a reuse', history(refresh(1, 2), refresh(2, 3), refreshRefused(1), refresh(3, 4))],
    ['a code redeemed twice', history(redeem('ok'), redeem('ok')), false],
    [
      'a code redeemed twice at once',
      history(redeem('ok', { calledAt: 0, respondedAt: 10 }), redeem('ok', { calledAt: 1, respondedAt: 9 })),
      false,
    ],
    ['a refresh before the redemption', history(refresh(1, 2), redeem('ok')), false],
    ['a code refused although it was never redeemed', history(redeem('refused')), false],
  ])('%s', (_, operations, exists = true) => {
    expect(findViolations(operations, exists)).not.toEqual([]);
  });
});

/** Simulates a correct store with random operations, or one that sometimes loses its last rotation. */
function simulate(
  seed: number,
  losesRotations: boolean,
): { readonly operations: Operation[]; readonly hasLostRotation: boolean } {
  const random = randomFrom(seed);
  const operations: Operation[] = [];
  let generation = 1;
  let isRevoked = false;
  let hasLostRotation = false;
  let now = 0;
  for (let index = 0; index < 40; index += 1) {
    const calledAt = now;
    const effect = calledAt + random() * 10;
    now += random() * 4;
    const presented = random() < 0.8 ? generation : Math.max(1, generation - 1);
    const times = { grant: 'g', at: 'a', calledAt, respondedAt: effect + random() * 10 };
    if (isRevoked || (index === 35 && random() < 0.5)) {
      operations.push({
        ...times,
        kind: isRevoked ? 'refresh' : 'revoke',
        outcome: isRevoked ? 'refused' : 'ok',
        presented,
      });
      isRevoked = true;
      // After the revocation, operations are sequential.
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
    if (losesRotations && generation > 3 && random() < 0.1) {
      generation -= 2;
      hasLostRotation = true;
      now = Math.max(now, times.respondedAt + 1);
    }
  }
  return { operations, hasLostRotation };
}

test('500 random histories of a correct store are accepted; those of one that loses rotations are detected', () => {
  let detectedCount = 0;
  let lossCount = 0;
  for (let seed = 1; seed <= 500; seed += 1) {
    expect(findViolations(simulate(seed, false).operations)).toEqual([]);
    const { operations, hasLostRotation } = simulate(seed, true);
    if (!hasLostRotation) continue;
    lossCount += 1;
    if (findViolations(operations).length > 0) detectedCount += 1;
  }
  expect(lossCount).toBeGreaterThan(200);
  // A rotation lost near the end may not be observed again.
  expect(detectedCount).toBeGreaterThan(lossCount * 0.9);
});
