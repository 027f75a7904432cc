import { randomBytes } from 'node:crypto';
import { expect } from 'vitest';
import { randomGrantId } from '../../src/grants/issue.ts';
import { createRevocationView } from '../../src/stores/revocation-rules.ts';
import { SWEEPS_PER_PASS } from '../../src/stores/revoked-grant-map.ts';

const NOW = 1_800_000_000;
const ENDED = Number.POSITIVE_INFINITY;
const unknown = { clientId: 'c', identity: 'i', issuedAt: NOW };

/** Adds `count` revocations, finds each, and lets them expire. Returns the bytes they used. */
export function testManyRevocations(count: number): number {
  const view = createRevocationView();
  // One large random string: a million small ones would take longer than everything else.
  const letters = randomBytes(count * 17).toString('base64url');
  const idAt = (index: number): string => letters.slice(index * 22, index * 22 + 22);
  for (let index = 0; index < count; index += 1)
    view.add(`g:${idAt(index)}`, { limit: ENDED, keepUntil: NOW + 1 + (index % 2) });
  expect(view.size()).toBe(count);
  const bytes = view.bytes();
  let found = 0;
  for (let index = 0; index < count; index += 1)
    if (view.isRevoked({ ...unknown, grantId: idAt(index), generation: 7 }, NOW)) found += 1;
  expect(found).toBe(count);
  expect(view.isRevoked({ ...unknown, grantId: randomGrantId(), generation: 7 }, NOW)).toBe(false);
  const sweepAll = (now: number): void => {
    for (let attempt = 0; attempt < SWEEPS_PER_PASS; attempt += 1) view.sweep(now);
  };
  sweepAll(NOW + 1);
  expect(view.size()).toBe(count / 2);
  sweepAll(NOW + 2);
  expect([view.size(), view.bytes()]).toEqual([0, 0]);
  return bytes;
}
