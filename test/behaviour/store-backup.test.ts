import { existsSync, readdirSync, readFileSync, statSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { KEEP_FOREVER } from '../../src/ports/store.ts';
import { type EmbeddedStore, restoreEmbedded } from '../../src/stores/embedded.ts';
import { dumpStrings } from '../support/store-dump.ts';
import { aFolder, aGrant, LATER, NOW, openOwner, type TestFolder } from '../support/store-fixtures.ts';

let folder: TestFolder;
let store: EmbeddedStore;
const copy = (): string => join(folder.path, 'copy.mdb');
const other = (): string => join(folder.path, 'other');
beforeEach(async () => {
  folder = aFolder();
  store = await openOwner(join(folder.path, 'store'));
});
afterEach(async () => {
  await store.close();
  folder.remove();
});

test('a backup made while the store is written holds all that was acknowledged before it, and restores', async () => {
  await Promise.all(
    Array.from({ length: 2000 }, (_, index) => store.grants.create(`g${index}`, aGrant(), LATER)),
  );
  await store.notes.create('keys', { signing: 'abc' }, KEEP_FOREVER);
  await store.revocations.announce({ of: 'client', clientId: 'c', notBefore: NOW, keepUntil: LATER });
  const going = Promise.all(
    Array.from({ length: 500 }, (_, index) => store.grants.create(`h${index}`, aGrant(), LATER)),
  );
  await store.backup(copy());
  await going;
  expect(statSync(copy()).mode & 0o777).toBe(0o600);

  const { records } = await restoreEmbedded({ from: copy(), path: other() });
  expect(records).toBeGreaterThanOrEqual(2002);
  const restored = await openOwner(other());
  for (let index = 0; index < 2000; index += 1) expect(await restored.grants.read(`g${index}`)).toBeDefined();
  expect((await restored.notes.read('keys'))?.record).toEqual({ signing: 'abc' });
  expect(
    restored.revocations.isRevoked({
      grantId: 'g',
      generation: 1,
      clientId: 'c',
      identity: 'i',
      issuedAt: NOW - 1,
    }),
  ).toBe(true);
  expect(await restored.grants.create('g0', aGrant(), LATER)).toBe('taken');
  await restored.close();
});

test('a backup replaces nothing', async () => {
  writeFileSync(copy(), 'precious');
  await expect(store.backup(copy())).rejects.toMatchObject({ code: 'store_unavailable' });
  expect(readFileSync(copy(), 'utf8')).toBe('precious');
  expect(readdirSync(folder.path).toSorted()).toEqual(['copy.mdb', 'store']);
});

test('a restore refuses a folder that has a store, and one that is in use', async () => {
  await store.grants.create('a', aGrant(), LATER);
  await store.backup(copy());
  const path = join(folder.path, 'store');
  await expect(restoreEmbedded({ from: copy(), path })).rejects.toMatchObject({ code: 'store_locked' });
  await store.close();
  await expect(restoreEmbedded({ from: copy(), path })).rejects.toMatchObject({ code: 'store_unavailable' });
});

test('a restore from a damaged copy refuses and leaves no store behind', async () => {
  await Promise.all(
    Array.from({ length: 1000 }, (_, index) => store.grants.create(`g${index}`, aGrant(), LATER)),
  );
  await store.backup(copy());
  const whole = readFileSync(copy());
  truncateSync(copy(), Math.floor(whole.length / 2));
  await expect(restoreEmbedded({ from: copy(), path: other() })).rejects.toMatchObject({
    code: 'store_corrupt',
  });

  const unknown = Buffer.from(whole);
  for (let at = unknown.indexOf('{"v":1'); at >= 0; at = unknown.indexOf('{"v":1', at))
    unknown.write('{"v":7', at);
  writeFileSync(copy(), unknown);
  await expect(restoreEmbedded({ from: copy(), path: other() })).rejects.toMatchObject({
    code: 'store_record_unreadable',
  });
  expect(existsSync(join(other(), 'data.mdb'))).toBe(false);
  expect(existsSync(join(other(), 'store.json'))).toBe(false);
  writeFileSync(copy(), whole);
  expect((await restoreEmbedded({ from: copy(), path: other() })).records).toBe(1000);
});

test('an export names every record of every kind once', async () => {
  await Promise.all(
    Array.from({ length: 1200 }, (_, index) => store.grants.create(`g${index}`, aGrant(), LATER)),
  );
  await store.userCodes.create('code', { requestId: 'r' }, LATER);
  await store.notes.create('keys', { signing: 'abc' }, KEEP_FOREVER);
  await store.grants.create('over', aGrant(), NOW);
  await store.revocations.announce({ of: 'grant', grantId: 'g1', belowGeneration: 4, keepUntil: LATER });
  const seen = new Map<string, unknown>();
  for await (const { kind, id, record, keepUntil } of store.exportRecords()) {
    expect(seen.has(`${kind}/${id}`)).toBe(false);
    seen.set(`${kind}/${id}`, { record, keepUntil });
  }
  expect(seen.size).toBe(1203);
  expect(seen.get('grants/g7')).toEqual({ record: aGrant(), keepUntil: LATER });
  expect(seen.get('revocations/g:g1')).toEqual({
    record: { of: 'grant', grantId: 'g1', belowGeneration: 4, keepUntil: LATER },
    keepUntil: LATER,
  });
});

test('a dump of the store shows what is in it, so that a search for secrets there means something', async () => {
  await store.grants.create('findable-id', aGrant({ identity: 'corp:0badcafe' }), LATER);
  await store.close();
  const strings = dumpStrings(join(folder.path, 'store')).join('\n');
  expect(strings).toContain('findable-id');
  expect(strings).toContain('corp:0badcafe');
});
