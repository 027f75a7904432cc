import { afterEach, describe, expect, test } from 'vitest';
import { type EmbeddedStore, openEmbeddedStore } from '../../../src/stores/embedded/store.ts';
import { testAuthenticator } from '../../support/record-keys.ts';
import { LATER, NOW, storeTempFolder, type TestFolder, testClock } from '../../support/store-fixtures.ts';

/** A token that was looked up and is remembered, as the reader of tokens hands it out: the same object each time. */
const bearer = {
  grantId: 'grant-1',
  generation: 3,
  clientId: 'report-runner',
  identity: 'corp:alice',
  issuedAt: NOW - 60,
};

describe('a store without other writers', () => {
  let folder: TestFolder;
  let store: EmbeddedStore;
  const open = async (): Promise<EmbeddedStore> => {
    folder = storeTempFolder();
    store = await openEmbeddedStore({
      path: folder.path,
      mapSize: 2 ** 28,
      role: 'standalone',
      now: testClock().now,
      authenticator: testAuthenticator(),
    });
    return store;
  };
  afterEach(async () => {
    await store.close();
    folder.remove();
  });

  test('a bearer that was looked up before is denied as soon as its grant, client or identity is announced', async () => {
    const { revocations } = await open();
    const others = [
      { of: 'grant', grantId: 'grant-1', belowGeneration: 4, keepUntil: LATER },
      { of: 'client', clientId: 'report-runner', notBefore: NOW, keepUntil: LATER },
      { of: 'identity', identity: 'corp:alice', notBefore: NOW, keepUntil: LATER },
    ] as const;
    for (const [index, revocation] of others.entries()) {
      const own = {
        ...bearer,
        ...(index !== 0 && { grantId: `other-${index}` }),
        ...(index !== 1 && { clientId: `other-${index}` }),
        ...(index !== 2 && { identity: `other-${index}` }),
      };
      for (let look = 0; look < 3; look += 1) expect(revocations.isRevoked(own)).toBe(false);
      await revocations.announce(revocation);
      for (let look = 0; look < 3; look += 1) expect(revocations.isRevoked(own), revocation.of).toBe(true);
    }
  });

  test('what is announced about others leaves it alone', async () => {
    const { revocations } = await open();
    for (let other = 0; other < 5; other += 1) {
      expect(revocations.isRevoked(bearer)).toBe(false);
      await revocations.announce({
        of: 'grant',
        grantId: `another-${other}`,
        belowGeneration: 9,
        keepUntil: LATER,
      });
    }
    expect(revocations.isRevoked(bearer)).toBe(false);
  });

  test('once an announcement is confirmed, the token is rejected, whatever the earlier result was', async () => {
    const { revocations } = await open();
    const bearers = Array.from({ length: 200 }, (_, index) => ({ ...bearer, grantId: `many-${index}` }));
    let looks = 0;
    await Promise.all(
      bearers.map(async (own) => {
        const progress = { confirmed: false };
        const announced = revocations
          .announce({ of: 'grant', grantId: own.grantId, belowGeneration: 4, keepUntil: LATER })
          .then(() => {
            progress.confirmed = true;
            expect(revocations.isRevoked(own)).toBe(true);
          });
        while (!progress.confirmed) {
          revocations.isRevoked(own);
          looks += 1;
          await new Promise(setImmediate);
        }
        await announced;
      }),
    );
    expect(looks).toBeGreaterThan(bearers.length);
    for (const own of bearers) expect(revocations.isRevoked(own)).toBe(true);
  });
});
