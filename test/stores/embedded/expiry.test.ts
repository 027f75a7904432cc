import { afterEach, beforeEach, expect, test } from 'vitest';
import type { EmbeddedStore } from '../../../src/stores/embedded/store.ts';
import { openRawEmbedded } from '../../support/raw-records.ts';
import {
  LATER,
  NOW,
  openOwnerStore,
  storeTempFolder,
  type TestFolder,
  testClock,
  testGrant,
} from '../../support/store-fixtures.ts';

let folder: TestFolder;
let clock = testClock();
let store: EmbeddedStore;
beforeEach(async () => {
  folder = storeTempFolder();
  clock = testClock();
  store = await openOwnerStore(folder.path, clock.now);
});
afterEach(async () => {
  await store.close();
  folder.remove();
});

const listRecords = async (): Promise<readonly string[]> => {
  const all: string[] = [];
  const moment = clock.now();
  clock.at(0);
  for await (const { kind, id } of store.exportRecords()) all.push(`${kind}/${id}`);
  clock.at(moment);
  return all;
};

test('V12 a revocation is kept until its expiry, then removed completely', async () => {
  for (let count = 0; count < 1000; count += 1)
    void store.revocations.announce({
      of: 'grant',
      grantId: `g${count}`,
      belowGeneration: 2,
      keepUntil: LATER + (count % 2),
    });
  await store.revocations.announce({ of: 'client', clientId: 'c', notBefore: NOW, keepUntil: LATER });
  await store.revocations.announce({ of: 'identity', identity: 'i', notBefore: NOW, keepUntil: LATER });
  clock.at(LATER - 1);
  expect(await store.sweep()).toBe(0);
  expect(await listRecords()).toHaveLength(1002);
  clock.at(LATER);
  expect(await store.sweep()).toBe(502);
  expect(await listRecords()).toHaveLength(500);
  clock.at(LATER + 1);
  expect(await store.sweep()).toBe(500);
  expect(await listRecords()).toEqual([]);
});

test('V12 a revocation announced again with a later time is kept until that time', async () => {
  const announce = (keepUntil: number): Promise<void> =>
    store.revocations.announce({ of: 'grant', grantId: 'g', belowGeneration: 2, keepUntil });
  await announce(LATER);
  await announce(LATER + 10);
  await announce(LATER - 10);
  clock.at(LATER + 9);
  expect(await store.sweep()).toBe(0);
  expect(
    store.revocations.isRevoked({ grantId: 'g', generation: 1, clientId: 'c', identity: 'i', issuedAt: NOW }),
  ).toBe(true);
  clock.at(LATER + 10);
  expect(await store.sweep()).toBe(1);
});

test('expired records are swept and others are kept, whatever their ids', async () => {
  const ids = ['a\0b', '\0', 'a', 'a\0', 'é', '😀', 'true', '1', ' ', 'x'.repeat(480)];
  for (const id of ids) {
    await store.grants.create(id, testGrant(), LATER);
    await store.devices.create(
      id,
      {
        id,
        state: 'pending',
        clientId: 'c',
        scope: 's',
        askedAt: NOW,
        askedFrom: '::1',
        expires: NOW,
        failedSignIns: 0,
      },
      LATER + 1,
    );
  }
  clock.at(LATER);
  expect(await store.sweep()).toBe(ids.length);
  expect((await listRecords()).toSorted()).toEqual(ids.map((id) => `devices/${id}`).toSorted());
  expect(await store.sweep()).toBe(0);
});

test('a record whose expiry was changed is swept only at its latest expiry', async () => {
  await store.grants.create('a', testGrant(), LATER);
  const found = await store.grants.read('a');
  if (found === undefined) throw new Error('record not found');
  await store.grants.replace('a', found.version, testGrant(), LATER + 100);
  clock.at(LATER + 99);
  expect(await store.sweep()).toBe(0);
  clock.at(LATER + 100);
  expect(await store.sweep()).toBe(1);
});

test('a record that is created again while its predecessor is swept is kept', async () => {
  for (let round = 0; round < 20; round += 1) {
    const end = NOW + 10 * (round + 1);
    await store.grants.create('a', testGrant(), end);
    clock.at(end);
    const [, created] = await Promise.all([
      store.sweep(),
      store.grants.create('a', testGrant({ generation: 7 }), end + 5),
    ]);
    expect(created).toBe('created');
    expect((await store.grants.read('a'))?.record.generation).toBe(7);
    clock.at(end + 5);
    expect(await store.sweep()).toBe(1);
    expect(await listRecords()).toEqual([]);
  }
});

test('an unreadable record is kept and reported, and the records behind it are swept', async () => {
  await Promise.all(Array.from({ length: 500 }, (_, index) => store.grants.create(`g${index}`, testGrant(), LATER)));
  const setText = async (text: string): Promise<string> => {
    await store.close();
    const raw = openRawEmbedded(folder.path);
    const before = await raw.read('grants', 'g0');
    await raw.write('grants', 'g0', text);
    await raw.close();
    store = await openOwnerStore(folder.path, clock.now);
    return before;
  };
  const original = await setText('{"v":2}');
  clock.at(LATER);
  await expect(store.sweep()).rejects.toMatchObject({ code: 'store_record_unreadable' });
  await setText(original);
  expect(await store.sweep()).toBe(1);
});

test('sweeping thousands of records does not block the event loop', async () => {
  await Promise.all(Array.from({ length: 5000 }, (_, index) => store.grants.create(`g${index}`, testGrant(), LATER)));
  clock.at(LATER);
  let iterations = 0;
  const timer = setInterval(() => {
    iterations += 1;
  }, 0);
  expect(await store.sweep()).toBe(5000);
  clearInterval(timer);
  expect(iterations).toBeGreaterThan(10);
});
