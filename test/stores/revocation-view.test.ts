import fc from 'fast-check';
import { expect, test } from 'vitest';
import { randomGrantId } from '../../src/grants/issue.ts';
import { mergeEntries, type RevocationEntry } from '../../src/stores/revocation-rules.ts';
import { createRevocationView } from '../../src/stores/revocation-view.ts';
import { createRevokedGrantMap, SWEEPS_PER_PASS } from '../../src/stores/revoked-grant-map.ts';
import { manyRevocations } from './many-revocations.ts';

const NOW = 1_800_000_000;
const ENDED = Number.POSITIVE_INFINITY;
const unknown = { clientId: 'c', identity: 'i', issuedAt: NOW };

/** Few ids that share their first letters, so that they lie beside each other; and others of any form. */
const anId = fc.oneof(
  fc.integer({ min: 0, max: 3 }).map((last) => `AAAAAAAAAAAAAAAAAAAAA${'AB_9'[last]}`),
  fc.constantFrom(
    'AAAAAAAAAAAAAAAAAAABAA',
    'AAAAAAABAAAAAAAAAAAAAA',
    'BAAAAAAAAAAAAAAAAAAAAA',
    '_'.repeat(22),
  ),
  fc.constantFrom(
    'g1',
    '',
    'AAAAAAAAAAAAAAAAAAAAA',
    'AAAAAAAAAAAAAAAAAAAAAAA',
    'AAAAAAAAAAAAAAAAAAAAA!',
    'é'.repeat(22),
  ),
);
const anEntry = fc.record({
  limit: fc.oneof(fc.nat(6), fc.constantFrom(ENDED, 2 ** 32 - 2, 2 ** 32 - 1, 2 ** 32, 2 ** 40)),
  keepUntil: fc.oneof(
    fc.integer({ min: NOW - 3, max: NOW + 3 }),
    fc.constantFrom(2 ** 32 - 1, 2 ** 33, Number.MAX_SAFE_INTEGER),
  ),
});

test('the view agrees with a plain map, for any additions, lookups and sweeps', () => {
  const aStep = fc.oneof(
    { weight: 6, arbitrary: fc.record({ id: anId, entry: anEntry }) },
    { weight: 1, arbitrary: fc.record({ sweepAt: fc.integer({ min: NOW - 3, max: NOW + 3 }) }) },
  );
  fc.assert(
    fc.property(
      fc.array(aStep, { maxLength: 60 }),
      fc.integer({ min: NOW - 4, max: NOW + 4 }),
      (steps, now) => {
        const view = createRevocationView();
        const model = new Map<string, RevocationEntry>();
        let time = 0;
        const ids = new Set<string>();
        for (const step of steps) {
          if ('entry' in step) {
            const known = model.get(step.id);
            model.set(step.id, known === undefined ? step.entry : mergeEntries(known, step.entry));
            view.add(`g:${step.id}`, step.entry);
            ids.add(step.id);
          } else {
            // Time does not go back.
            time = Math.max(time, step.sweepAt);
            for (let attempt = 0; attempt < SWEEPS_PER_PASS; attempt += 1) view.sweep(time);
            for (const [id, { keepUntil }] of model) if (keepUntil <= time) model.delete(id);
          }
        }
        expect(new Map(view.entries())).toEqual(new Map([...model].map(([id, entry]) => [`g:${id}`, entry])));
        expect(view.size()).toBe(model.size);
        const request = Math.max(now, time);
        for (const id of ids)
          for (const generation of [0, 3, 5, 2 ** 32 - 2, 2 ** 32 - 1, 2 ** 39, Number.MAX_SAFE_INTEGER]) {
            const entry = model.get(id);
            const limit = entry !== undefined && request < entry.keepUntil ? entry.limit : 0;
            expect(view.isRevoked({ ...unknown, grantId: id, generation }, request)).toBe(generation < limit);
          }
      },
    ),
    { numRuns: 150 },
  );
});

test('ids that differ in a single letter, anywhere, are never confused', () => {
  const kept = createRevokedGrantMap();
  const id = randomGrantId();
  kept.set(id, { limit: ENDED, keepUntil: NOW + 9 });
  for (let at = 0; at < id.length; at += 1)
    for (const letter of 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_') {
      const other = id.slice(0, at) + letter + id.slice(at + 1);
      expect(kept.get(other) !== undefined).toBe(other === id);
    }
});

test('what is kept is given back letter by letter', () => {
  const kept = createRevokedGrantMap();
  const ids = Array.from({ length: 5_000 }, randomGrantId);
  for (const [index, id] of ids.entries()) kept.set(id, { limit: index, keepUntil: NOW + index });
  expect(new Set(Array.from(kept.entries(), ([id]) => id))).toEqual(new Set(ids));
  for (const [index, id] of ids.entries())
    expect(kept.get(id)).toEqual({ limit: index, keepUntil: NOW + index });
  for (const id of ids.slice(0, 2_500)) kept.delete(id);
  expect(kept.size()).toBe(2_500);
  expect(ids.map((id) => kept.get(id) !== undefined)).toEqual(ids.map((_, index) => index >= 2_500));
});

test('V12 a hundred thousand revoked grants are all found, and are gone after their time', () => {
  manyRevocations(100_000);
});
