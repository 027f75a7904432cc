import { afterEach, describe, expect, test } from 'vitest';
import { type EmbeddedStore, openEmbeddedStore } from '../../../src/stores/embedded/store.ts';
import { testAuthenticator } from '../../support/record-keys.ts';
import { LATER, NOW, storeTempFolder, type TestFolder, testClock } from '../../support/store-fixtures.ts';

/** A cached token: the token reader returns the same object each time. */
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
  const openStore = async (): Promise<EmbeddedStore> => {
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

  test('a cached token is rejected as soon as the revocation of its grant, client or identity is announced', async () => {
    const { revocations } = await openStore();
    const revocationsToAnnounce = [
      { of: 'grant', grantId: 'grant-1', belowGeneration: 4, keepUntil: LATER },
      { of: 'client', clientId: 'report-runner', notBefore: NOW, keepUntil: LATER },
      { of: 'identity', identity: 'corp:alice', notBefore: NOW, keepUntil: LATER },
    ] as const;
    for (const [index, revocation] of revocationsToAnnounce.entries()) {
      const token = {
        ...bearer,
        ...(index !== 0 && { grantId: `other-${index}` }),
        ...(index !== 1 && { clientId: `other-${index}` }),
        ...(index !== 2 && { identity: `other-${index}` }),
      };
      for (let attempt = 0; attempt < 3; attempt += 1) expect(revocations.isRevoked(token)).toBe(false);
      await revocations.announce(revocation);
      for (let attempt = 0; attempt < 3; attempt += 1) expect(revocations.isRevoked(token), revocation.of).toBe(true);
    }
  });

  test('announcements about other grants do not affect it', async () => {
    const { revocations } = await openStore();
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

  test('once an announcement is confirmed, the token is rejected, whatever was cached before', async () => {
    const { revocations } = await openStore();
    const bearers = Array.from({ length: 200 }, (_, index) => ({ ...bearer, grantId: `many-${index}` }));
    let lookups = 0;
    await Promise.all(
      bearers.map(async (token) => {
        const progress = { confirmed: false };
        const announced = revocations
          .announce({ of: 'grant', grantId: token.grantId, belowGeneration: 4, keepUntil: LATER })
          .then(() => {
            progress.confirmed = true;
            expect(revocations.isRevoked(token)).toBe(true);
          });
        while (!progress.confirmed) {
          revocations.isRevoked(token);
          lookups += 1;
          await new Promise(setImmediate);
        }
        await announced;
      }),
    );
    expect(lookups).toBeGreaterThan(bearers.length);
    for (const token of bearers) expect(revocations.isRevoked(token)).toBe(true);
  });
});
