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
const createFolder = (): string => {
  const folder = storeTempFolder();
  folders.push(folder);
  return folder.path;
};
afterAll(() => {
  for (const folder of folders) folder.remove();
});
const startChild = (...args: readonly string[]): StoreChild => {
  const started = startStoreChild(...args);
  onTestFinished(() => started.kill());
  return started;
};

describeStore('the embedded store', (now) => openOwnerStore(createFolder(), now));
describeGrantIndex('the embedded store', (now) => openOwnerStore(createFolder(), now));

test('when two processes create the same id a hundred times each, exactly one create succeeds', async () => {
  const path = createFolder();
  const owner = await openOwnerStore(path);
  onTestFinished(() => owner.close());
  const children = [startChild('create-one', path), startChild('create-one', path)];
  for (const child of children) expect(await child.nextLine()).toBe('ready');
  for (const child of children) child.send('go');
  const counts = await Promise.all(children.map((child) => child.nextLine()));
  expect(counts.map(Number).reduce((sum, count) => sum + count, 0)).toBe(1);
});

test('when two processes create the same hundred ids, each id is created once', async () => {
  const path = createFolder();
  const owner = await openOwnerStore(path);
  onTestFinished(() => owner.close());
  const children = [startChild('create-all', path, 'one'), startChild('create-all', path, 'two')];
  for (const child of children) expect(await child.nextLine()).toBe('ready');
  for (const child of children) child.send('go');
  const created = (await Promise.all(children.map((child) => child.remainingLines()))).flat();
  expect(created.toSorted()).toEqual(Array.from({ length: 100 }, (_, index) => `race-${index}`).toSorted());
});

test('V01 V13 a revocation announced by another process applies here at once, for grants, clients and identities', async () => {
  const path = createFolder();
  const store = await openOwnerStore(path);
  onTestFinished(() => store.close());
  const bearer = { grantId: 'g', generation: 1, clientId: 'c', identity: 'i', issuedAt: 1_800_000_000 };
  expect(store.revocations.isRevoked(bearer)).toBe(false);
  const other = startChild('revoke', path);
  expect(await other.nextLine()).toBe('ready');
  const announce = async (word: string): Promise<void> => {
    other.send(word);
    // Keep reading while the other process writes, so that a stale snapshot would be detected.
    const response = other.nextLine();
    const timer = setInterval(() => store.revocations.isRevoked({ ...bearer, grantId: 'x' }), 1);
    const line = await response.finally(() => clearInterval(timer));
    expect(line).toBe(`revoked ${word}`);
  };
  for (let count = 0; count < 50; count += 1) {
    await announce(`grant g${count}`);
    expect(store.revocations.isRevoked({ ...bearer, grantId: `g${count}` })).toBe(true);
  }
  await announce('client c');
  expect(store.revocations.isRevoked(bearer)).toBe(true);
  expect(store.revocations.isRevoked({ ...bearer, clientId: 'd' })).toBe(false);
  await announce('identity i');
  expect(store.revocations.isRevoked({ ...bearer, clientId: 'd' })).toBe(true);
});
