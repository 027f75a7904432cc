import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { Grant } from '../../src/domain/grant.ts';
import type { GrantIndex, GrantQuery } from '../../src/ports/grant-index.ts';
import type { Store } from '../../src/ports/store.ts';
import { LATER, testClock, testGrant } from '../support/store-fixtures.ts';

/** Reads all pages; returns each grant once. */
export async function everyGrant(index: GrantIndex, query: GrantQuery): Promise<readonly Grant[]> {
  const found = new Map<string, Grant>();
  let after: string | undefined;
  for (let pages = 0; pages < 5_000; pages += 1) {
    const page = await index.list({ ...query, ...(after !== undefined && { after }) });
    for (const grant of page.grants) found.set(grant.id, grant);
    if (page.next === undefined) return [...found.values()].toSorted((a, b) => (a.id < b.id ? -1 : 1));
    after = page.next;
  }
  throw new Error('no last page');
}

/** The guarantees of every grant index. */
export function describeGrantIndex(name: string, open: (now: () => number) => Promise<Store>): void {
  describe(`${name} lists grants`, () => {
    let clock = testClock();
    let store: Store;
    beforeEach(async () => {
      clock = testClock();
      store = await open(clock.now);
    });
    afterEach(() => store.close());

    const createGrant = async (id: string, changes: Partial<Grant> = {}, keepUntil = LATER): Promise<Grant> => {
      const grant = testGrant({ id, ...changes });
      expect(await store.grants.create(id, grant, keepUntil)).toBe('created');
      return grant;
    };
    const listIds = async (query: GrantQuery): Promise<readonly string[]> =>
      (await everyGrant(store.grantIndex, query)).map(({ id }) => id);

    test('of one identity only', async () => {
      const expected = await createGrant('a', { identity: 'corp:{A}' });
      await createGrant('b', { identity: 'corp:{A' });
      await createGrant('c', { identity: 'corp:{A}}' });
      expect(await everyGrant(store.grantIndex, { identity: 'corp:{A}', limit: 10 })).toEqual([expected]);
      expect(await listIds({ identity: 'corp:{a}', limit: 10 })).toEqual([]);
      expect(await listIds({ identity: '', limit: 10 })).toEqual([]);
    });

    test('of one integration, of one integration and identity, and all of them', async () => {
      await createGrant('a', { clientId: 'one', identity: 'corp:01' });
      await createGrant('b', { clientId: 'two', identity: 'corp:01' });
      await createGrant('c', { clientId: 'two', identity: 'corp:02' });
      expect(await listIds({ clientId: 'two', limit: 10 })).toEqual(['b', 'c']);
      expect(await listIds({ clientId: 'two', identity: 'corp:01', limit: 10 })).toEqual(['b']);
      expect(await listIds({ limit: 10 })).toEqual(['a', 'b', 'c']);
    });

    test.each([1, 2, 7, 100])('completely, in pages of %i', async (limit) => {
      const expectedIds = Array.from({ length: 30 }, (_, at) => `g${String(at).padStart(2, '0')}`);
      // Half of them expire at the same time, like grants issued in the same second.
      await Promise.all(
        expectedIds.map((id, at) => createGrant(id, { identity: 'corp:01' }, LATER + Math.max(0, at - 15))),
      );
      await createGrant('other', { identity: 'corp:02' });
      expect(await listIds({ identity: 'corp:01', limit })).toEqual(expectedIds);
      expect(await listIds({ limit })).toEqual([...expectedIds, 'other']);
    });

    test('in their current state after being replaced and revoked', async () => {
      await createGrant('a', { identity: 'corp:01' });
      const found = await store.grants.read('a');
      if (found === undefined) throw new Error('grant not found');
      const changed = { ...found.record, generation: 5, revokedAt: clock.now() };
      await store.grants.replace('a', found.version, changed, LATER);
      expect(await everyGrant(store.grantIndex, { identity: 'corp:01', limit: 10 })).toEqual([changed]);
    });

    test('until their records expire', async () => {
      await createGrant('short', { identity: 'corp:01' }, LATER);
      await createGrant('long', { identity: 'corp:01' }, LATER + 10);
      clock.at(LATER - 1);
      expect(await listIds({ identity: 'corp:01', limit: 10 })).toEqual(['long', 'short']);
      clock.at(LATER);
      expect(await listIds({ identity: 'corp:01', limit: 10 })).toEqual(['long']);
      expect(await listIds({ limit: 10 })).toEqual(['long']);
      clock.at(LATER + 10);
      expect(await listIds({ identity: 'corp:01', limit: 10 })).toEqual([]);
    });

    test('under the new identity when an id is reused after expiry', async () => {
      await createGrant('a', { identity: 'corp:01' });
      clock.at(LATER);
      await createGrant('a', { identity: 'corp:02' }, LATER + 10);
      expect(await listIds({ identity: 'corp:01', limit: 10 })).toEqual([]);
      expect(await listIds({ identity: 'corp:02', limit: 10 })).toEqual(['a']);
    });

    test('completely even if others expire between two pages', async () => {
      for (const id of ['a', 'b', 'c', 'd'])
        await createGrant(id, { identity: 'corp:01' }, id === 'b' ? LATER : LATER + 9);
      const first = await store.grantIndex.list({ identity: 'corp:01', limit: 2 });
      clock.at(LATER);
      const rest: Grant[] = [];
      for (let after = first.next; after !== undefined; ) {
        const page = await store.grantIndex.list({ identity: 'corp:01', limit: 2, after });
        rest.push(...page.grants);
        after = page.next;
      }
      const seen = new Set([...first.grants, ...rest].map(({ id }) => id));
      expect([...seen].filter((id) => id !== 'b').toSorted()).toEqual(['a', 'c', 'd']);
    });

    test.each(['', ' ', 'x', '-1 a', '1e5 a', 'nan a', 'a b c', '0 x', '99 0', '\0', '9'.repeat(400)])(
      'without failing on an invalid cursor (%j)',
      async (after) => {
        await createGrant('a', { identity: 'corp:01' });
        for (const query of [{ identity: 'corp:01' }, {}])
          expect(Array.isArray((await store.grantIndex.list({ ...query, limit: 5, after })).grants)).toBe(true);
        expect(await listIds({ identity: 'corp:01', limit: 5 })).toEqual(['a']);
      },
    );

    test('once, even if the same id was created twice', async () => {
      await createGrant('a', { identity: 'corp:01' });
      await store.grants.create('a', testGrant({ id: 'a', identity: 'corp:02' }), LATER);
      expect(await listIds({ identity: 'corp:01', limit: 10 })).toEqual(['a']);
      expect(await listIds({ identity: 'corp:02', limit: 10 })).toEqual([]);
    });
  });
}
