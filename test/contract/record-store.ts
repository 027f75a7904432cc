import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import type { Version } from '../../src/ports/record-store.ts';
import { KEEP_FOREVER, type Store } from '../../src/ports/store.ts';
import { LATER, NOW, testClock, testGrant } from '../support/store-fixtures.ts';

/** The promises of every store. `open` gives one that is empty and runs by the given clock. */
export function describeStore(name: string, open: (now: () => number) => Promise<Store>): void {
  const aBearer = {
    grantId: 'g1',
    generation: 3,
    clientId: 'reporting-tool',
    identity: 'corp:00112233',
    issuedAt: NOW,
  };

  describe(`${name} as a record store`, () => {
    let clock = testClock();
    let store: Store;
    beforeEach(async () => {
      clock = testClock();
      store = await open(clock.now);
    });
    afterEach(() => store.close());

    const versionOf = async (id: string): Promise<Version> => {
      const found = await store.grants.read(id);
      if (found === undefined) throw new Error(`${id} is not there`);
      return found.version;
    };

    test('a created record is read back unchanged, with the time of reading', async () => {
      expect(await store.grants.create('a', testGrant({ boundTo: 'x' }), LATER)).toBe('created');
      const found = await store.grants.read('a');
      expect(found?.record).toEqual(testGrant({ boundTo: 'x' }));
      expect(found?.now).toBe(NOW);
    });

    test('an unknown id is not found', async () => {
      expect(await store.grants.read('nobody')).toBeUndefined();
    });

    test('an id can be created only once', async () => {
      expect(await store.grants.create('a', testGrant(), LATER)).toBe('created');
      expect(await store.grants.create('a', testGrant({ generation: 9 }), LATER)).toBe('taken');
      expect((await store.grants.read('a'))?.record.generation).toBe(1);
    });

    test('of a hundred concurrent creates of one id, one succeeds', async () => {
      const outcomes = await Promise.all(
        Array.from({ length: 100 }, (_, generation) =>
          store.grants.create('a', testGrant({ generation }), LATER),
        ),
      );
      expect(outcomes.filter((outcome) => outcome === 'created')).toHaveLength(1);
      expect((await store.grants.read('a'))?.record.generation).toBe(outcomes.indexOf('created'));
    });

    test('the same id in two record types is two records', async () => {
      expect(await store.grants.create('a', testGrant(), LATER)).toBe('created');
      expect(await store.userCodes.create('a', { requestId: 'r' }, LATER)).toBe('created');
      expect((await store.userCodes.read('a'))?.record).toEqual({ requestId: 'r' });
    });

    test('of fifty concurrent writes to one version, one succeeds', async () => {
      await store.grants.create('a', testGrant(), LATER);
      const seen = await versionOf('a');
      const outcomes = await Promise.all(
        Array.from({ length: 50 }, (_, index) =>
          store.grants.replace('a', seen, testGrant({ generation: 100 + index }), LATER),
        ),
      );
      expect(outcomes.filter((outcome) => outcome === 'replaced')).toHaveLength(1);
      expect((await store.grants.read('a'))?.record.generation).toBe(100 + outcomes.indexOf('replaced'));
    });

    test('fifty concurrent writers that retry lose no update', async () => {
      await store.grants.create('a', testGrant({ generation: 0 }), LATER);
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

    test('a replaced version stays stale', async () => {
      await store.grants.create('a', testGrant(), LATER);
      const first = await versionOf('a');
      expect(await store.grants.replace('a', first, testGrant({ generation: 2 }), LATER)).toBe('replaced');
      expect(await store.grants.replace('a', first, testGrant({ generation: 3 }), LATER)).toBe('stale');
      expect((await store.grants.read('a'))?.record.generation).toBe(2);
    });

    test('a record that does not exist cannot be replaced', async () => {
      await store.grants.create('a', testGrant(), LATER);
      expect(await store.grants.replace('b', await versionOf('a'), testGrant(), LATER)).toBe('stale');
      expect(await store.grants.read('b')).toBeUndefined();
    });

    test('a record exists until the second before its expiry and is gone at it', async () => {
      await store.grants.create('a', testGrant(), LATER);
      const seen = await versionOf('a');
      clock.at(LATER - 1);
      expect(await store.grants.read('a')).toBeDefined();
      expect(await store.grants.create('a', testGrant(), LATER)).toBe('taken');
      clock.at(LATER);
      expect(await store.grants.read('a')).toBeUndefined();
      expect(await store.grants.replace('a', seen, testGrant(), LATER + 10)).toBe('stale');
    });

    test('replacing a record changes its expiry', async () => {
      await store.grants.create('a', testGrant(), LATER);
      await store.grants.replace('a', await versionOf('a'), testGrant(), LATER + 100);
      clock.at(LATER + 99);
      expect(await store.grants.read('a')).toBeDefined();
      clock.at(LATER + 100);
      expect(await store.grants.read('a')).toBeUndefined();
    });

    test('an expired id can be created again, and a write to its old version is stale', async () => {
      await store.grants.create('a', testGrant({ clientId: 'former' }), LATER);
      const former = await versionOf('a');
      clock.at(LATER);
      expect(await store.grants.create('a', testGrant({ clientId: 'latter' }), LATER + 100)).toBe('created');
      expect(await store.grants.replace('a', former, testGrant({ clientId: 'former' }), LATER + 100)).toBe(
        'stale',
      );
      expect((await store.grants.read('a'))?.record.clientId).toBe('latter');
    });

    test('of a hundred concurrent creates of an expired id, one succeeds', async () => {
      await store.grants.create('a', testGrant(), LATER);
      clock.at(LATER);
      const outcomes = await Promise.all(
        Array.from({ length: 100 }, () => store.grants.create('a', testGrant(), LATER + 100)),
      );
      expect(outcomes.filter((outcome) => outcome === 'created')).toHaveLength(1);
    });

    test('ids may contain any character', async () => {
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
      for (const id of ids) expect(await store.grants.create(id, testGrant({ id }), LATER)).toBe('created');
      for (const id of ids) expect((await store.grants.read(id))?.record.id).toBe(id);
    });

    test('changing a record that was read does not change the store', async () => {
      await store.notes.create('a', { key: 'one' }, KEEP_FOREVER);
      const found = await store.notes.read('a');
      Object.assign(found?.record ?? {}, { key: 'two' });
      expect((await store.notes.read('a'))?.record).toEqual({ key: 'one' });
    });

    test('notes never expire', async () => {
      await store.notes.create('keys', { signing: 'abc' }, KEEP_FOREVER);
      clock.at(NOW + 1000 * 365 * 86_400);
      expect((await store.notes.read('keys'))?.record).toEqual({ signing: 'abc' });
    });

    test('a store with only notes is empty; with a grant it is not', async () => {
      expect(await store.isEmpty()).toBe(true);
      await store.notes.create('keys', { signing: 'abc' }, KEEP_FOREVER);
      expect(await store.isEmpty()).toBe(true);
      await store.grants.create('a', testGrant(), LATER);
      expect(await store.isEmpty()).toBe(false);
    });

    test('a healthy store passes its probe', () => store.probe());

    describe('revocations', () => {
      const revoked = (changes: Partial<typeof aBearer> = {}): boolean =>
        store.revocations.isRevoked({ ...aBearer, ...changes });

      test('are empty at first', () => {
        expect(revoked()).toBe(false);
      });

      test('of a grant apply to generations below the given one only', async () => {
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

      test('of a grant can apply to all generations', async () => {
        await store.revocations.announce({
          of: 'grant',
          grantId: 'g1',
          belowGeneration: Number.POSITIVE_INFINITY,
          keepUntil: LATER,
        });
        expect(revoked({ generation: Number.MAX_SAFE_INTEGER })).toBe(true);
      });

      test('of a client apply to tokens issued before the given time', async () => {
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

      test('of an identity apply to tokens issued before the given time', async () => {
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

      test('of a client do not apply to an identity of the same name', async () => {
        await store.revocations.announce({
          of: 'client',
          clientId: 'same',
          notBefore: NOW + 1,
          keepUntil: LATER,
        });
        expect(revoked({ identity: 'same', clientId: 'other' })).toBe(false);
        expect(revoked({ clientId: 'same' })).toBe(true);
      });

      test('merge to the strictest, in any order', async () => {
        const announce = (belowGeneration: number, keepUntil: number): Promise<void> =>
          store.revocations.announce({ of: 'grant', grantId: 'g1', belowGeneration, keepUntil });
        await Promise.all([announce(2, LATER + 50), announce(5, LATER), announce(3, LATER - 50)]);
        await announce(1, LATER - 100);
        expect(revoked({ generation: 4 })).toBe(true);
        expect(revoked({ generation: 5 })).toBe(false);
        clock.at(LATER + 49);
        expect(revoked({ generation: 4 })).toBe(true);
      });

      test('apply until the second before their expiry and not at it', async () => {
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

      test('all apply when a hundred are announced at once', async () => {
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
