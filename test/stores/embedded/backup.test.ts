import { existsSync, readdirSync, readFileSync, statSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import type { Fault } from '../../../src/ports/fault.ts';
import type { Progress } from '../../../src/ports/progress.ts';
import type { RecordAuthenticator } from '../../../src/ports/record-authenticator.ts';
import { KEEP_FOREVER } from '../../../src/ports/store.ts';
import { restoreBackup } from '../../../src/stores/embedded/backup.ts';
import { type EmbeddedStore, openEmbeddedStore } from '../../../src/stores/embedded/store.ts';
import { openRawEmbedded, tamper } from '../../support/raw-records.ts';
import { testAuthenticator, testKeyring } from '../../support/record-keys.ts';
import { dumpStrings } from '../../support/store-dump.ts';
import {
  LATER,
  NOW,
  openOwnerStore,
  storeTempFolder,
  type TestFolder,
  testGrant,
} from '../../support/store-fixtures.ts';

const authenticator = testAuthenticator();
let folder: TestFolder;
let store: EmbeddedStore;
const backupFile = (): string => join(folder.path, 'copy.mdb');
const restorePath = (): string => join(folder.path, 'other');
beforeEach(async () => {
  folder = storeTempFolder();
  store = await openOwnerStore(join(folder.path, 'store'));
});
afterEach(async () => {
  await store.close();
  folder.remove();
});

test('a backup made while the store is written contains everything acknowledged before it, and can be restored', async () => {
  await Promise.all(Array.from({ length: 2000 }, (_, index) => store.grants.create(`g${index}`, testGrant(), LATER)));
  await store.notes.create('keys', { signing: 'abc' }, KEEP_FOREVER);
  await store.revocations.announce({ of: 'client', clientId: 'c', notBefore: NOW, keepUntil: LATER });
  const concurrentWrites = Promise.all(
    Array.from({ length: 500 }, (_, index) => store.grants.create(`h${index}`, testGrant(), LATER)),
  );
  await store.backup(backupFile());
  await concurrentWrites;
  expect(statSync(backupFile()).mode & 0o777).toBe(0o600);

  const { records } = await restoreBackup({ from: backupFile(), path: restorePath(), authenticator });
  expect(records).toBeGreaterThanOrEqual(2002);
  const restored = await openOwnerStore(restorePath());
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
  expect(await restored.grants.create('g0', testGrant(), LATER)).toBe('taken');
  await restored.close();
});

test('backup and restore report how far they are', async () => {
  const reported: Progress[] = [];
  const report = (progress: Progress): void => void reported.push(progress);
  await store.backup(backupFile(), report);
  await restoreBackup({ from: backupFile(), path: restorePath(), authenticator, report });
  for (const step of ['computing the MAC', 'verifying the MAC']) {
    const last = reported.findLast((progress) => progress.step === step);
    expect(last).toEqual({ step, unit: 'bytes', done: last?.total, total: expect.any(Number) });
  }
});

test('a backup does not overwrite an existing file', async () => {
  writeFileSync(backupFile(), 'precious');
  await expect(store.backup(backupFile())).rejects.toMatchObject({ code: 'store_unavailable' });
  expect(readFileSync(backupFile(), 'utf8')).toBe('precious');
  expect(readdirSync(folder.path).toSorted()).toEqual(['copy.mdb', 'store']);
});

test('a restore refuses a folder that contains a store or is in use', async () => {
  await store.grants.create('a', testGrant(), LATER);
  await store.backup(backupFile());
  const path = join(folder.path, 'store');
  await expect(restoreBackup({ from: backupFile(), path, authenticator })).rejects.toMatchObject({
    code: 'store_locked',
  });
  await store.close();
  await expect(restoreBackup({ from: backupFile(), path, authenticator })).rejects.toMatchObject({
    code: 'store_unavailable',
  });
});

test('a restore from a damaged backup is refused and leaves no store behind', async () => {
  await Promise.all(Array.from({ length: 1000 }, (_, index) => store.grants.create(`g${index}`, testGrant(), LATER)));
  await store.backup(backupFile());
  const original = readFileSync(backupFile());
  truncateSync(backupFile(), Math.floor(original.length / 2));
  await expect(restoreBackup({ from: backupFile(), path: restorePath(), authenticator })).rejects.toMatchObject({
    code: 'store_corrupt',
  });

  const unknown = Buffer.from(original);
  for (let at = unknown.indexOf('{"v":1'); at >= 0; at = unknown.indexOf('{"v":1', at)) unknown.write('{"v":7', at);
  writeFileSync(backupFile(), unknown);
  await expect(restoreBackup({ from: backupFile(), path: restorePath(), authenticator })).rejects.toMatchObject({
    code: 'store_corrupt',
  });
  expect(existsSync(join(restorePath(), 'data.mdb'))).toBe(false);
  expect(existsSync(join(restorePath(), 'store.json'))).toBe(false);
  writeFileSync(backupFile(), original);
  expect((await restoreBackup({ from: backupFile(), path: restorePath(), authenticator })).records).toBe(1000);
});

const tryRestore = (authenticator: RecordAuthenticator): Promise<string> =>
  restoreBackup({ from: backupFile(), path: restorePath(), authenticator }).then(
    ({ records, refused }) => `${records} records, ${refused} refused`,
    ({ code, message }: Fault) => `${code}: ${message}`,
  );

test('a backup with any changed byte is refused, in used pages, unused pages and the MAC', async () => {
  await Promise.all(Array.from({ length: 50 }, (_, index) => store.grants.create(`g${index}`, testGrant(), LATER)));
  await store.backup(backupFile());
  const original = readFileSync(backupFile());
  const step = Math.ceil(original.length / 150);
  const positions = [
    ...Array.from({ length: 150 }, (_, index) => Math.min(index * step + (index % step), original.length - 1)),
    // Every byte of the trailer.
    ...Array.from({ length: 128 }, (_, index) => original.length - 1 - index),
  ];
  for (const at of positions) {
    const altered = Buffer.from(original);
    altered[at] = (altered[at] ?? 0) ^ (1 << (at % 8));
    writeFileSync(backupFile(), altered);
    expect(await tryRestore(authenticator), `byte ${at}`).toMatch(/^store_corrupt: .* was not restored/);
  }
  for (const altered of [
    Buffer.concat([original, Buffer.from([0])]),
    original.subarray(0, -1),
    original.subarray(1),
    Buffer.concat([original.subarray(0, 4096), original]),
    Buffer.alloc(0),
  ]) {
    writeFileSync(backupFile(), altered);
    expect(await tryRestore(authenticator)).toMatch(/^store_corrupt: .* was not restored/);
  }
  expect(existsSync(join(restorePath(), 'data.mdb'))).toBe(false);
  writeFileSync(backupFile(), original);
  expect(await tryRestore(authenticator)).toBe('50 records, 0 refused');
});

test('a valid backup made with other keys is rejected', async () => {
  await store.grants.create('g', testGrant(), LATER);
  await store.backup(backupFile());
  const forger = testAuthenticator({}, testKeyring('mforger'));
  expect(await tryRestore(forger)).toMatch(/made with the key mtest, which keys\.file does not have/);
  // An attacker creates a store and a backup in the same format, and gives their key the name of ours.
  const forged = await openEmbeddedStore({
    path: join(folder.path, 'forged'),
    mapSize: 2 ** 28,
    role: 'owner',
    now: () => NOW,
    authenticator: forger,
  });
  await forged.grants.create('g', testGrant({ identity: 'corp:{another}' }), LATER);
  const file = join(folder.path, 'forged.backup');
  await forged.backup(file);
  await forged.close();
  const renamed = readFileSync(file);
  renamed.write('mtest  ', renamed.lastIndexOf('mforger'));
  for (const bytes of [renamed, readFileSync(file).subarray(0, -128)]) {
    writeFileSync(backupFile(), bytes);
    expect(await tryRestore(authenticator)).toMatch(/^store_corrupt: .* was not restored/);
  }
});

test('records that were altered before the backup was made are counted, and not exported', async () => {
  const path = join(folder.path, 'store');
  for (const id of ['a', 'b']) await store.grants.create(id, testGrant({ id }), LATER);
  await store.close();
  const raw = openRawEmbedded(path);
  await tamper(raw, 'grants', 'a', (text) => text.replace('corp:', 'CORP:'));
  await raw.close();
  store = await openOwnerStore(path);
  const exported: string[] = [];
  for await (const { id } of store.exportRecords()) exported.push(id);
  expect(exported).toEqual(['b']);
  await store.backup(backupFile());
  expect(await tryRestore(authenticator)).toBe('2 records, 1 refused');
});

test('an export contains every record of every kind once', async () => {
  await Promise.all(Array.from({ length: 1200 }, (_, index) => store.grants.create(`g${index}`, testGrant(), LATER)));
  await store.userCodes.create('code', { requestId: 'r' }, LATER);
  await store.notes.create('keys', { signing: 'abc' }, KEEP_FOREVER);
  await store.grants.create('over', testGrant(), NOW);
  await store.revocations.announce({ of: 'grant', grantId: 'g1', belowGeneration: 4, keepUntil: LATER });
  const seen = new Map<string, unknown>();
  for await (const { kind, id, record, keepUntil } of store.exportRecords()) {
    expect(seen.has(`${kind}/${id}`)).toBe(false);
    seen.set(`${kind}/${id}`, { record, keepUntil });
  }
  expect(seen.size).toBe(1203);
  expect(seen.get('grants/g7')).toEqual({ record: testGrant(), keepUntil: LATER });
  expect(seen.get('revocations/g:g1')).toEqual({
    record: { of: 'grant', grantId: 'g1', belowGeneration: 4, keepUntil: LATER },
    keepUntil: LATER,
  });
});

test('a dump of the store shows its contents, so that searching it for secrets is meaningful', async () => {
  await store.grants.create('findable-id', testGrant({ identity: 'corp:0badcafe' }), LATER);
  await store.close();
  const strings = dumpStrings(join(folder.path, 'store')).join('\n');
  expect(strings).toContain('findable-id');
  expect(strings).toContain('corp:0badcafe');
});
