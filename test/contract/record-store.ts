import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { Version } from '../../src/ports/record-store.ts';
import { KEEP_FOREVER, type Store } from '../../src/ports/store.ts';
import { aClock, aGrant, LATER, NOW } from '../support/store-fixtures.ts';

/** The promises of every store. `open` gives one that is empty and runs by the given clock. */
export function describeStore(name: string, open: (now: () => number) => Promise<Store>): void {
  const aBearer = {
    grantId: 'g1',
    generation: 3,
    clientId: 'reporting-tool',
    identity: 'corp:00112233',
    issuedAt: NOW,
  };

  describe(`${name} keeps the promises of a store`, () => {
    let clock = aClock();
    let store: Store;
    beforeEach(async () => {
      clock = aClock();
      store = await open(clock.now);
    });
    afterEach(() => store.close());

    const versionOf = async (id: string): Promise<Version> => {
      const found = await store.grants.read(id);
      if (found === undefined) throw new Error(`${id} is not there`);
      return found.version;
    };

    test('what was created is read back whole, with the time of reading', async () => {
      expect(await store.grants.create('a', aGrant({ boundTo: 'x' }), LATER)).toBe('created');
      const found = await store.grants.read('a');
      expect(found?.record).toEqual(aGrant({ boundTo: 'x' }));
      expect(found?.now).toBe(NOW);
    });

    test('what was never created is not there', async () => {
      expect(await store.grants.read('nobody')).toBeUndefined();
    });

    test('an id is created once', async () => {
      expect(await store.grants.create('a', aGrant(), LATER)).toBe('created');
      expect(await store.grants.create('a', aGrant({ generation: 9 }), LATER)).toBe('taken');
      expect((await store.grants.read('a'))?.record.generation).toBe(1);
    });

    test('a hundred creators of one id at once: one is first', async () => {
      const outcomes = await Promise.all(
        Array.from({ length: 100 }, (_, generation) =>
          store.grants.create('a', aGrant({ generation }), LATER),
        ),
      );
      expect(outcomes.filter((outcome) => outcome === 'created')).toHaveLength(1);
      expect((await store.grants.read('a'))?.record.generation).toBe(outcomes.indexOf('created'));
    });

    test('the same id in two kinds of record is two records', async () => {
      expect(await store.grants.create('a', aGrant(), LATER)).toBe('created');
      expect(await store.userCodes.create('a', { requestId: 'r' }, LATER)).toBe('created');
      expect((await store.userCodes.read('a'))?.record).toEqual({ requestId: 'r' });
    });

    test('fifty writers that read the same version: one wins', async () => {
      await store.grants.create('a', aGrant(), LATER);
      const seen = await versionOf('a');
      const outcomes = await Promise.all(
        Array.from({ length: 50 }, (_, index) =>
          store.grants.replace('a', seen, aGrant({ generation: 100 + index }), LATER),
        ),
      );
      expect(outcomes.filter((outcome) => outcome === 'replaced')).toHaveLength(1);
      expect((await store.grants.read('a'))?.record.generation).toBe(100 + outcomes.indexOf('replaced'));
    });

    test('fifty writers that try again until they win all count', async () => {
      await store.grants.create('a', aGrant({ generation: 0 }), LATER);
      const addOne = async (): Promise<void> => {
        for (;;) {
          const found = await store.grants.read('a');
          if (found === undefined) throw new Error('gone');
          const next = { ...found.record, generation: found.record.generation + 1 };
          if ((await store.grants.replace('a', found.version, next, LATER)) === 'replaced') return;
        }
      };
      await Promise.all(Array.from({ length: 50 }, addOne));
      expect((await store.grants.read('a'))?.record.generation).toBe(50);
    });

    test('a version that was replaced is stale for ever', async () => {
      await store.grants.create('a', aGrant(), LATER);
      const first = await versionOf('a');
      expect(await store.grants.replace('a', first, aGrant({ generation: 2 }), LATER)).toBe('replaced');
      expect(await store.grants.replace('a', first, aGrant({ generation: 3 }), LATER)).toBe('stale');
      expect((await store.grants.read('a'))?.record.generation).toBe(2);
    });

    test('what is not there cannot be replaced', async () => {
      await store.grants.create('a', aGrant(), LATER);
      expect(await store.grants.replace('b', await versionOf('a'), aGrant(), LATER)).toBe('stale');
      expect(await store.grants.read('b')).toBeUndefined();
    });

    test('a record is there one second before its time, and gone at it', async () => {
      await store.grants.create('a', aGrant(), LATER);
      const seen = await versionOf('a');
      clock.at(LATER - 1);
      expect(await store.grants.read('a')).toBeDefined();
      expect(await store.grants.create('a', aGrant(), LATER)).toBe('taken');
      clock.at(LATER);
      expect(await store.grants.read('a')).toBeUndefined();
      expect(await store.grants.replace('a', seen, aGrant(), LATER + 10)).toBe('stale');
    });

    test('replacing a record moves its time', async () => {
      await store.grants.create('a', aGrant(), LATER);
      await store.grants.replace('a', await versionOf('a'), aGrant(), LATER + 100);
      clock.at(LATER + 99);
      expect(await store.grants.read('a')).toBeDefined();
      clock.at(LATER + 100);
      expect(await store.grants.read('a')).toBeUndefined();
    });

    test('an id is free again after its time, and a writer from its former life loses', async () => {
      await store.grants.create('a', aGrant({ clientId: 'former' }), LATER);
      const former = await versionOf('a');
      clock.at(LATER);
      expect(await store.grants.create('a', aGrant({ clientId: 'latter' }), LATER + 100)).toBe('created');
      expect(await store.grants.replace('a', former, aGrant({ clientId: 'former' }), LATER + 100)).toBe(
        'stale',
      );
      expect((await store.grants.read('a'))?.record.clientId).toBe('latter');
    });

    test('a hundred creators of an id whose time is over: one is first', async () => {
      await store.grants.create('a', aGrant(), LATER);
      clock.at(LATER);
      const outcomes = await Promise.all(
        Array.from({ length: 100 }, () => store.grants.create('a', aGrant(), LATER + 100)),
      );
      expect(outcomes.filter((outcome) => outcome === 'created')).toHaveLength(1);
    });

    test('ids may hold any character', async () => {
      const ids = [
        'a/b',
        'a b',
        'a\nb',
        'a\0b',
        '\0',
        'a',
        'a\0',
        'é',
        '😀',
        '1',
        'true',
        '{x}:y;z',
        '\x1b[0m',
        'A',
      ];
      for (const id of ids) expect(await store.grants.create(id, aGrant({ id }), LATER)).toBe('created');
      for (const id of ids) expect((await store.grants.read(id))?.record.id).toBe(id);
    });

    test('what was read belongs to the reader', async () => {
      await store.notes.create('a', { key: 'one' }, KEEP_FOREVER);
      const found = await store.notes.read('a');
      Object.assign(found?.record ?? {}, { key: 'two' });
      expect((await store.notes.read('a'))?.record).toEqual({ key: 'one' });
    });

    test('notes never end', async () => {
      await store.notes.create('keys', { signing: 'abc' }, KEEP_FOREVER);
      clock.at(NOW + 1000 * 365 * 86_400);
      expect((await store.notes.read('keys'))?.record).toEqual({ signing: 'abc' });
    });

    test('a store is empty until a grant or a device request is kept, notes aside', async () => {
      expect(await store.isEmpty()).toBe(true);
      await store.notes.create('keys', { signing: 'abc' }, KEEP_FOREVER);
      expect(await store.isEmpty()).toBe(true);
      await store.grants.create('a', aGrant(), LATER);
      expect(await store.isEmpty()).toBe(false);
    });

    test('a sound store answers its probe and was never away', async () => {
      await store.probe();
      expect(store.recoveredAt()).toBe(0);
    });

    describe('revocations', () => {
      const revoked = (changes: Partial<typeof aBearer> = {}): boolean =>
        store.revocations.isRevoked({ ...aBearer, ...changes });

      test('nothing is revoked at first', () => {
        expect(revoked()).toBe(false);
      });

      test('of a grant, the generations below are dead and the others live', async () => {
        await store.revocations.announce({
          of: 'grant',
          grantId: 'g1',
          belowGeneration: 3,
          keepUntil: LATER,
        });
        expect(revoked({ generation: 2 })).toBe(true);
        expect(revoked({ generation: 3 })).toBe(false);
        expect(revoked({ grantId: 'g2', generation: 2 })).toBe(false);
      });

      test('a grant can be ended for all generations', async () => {
        await store.revocations.announce({
          of: 'grant',
          grantId: 'g1',
          belowGeneration: Number.POSITIVE_INFINITY,
          keepUntil: LATER,
        });
        expect(revoked({ generation: Number.MAX_SAFE_INTEGER })).toBe(true);
      });

      test('of a client, what was issued before that time is dead', async () => {
        await store.revocations.announce({
          of: 'client',
          clientId: 'reporting-tool',
          notBefore: NOW,
          keepUntil: LATER,
        });
        expect(revoked({ issuedAt: NOW - 1 })).toBe(true);
        expect(revoked({ issuedAt: NOW })).toBe(false);
        expect(revoked({ issuedAt: NOW - 1, clientId: 'Reporting-Tool' })).toBe(false);
      });

      test('of an identity, what was issued before that time is dead', async () => {
        expect(revoked()).toBe(false);
        await store.revocations.announce({
          of: 'identity',
          identity: 'corp:00112233',
          notBefore: NOW,
          keepUntil: LATER,
        });
        expect(revoked({ issuedAt: NOW - 1 })).toBe(true);
        expect(revoked({ issuedAt: NOW })).toBe(false);
        expect(revoked({ issuedAt: NOW - 1, identity: 'corp:44556677' })).toBe(false);
      });

      test('a client and an identity of the same name are two', async () => {
        await store.revocations.announce({
          of: 'client',
          clientId: 'same',
          notBefore: NOW + 1,
          keepUntil: LATER,
        });
        expect(revoked({ identity: 'same', clientId: 'other' })).toBe(false);
        expect(revoked({ clientId: 'same' })).toBe(true);
      });

      test('announcements merge to the stricter, in whatever order they come', async () => {
        const announce = (belowGeneration: number, keepUntil: number): Promise<void> =>
          store.revocations.announce({ of: 'grant', grantId: 'g1', belowGeneration, keepUntil });
        await Promise.all([announce(2, LATER + 50), announce(5, LATER), announce(3, LATER - 50)]);
        await announce(1, LATER - 100);
        expect(revoked({ generation: 4 })).toBe(true);
        expect(revoked({ generation: 5 })).toBe(false);
        clock.at(LATER + 49);
        expect(revoked({ generation: 4 })).toBe(true);
      });

      test('an entry counts one second before its time, and no longer at it', async () => {
        await store.revocations.announce({
          of: 'grant',
          grantId: 'g1',
          belowGeneration: 9,
          keepUntil: LATER,
        });
        clock.at(LATER - 1);
        expect(revoked()).toBe(true);
        clock.at(LATER);
        expect(revoked()).toBe(false);
      });

      test('a hundred announcements at once all count', async () => {
        await Promise.all(
          Array.from({ length: 100 }, (_, index) =>
            store.revocations.announce({
              of: 'grant',
              grantId: 'g1',
              belowGeneration: index + 1,
              keepUntil: LATER,
            }),
          ),
        );
        expect(revoked({ generation: 99 })).toBe(true);
        expect(revoked({ generation: 100 })).toBe(false);
      });
    });
  });
}
