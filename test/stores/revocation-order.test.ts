import fc from 'fast-check';
import { expect, test } from 'vitest';
import {
  createRevocationView,
  getNextNumber,
  identityKey,
  type KeyedEntry,
} from '../../src/stores/revocation-rules.ts';

const NOW = 1_800_000_000;
const KEEP_UNTIL = NOW * 2;
const REPLICAS = 3;

/** A request reads the last number, then makes its checks, then issues a token; anything can happen in between. */
interface IssuedToken {
  readonly identity: string;
  readonly issuedAfter: number;
  /** How many revocations had been announced, and how many the replica had applied, when the request arrived. */
  readonly announced: number;
  readonly applied: number;
}

const identityArbitrary = fc.constantFrom('alice', 'bob');
const replicaArbitrary = fc.nat({ max: REPLICAS - 1 });
const stepArbitrary = fc.oneof(
  // The clock of the store, which can be wrong and be set back.
  fc.record({ revoke: identityArbitrary, clock: fc.integer({ min: NOW - 5, max: NOW + 5 }) }),
  fc.record({ apply: replicaArbitrary }),
  fc.record({ issue: identityArbitrary, on: replicaArbitrary }),
);

test('V13 a revocation applies exactly to the tokens of requests that began before their replica had applied it', () => {
  fc.assert(
    fc.property(fc.array(stepArbitrary, { maxLength: 60 }), (steps) => {
      const log: { readonly identity: string; readonly entry: KeyedEntry }[] = [];
      let lastNumber = 0;
      const replicas = Array.from({ length: REPLICAS }, () => ({
        view: createRevocationView(),
        applied: 0,
        number: 0,
      }));
      const applyNext = (replica: (typeof replicas)[number]): void => {
        const next = log[replica.applied];
        if (next === undefined) return;
        replica.view.add(...next.entry);
        replica.number = Math.max(replica.number, next.entry[1].limit);
        replica.applied += 1;
      };
      const tokens: IssuedToken[] = [];
      for (const step of steps)
        if ('revoke' in step) {
          lastNumber = getNextNumber(lastNumber, step.clock);
          const entry = { limit: lastNumber, notBefore: step.clock + 1, keepUntil: KEEP_UNTIL };
          log.push({ identity: step.revoke, entry: [identityKey(step.revoke), entry] });
        } else if ('apply' in step) applyNext(replicas[step.apply] as (typeof replicas)[number]);
        else {
          const { applied, number } = replicas[step.on] as (typeof replicas)[number];
          tokens.push({ identity: step.issue, issuedAfter: number, announced: log.length, applied });
        }
      for (const replica of replicas) while (replica.applied < log.length) applyNext(replica);
      for (const { identity, issuedAfter, announced, applied } of tokens) {
        const isOf = (revocation: { readonly identity: string }): boolean => revocation.identity === identity;
        for (const { view } of replicas) {
          const subject = {
            grantId: 'g',
            generation: 1,
            clientId: 'c',
            identity,
            issuedAt: NOW,
            issuedAfter,
          };
          const revoked = view.isRevoked(subject, NOW);
          expect(revoked).toBe(log.slice(applied).some(isOf));
          // In particular: every token that existed when the revocation was announced.
          if (log.slice(announced).some(isOf)) expect(revoked).toBe(true);
        }
      }
    }),
    { numRuns: 500 },
  );
});
