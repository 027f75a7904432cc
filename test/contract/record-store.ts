import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { KEEP_FOREVER, type RevocationSubject, type Store, type Version } from '../../src/ports/store.ts';
import { LATER, NOW, testClock, testGrant } from '../support/store-fixtures.ts';

/** The guarantees of every store. `open` returns an empty one that uses the given clock. */
export function describeStore(name: string, open: (now: () => number) => Promise<Store>): void {
  const testToken = {
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

    const readVersion = async (id: string): Promise<Version> => {
      const found = await store.grants.read(id);
      if (found === undefined) throw new Error(`${id} not found`);
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
        Array.from({ length: 100 }, (_, generation) => store.grants.create('a', testGrant({ generation }), LATER)),
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
      const version = await readVersion('a');
      const outcomes = await Promise.all(
        Array.from({ length: 50 }, (_, index) =>
          store.grants.replace('a', version, testGrant({ generation: 100 + index }), LATER),
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
          if (found === undefined) throw new Error('record not found');
          const next = { ...found.record, generation: found.record.generation + 1 };
          if ((await store.grants.replace('a', found.version, next, LATER)) === 'replaced') return;
        }
      };
      await Promise.all(Array.from({ length: 50 }, addOne));
      expect((await store.grants.read('a'))?.record.generation).toBe(50);
    });

    test('a replaced version stays stale', async () => {
      await store.grants.create('a', testGrant(), LATER);
      const first = await readVersion('a');
      expect(await store.grants.replace('a', first, testGrant({ generation: 2 }), LATER)).toBe('replaced');
      expect(await store.grants.replace('a', first, testGrant({ generation: 3 }), LATER)).toBe('stale');
      expect((await store.grants.read('a'))?.record.generation).toBe(2);
    });

    test('a record that does not exist cannot be replaced', async () => {
      await store.grants.create('a', testGrant(), LATER);
      expect(await store.grants.replace('b', await readVersion('a'), testGrant(), LATER)).toBe('stale');
      expect(await store.grants.read('b')).toBeUndefined();
    });

    test('a record exists until its expiry', async () => {
      await store.grants.create('a', testGrant(), LATER);
      const version = await readVersion('a');
      clock.at(LATER - 1);
      expect(await store.grants.read('a')).toBeDefined();
      expect(await store.grants.create('a', testGrant(), LATER)).toBe('taken');
      clock.at(LATER);
      expect(await store.grants.read('a')).toBeUndefined();
      expect(await store.grants.replace('a', version, testGrant(), LATER + 10)).toBe('stale');
    });

    test('replacing a record changes its expiry', async () => {
      await store.grants.create('a', testGrant(), LATER);
      await store.grants.replace('a', await readVersion('a'), testGrant(), LATER + 100);
      clock.at(LATER + 99);
      expect(await store.grants.read('a')).toBeDefined();
      clock.at(LATER + 100);
      expect(await store.grants.read('a')).toBeUndefined();
    });

    test('an expired id can be created again, and a write to its old version is stale', async () => {
      await store.grants.create('a', testGrant({ clientId: 'former' }), LATER);
      const former = await readVersion('a');
      clock.at(LATER);
      expect(await store.grants.create('a', testGrant({ clientId: 'latter' }), LATER + 100)).toBe('created');
      expect(await store.grants.replace('a', former, testGrant({ clientId: 'former' }), LATER + 100)).toBe('stale');
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
      const ids = ['a/b', 'a b', 'a\nb', 'a\0b', '\0', 'a', 'a\0', 'é', '😀', '1', 'true', '{x}:y;z', '\x1b[0m', 'A'];
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
      const isRevoked = (changes: Partial<RevocationSubject> = {}): boolean =>
        store.revocations.isRevoked({ ...testToken, ...changes });
      const revokeIdentity = (identity = testToken.identity): Promise<void> =>
        store.revocations.announce({ of: 'identity', identity, notBefore: NOW + 1, keepUntil: LATER });

      test('are empty at first', () => {
        expect(isRevoked()).toBe(false);
      });

      test('of a grant apply to generations below the given one only', async () => {
        await store.revocations.announce({
          of: 'grant',
          grantId: 'g1',
          belowGeneration: 3,
          keepUntil: LATER,
        });
        expect(isRevoked({ generation: 2 })).toBe(true);
        expect(isRevoked({ generation: 3 })).toBe(false);
        expect(isRevoked({ grantId: 'g2', generation: 2 })).toBe(false);
      });

      test('of a grant can apply to all generations', async () => {
        await store.revocations.announce({
          of: 'grant',
          grantId: 'g1',
          belowGeneration: Number.POSITIVE_INFINITY,
          keepUntil: LATER,
        });
        expect(isRevoked({ generation: Number.MAX_SAFE_INTEGER })).toBe(true);
      });

      test('of a client apply to tokens issued before, not to those issued after at the same time', async () => {
        const before = store.revocations.getLastNumber();
        await store.revocations.announce({
          of: 'client',
          clientId: 'reporting-tool',
          notBefore: NOW + 1,
          keepUntil: LATER,
        });
        const issuedAfter = store.revocations.getLastNumber();
        expect(isRevoked()).toBe(true);
        expect(isRevoked({ issuedAfter: before })).toBe(true);
        expect(isRevoked({ issuedAfter })).toBe(false);
        expect(isRevoked({ clientId: 'Reporting-Tool' })).toBe(false);
      });

      test('of an identity apply to tokens issued before, not to those issued after at the same time', async () => {
        expect(isRevoked()).toBe(false);
        await revokeIdentity();
        const issuedAfter = store.revocations.getLastNumber();
        expect(isRevoked()).toBe(true);
        expect(isRevoked({ issuedAfter: issuedAfter - 1 })).toBe(true);
        expect(isRevoked({ issuedAfter })).toBe(false);
        expect(isRevoked({ identity: 'corp:44556677' })).toBe(false);
        await revokeIdentity();
        expect(isRevoked({ issuedAfter })).toBe(true);
        expect(isRevoked({ issuedAfter: store.revocations.getLastNumber() })).toBe(false);
      });

      test('of a client or an identity apply in the order of their announcement while the clock is set back', async () => {
        for (const seconds of [0, -3_600, 5, -7_200]) {
          clock.at(NOW + seconds);
          const before = store.revocations.getLastNumber();
          await revokeIdentity();
          const issuedAfter = store.revocations.getLastNumber();
          expect(isRevoked({ issuedAfter: before })).toBe(true);
          expect(isRevoked({ issuedAfter })).toBe(false);
        }
      });

      test('of fifty identities at once have numbers of their own', async () => {
        const identities = Array.from({ length: 50 }, (_, index) => `corp:${index}`);
        const before = store.revocations.getLastNumber();
        await Promise.all(identities.map(revokeIdentity));
        const issuedAfter = store.revocations.getLastNumber();
        for (const identity of identities) {
          expect(isRevoked({ identity, issuedAfter: before })).toBe(true);
          expect(isRevoked({ identity, issuedAfter })).toBe(false);
        }
        // Numbers between two revocations: those that had seen fewer of them are revoked.
        const revokedCounts = Array.from(
          { length: 51 },
          (_, index) =>
            identities.filter((identity) => isRevoked({ identity, issuedAfter: issuedAfter - index })).length,
        );
        expect(revokedCounts).toEqual(Array.from({ length: 51 }, (_, index) => index));
      });

      test('of an identity apply to tokens of trusted issuers by the time at which they were issued', async () => {
        await revokeIdentity();
        const issuer = 'corp';
        expect(isRevoked({ issuer, issuedAt: NOW })).toBe(true);
        expect(isRevoked({ issuer, issuedAt: NOW + 1 })).toBe(false);
      });

      test('of a client do not apply to an identity of the same name', async () => {
        await store.revocations.announce({
          of: 'client',
          clientId: 'same',
          notBefore: NOW + 1,
          keepUntil: LATER,
        });
        expect(isRevoked({ identity: 'same', clientId: 'other' })).toBe(false);
        expect(isRevoked({ clientId: 'same' })).toBe(true);
      });

      test('merge to the strictest one, in any order', async () => {
        const announce = (belowGeneration: number, keepUntil: number): Promise<void> =>
          store.revocations.announce({ of: 'grant', grantId: 'g1', belowGeneration, keepUntil });
        await Promise.all([announce(2, LATER + 50), announce(5, LATER), announce(3, LATER - 50)]);
        await announce(1, LATER - 100);
        expect(isRevoked({ generation: 4 })).toBe(true);
        expect(isRevoked({ generation: 5 })).toBe(false);
        clock.at(LATER + 49);
        expect(isRevoked({ generation: 4 })).toBe(true);
      });

      test('apply until their expiry', async () => {
        await store.revocations.announce({
          of: 'grant',
          grantId: 'g1',
          belowGeneration: 9,
          keepUntil: LATER,
        });
        clock.at(LATER - 1);
        expect(isRevoked()).toBe(true);
        clock.at(LATER);
        expect(isRevoked()).toBe(false);
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
        expect(isRevoked({ generation: 99 })).toBe(true);
        expect(isRevoked({ generation: 100 })).toBe(false);
      });
    });
  });
}
