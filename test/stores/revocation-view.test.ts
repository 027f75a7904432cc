import fc from 'fast-check';
import { expect, test } from 'vitest';
import { randomGrantId } from '../../src/grants/issue.ts';
import { createRevocationView, mergeEntries, type RevocationEntry } from '../../src/stores/revocation-rules.ts';
import { createRevokedGrantMap, SWEEPS_PER_PASS } from '../../src/stores/revoked-grant-map.ts';
import { testManyRevocations } from './many-revocations.ts';

const NOW = 1_800_000_000;
const ENDED = Number.POSITIVE_INFINITY;
const unknown = { clientId: 'c', identity: 'i', issuedAt: NOW };

/** A few ids with a common prefix, so that they are adjacent in the table, and ids of other forms. */
const idArbitrary = fc.oneof(
  fc.integer({ min: 0, max: 3 }).map((last) => `AAAAAAAAAAAAAAAAAAAAA${'AB_9'[last]}`),
  fc.constantFrom('AAAAAAAAAAAAAAAAAAABAA', 'AAAAAAABAAAAAAAAAAAAAA', 'BAAAAAAAAAAAAAAAAAAAAA', '_'.repeat(22)),
  fc.constantFrom(
    'g1',
    '',
    'AAAAAAAAAAAAAAAAAAAAA',
    'AAAAAAAAAAAAAAAAAAAAAAA',
    'AAAAAAAAAAAAAAAAAAAAA!',
    'é'.repeat(22),
  ),
);
const entryArbitrary = fc.record({
  limit: fc.oneof(fc.nat(6), fc.constantFrom(ENDED, 2 ** 32 - 2, 2 ** 32 - 1, 2 ** 32, 2 ** 40)),
  keepUntil: fc.oneof(
    fc.integer({ min: NOW - 3, max: NOW + 3 }),
    fc.constantFrom(2 ** 32 - 1, 2 ** 33, Number.MAX_SAFE_INTEGER),
  ),
});

test('the view agrees with a plain map, for any additions, lookups and sweeps', () => {
  const stepArbitrary = fc.oneof(
    { weight: 6, arbitrary: fc.record({ id: idArbitrary, entry: entryArbitrary }) },
    { weight: 1, arbitrary: fc.record({ sweepAt: fc.integer({ min: NOW - 3, max: NOW + 3 }) }) },
  );
  fc.assert(
    fc.property(
      fc.array(stepArbitrary, { maxLength: 60 }),
      fc.integer({ min: NOW - 4, max: NOW + 4 }),
      (steps, now) => {
        const view = createRevocationView();
        const model = new Map<string, RevocationEntry>();
        let time = 0;
        const ids = new Set<string>();
        for (const step of steps) {
          if ('entry' in step) {
            const current = model.get(step.id);
            model.set(step.id, current === undefined ? step.entry : mergeEntries(current, step.entry));
            view.add(`g:${step.id}`, step.entry);
            ids.add(step.id);
          } else {
            // Time only moves forward.
            time = Math.max(time, step.sweepAt);
            for (let attempt = 0; attempt < SWEEPS_PER_PASS; attempt += 1) view.sweep(time);
            for (const [id, { keepUntil }] of model) if (keepUntil <= time) model.delete(id);
          }
        }
        expect(new Map(view.entries())).toEqual(new Map([...model].map(([id, entry]) => [`g:${id}`, entry])));
        expect(view.size()).toBe(model.size);
        const lookupTime = Math.max(now, time);
        for (const id of ids)
          for (const generation of [0, 3, 5, 2 ** 32 - 2, 2 ** 32 - 1, 2 ** 39, Number.MAX_SAFE_INTEGER]) {
            const entry = model.get(id);
            const limit = entry !== undefined && lookupTime < entry.keepUntil ? entry.limit : 0;
            expect(view.isRevoked({ ...unknown, grantId: id, generation }, lookupTime)).toBe(generation < limit);
          }
      },
    ),
    { numRuns: 150 },
  );
});

test('ids that differ in any single character are never confused', () => {
  const grants = createRevokedGrantMap();
  const id = randomGrantId();
  grants.set(id, { limit: ENDED, keepUntil: NOW + 9 });
  for (let at = 0; at < id.length; at += 1)
    for (const letter of 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_') {
      const other = id.slice(0, at) + letter + id.slice(at + 1);
      expect(grants.get(other) !== undefined).toBe(other === id);
    }
});

test('stored ids are returned unchanged', () => {
  const grants = createRevokedGrantMap();
  const ids = Array.from({ length: 5_000 }, randomGrantId);
  for (const [index, id] of ids.entries()) grants.set(id, { limit: index, keepUntil: NOW + index });
  expect(new Set(Array.from(grants.entries(), ([id]) => id))).toEqual(new Set(ids));
  for (const [index, id] of ids.entries()) expect(grants.get(id)).toEqual({ limit: index, keepUntil: NOW + index });
  for (const id of ids.slice(0, 2_500)) grants.delete(id);
  expect(grants.size()).toBe(2_500);
  expect(ids.map((id) => grants.get(id) !== undefined)).toEqual(ids.map((_, index) => index >= 2_500));
});

test('V12 a hundred thousand revoked grants are all found, and are removed after they expire', () => {
  testManyRevocations(100_000);
});
