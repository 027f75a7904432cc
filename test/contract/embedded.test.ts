import { afterAll, expect, onTestFinished, test } from 'vitest';
import {
  openOwnerStore,
  type StoreChild,
  startStoreChild,
  storeTempFolder,
  type TestFolder,
} from '../support/store-fixtures.ts';
import { describeGrantIndex } from './grant-index.ts';
import { describeStore } from './record-store.ts';

const folders: TestFolder[] = [];
const folder = (): string => {
  const made = storeTempFolder();
  folders.push(made);
  return made.path;
};
afterAll(() => {
  for (const made of folders) made.remove();
});
const child = (...args: readonly string[]): StoreChild => {
  const started = startStoreChild(...args);
  onTestFinished(() => started.kill());
  return started;
};

describeStore('the embedded store', (now) => openOwnerStore(folder(), now));
describeGrantIndex('the embedded store', (now) => openOwnerStore(folder(), now));

test('when two processes create the same id a hundred times each, exactly one create succeeds', async () => {
  const path = folder();
  const owner = await openOwnerStore(path);
  onTestFinished(() => owner.close());
  const children = [child('create-one', path), child('create-one', path)];
  for (const one of children) expect(await one.nextLine()).toBe('ready');
  for (const one of children) one.send('go');
  const firsts = await Promise.all(children.map((one) => one.nextLine()));
  expect(firsts.map(Number).reduce((sum, count) => sum + count, 0)).toBe(1);
});

test('when two processes create the same hundred ids, each id is created once', async () => {
  const path = folder();
  const owner = await openOwnerStore(path);
  onTestFinished(() => owner.close());
  const children = [child('create-all', path, 'one'), child('create-all', path, 'two')];
  for (const one of children) expect(await one.nextLine()).toBe('ready');
  for (const one of children) one.send('go');
  const created = (await Promise.all(children.map((one) => one.remainingLines()))).flat();
  expect(created.toSorted()).toEqual(Array.from({ length: 100 }, (_, index) => `race-${index}`).toSorted());
});

test('V01 V13 a revocation announced by another process applies here at once, for grants, clients and identities', async () => {
  const path = folder();
  const store = await openOwnerStore(path);
  onTestFinished(() => store.close());
  const bearer = { grantId: 'g', generation: 1, clientId: 'c', identity: 'i', issuedAt: 1_800_000_000 };
  expect(store.revocations.isRevoked(bearer)).toBe(false);
  const other = child('revoke', path);
  expect(await other.nextLine()).toBe('ready');
  const announced = async (word: string): Promise<void> => {
    other.send(word);
    // Readers keep asking while the other process writes, so that an old snapshot would be caught.
    const response = other.nextLine();
    const asking = setInterval(() => store.revocations.isRevoked({ ...bearer, grantId: 'x' }), 1);
    const output = await response.finally(() => clearInterval(asking));
    expect(output).toBe(`revoked ${word}`);
  };
  for (let count = 0; count < 50; count += 1) {
    await announced(`grant g${count}`);
    expect(store.revocations.isRevoked({ ...bearer, grantId: `g${count}` })).toBe(true);
  }
  await announced('client c');
  expect(store.revocations.isRevoked(bearer)).toBe(true);
  expect(store.revocations.isRevoked({ ...bearer, clientId: 'd' })).toBe(false);
  await announced('identity i');
  expect(store.revocations.isRevoked({ ...bearer, clientId: 'd' })).toBe(true);
});
