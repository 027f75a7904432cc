import { afterAll, expect, test } from 'vitest';
import { aFolder, openOwner, storeChild, type TestFolder } from '../support/store-fixtures.ts';
import { describeGrantIndex } from './grant-index.ts';
import { describeStore } from './record-store.ts';

const folders: TestFolder[] = [];
const folder = (): string => {
  const made = aFolder();
  folders.push(made);
  return made.path;
};
afterAll(() => {
  for (const made of folders) made.remove();
});

describeStore('the embedded store', (now) => openOwner(folder(), now));
describeGrantIndex('the embedded store', (now) => openOwner(folder(), now));

test('when two processes create the same id a hundred times each, exactly one create succeeds', async () => {
  const path = folder();
  const owner = await openOwner(path);
  const children = [storeChild('create-one', path), storeChild('create-one', path)];
  for (const child of children) expect(await child.line()).toBe('ready');
  for (const child of children) child.say('go');
  const firsts = await Promise.all(children.map((child) => child.line()));
  expect(firsts.map(Number).reduce((sum, count) => sum + count, 0)).toBe(1);
  await owner.close();
});

test('when two processes create the same hundred ids, each id is created once', async () => {
  const path = folder();
  const owner = await openOwner(path);
  const children = [storeChild('create-all', path, 'one'), storeChild('create-all', path, 'two')];
  for (const child of children) expect(await child.line()).toBe('ready');
  for (const child of children) child.say('go');
  const created = (await Promise.all(children.map((child) => child.rest()))).flat();
  expect(created.toSorted()).toEqual(Array.from({ length: 100 }, (_, index) => `race-${index}`).toSorted());
  await owner.close();
});

test('V01 V13 a revocation announced by another process applies here at once, for grants, clients and identities', async () => {
  const path = folder();
  const store = await openOwner(path);
  const bearer = { grantId: 'g', generation: 1, clientId: 'c', identity: 'i', issuedAt: 1_800_000_000 };
  expect(store.revocations.isRevoked(bearer)).toBe(false);
  const other = storeChild('revoke', path);
  expect(await other.line()).toBe('ready');
  const announced = async (word: string): Promise<void> => {
    other.say(word);
    // Readers keep asking while the other process writes, so that an old snapshot would be caught.
    const answer = other.line();
    const asking = setInterval(() => store.revocations.isRevoked({ ...bearer, grantId: 'x' }), 1);
    expect(await answer).toBe(`revoked ${word}`);
    clearInterval(asking);
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
  await other.kill();
  await store.close();
});
