import { execFileSync } from 'node:child_process';
import {
  chmodSync,
  chownSync,
  closeSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  statSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { Fault } from '../../../src/ports/fault.ts';
import { openEmbeddedStore } from '../../../src/stores/embedded/store.ts';
import { testAuthenticator } from '../../support/record-keys.ts';
import {
  LATER,
  NOW,
  openOwnerStore,
  startStoreChild,
  storeTempFolder,
  type TestFolder,
  testGrant,
} from '../../support/store-fixtures.ts';

let folder: TestFolder;
beforeEach(() => {
  folder = storeTempFolder();
});
afterEach(() => folder.remove());

const expectFault = async (opening: Promise<{ close(): Promise<void> }>): Promise<Fault> => {
  let store: { close(): Promise<void> };
  try {
    store = await opening;
  } catch (error) {
    if (error instanceof Fault) return error;
    throw error;
  }
  await store.close();
  throw new Error('the store opened');
};

const dataFile = (): string => join(folder.path, 'data.mdb');

const isOpen = (file: string): boolean =>
  readdirSync('/proc/self/fd').some((fd) => {
    const link = join('/proc/self/fd', fd);
    return existsSync(link) && readlinkSync(link) === file;
  });

test('a store that cannot be marked as created is closed again', async () => {
  const blocker = join(folder.path, 'store.json.new');
  mkdirSync(blocker);
  expect(await expectFault(openOwnerStore(folder.path))).toMatchObject({ code: 'store_unavailable' });
  expect(isOpen(dataFile())).toBe(false);
  rmSync(blocker, { recursive: true });
  const store = await openOwnerStore(folder.path);
  expect(isOpen(dataFile())).toBe(true);
  await store.close();
});

/** Creates and closes a store with several thousand grants, a few of them larger than a page. */
async function createFilledStore(grants = 3000): Promise<void> {
  const store = await openOwnerStore(folder.path);
  await Promise.all(
    Array.from({ length: grants }, (_, index) =>
      store.grants.create(
        `g${index}`,
        testGrant(index % 100 === 0 ? { scope: `${'a-long-resource-name:read;'.repeat(200)}end` } : {}),
        LATER,
      ),
    ),
  );
  await store.close();
}

/** Counts the used pages; the file also has preallocated space for later writes. */
const countUsedPages = (bytes: Buffer): number => {
  let pages = Math.floor(bytes.length / 4096);
  while (pages > 2 && bytes.subarray((pages - 1) * 4096, pages * 4096).every((byte) => byte === 0)) pages -= 1;
  return pages;
};

test('S18 a data file truncated anywhere is not opened, the message states the remedy, and the file is left unchanged', async () => {
  await createFilledStore();
  const original = readFileSync(dataFile());
  const pages = countUsedPages(original);
  for (const length of [
    1,
    4095,
    4096,
    8191,
    8192,
    ...[0.1, 0.25, 0.5, 0.75, 0.9].map((part) => Math.floor(pages * part) * 4096),
    (pages - 1) * 4096,
  ]) {
    writeFileSync(dataFile(), original);
    truncateSync(dataFile(), length);
    const fault = await expectFault(openOwnerStore(folder.path));
    expect(fault.code, `truncated to ${length}`).toBe('store_corrupt');
    expect(fault.message).toContain(dataFile());
    expect(fault.message).toMatch(/[Rr]estore/);
    expect(statSync(dataFile()).size).toBe(length);
  }
  writeFileSync(dataFile(), original);
  const store = await openOwnerStore(folder.path);
  expect(await store.grants.read('g100')).toBeDefined();
  await store.close();
});

test('S18 a data file with garbage is not opened', async () => {
  await createFilledStore();
  const original = readFileSync(dataFile());
  const pages = countUsedPages(original);
  for (const [from, length] of [
    [0, 4096],
    [4096, 4096],
    [8192, (pages - 2) * 4096],
    [Math.floor(pages / 2) * 4096, Math.floor(pages / 4) * 4096],
    [0, original.length],
  ] as const) {
    const damaged = Buffer.from(original);
    damaged.fill(0xa5, from, from + length);
    writeFileSync(dataFile(), damaged);
    expect((await expectFault(openOwnerStore(folder.path))).code, `garbage from ${from}`).toBe('store_corrupt');
  }
});

test('S18 a file that is not a store is not opened', async () => {
  await createFilledStore(10);
  writeFileSync(dataFile(), 'this is not a store\n'.repeat(1000));
  expect((await expectFault(openOwnerStore(folder.path))).code).toBe('store_corrupt');
});

test('S18 a missing or emptied data file is never treated as a new store', async () => {
  await createFilledStore(10);
  rmSync(dataFile());
  expect((await expectFault(openOwnerStore(folder.path))).message).toContain('missing');
  writeFileSync(dataFile(), '');
  expect((await expectFault(openOwnerStore(folder.path))).code).toBe('store_corrupt');
});

test('S18 a record of an unknown format is an error, never "not found"', async () => {
  const store = await openOwnerStore(folder.path);
  await store.notes.create('n', { mark: 'here-it-is' }, Number.MAX_SAFE_INTEGER);
  await store.close();
  const bytes = readFileSync(dataFile());
  const old = Buffer.from('{"v":1,"k":9007199254740991');
  for (let at = bytes.indexOf(old); at >= 0; at = bytes.indexOf(old, at + 1)) bytes.write('{"v":2', at);
  writeFileSync(dataFile(), bytes);
  const newer = await openOwnerStore(folder.path);
  for (const operation of [newer.notes.read('n'), newer.notes.create('n', { mark: 'again' }, Number.MAX_SAFE_INTEGER)])
    await expect(operation).rejects.toMatchObject({ code: 'store_record_unreadable' });
  await newer.close();
});

test('S19 a second owner is rejected with the folder and the remedy, in the same process and in another', async () => {
  const store = await openOwnerStore(folder.path);
  const sameProcess = await expectFault(openOwnerStore(folder.path));
  const otherProcess = await startStoreChild('try-to-own', folder.path).nextLine();
  for (const output of [`${sameProcess.code} ${sameProcess.message}`, otherProcess]) {
    expect(output).toContain('store_locked');
    expect(output).toContain(folder.path);
    expect(output).toContain('store.path');
  }
  await store.grants.create('still', testGrant(), LATER);
  await store.close();
  expect(await startStoreChild('try-to-own', folder.path).nextLine()).toBe('open');
});

test('S19 kill -9 of the owner releases the store at once', async () => {
  const owner = startStoreChild('hold', folder.path);
  expect(await owner.nextLine()).toBe('open');
  expect((await expectFault(openOwnerStore(folder.path))).code).toBe('store_locked');
  await owner.kill();
  const store = await openOwnerStore(folder.path);
  await store.close();
});

test('S19 workers share the store of the owner, and never create one', async () => {
  const openAsWorker = () =>
    openEmbeddedStore({
      path: folder.path,
      mapSize: 2 ** 30,
      role: 'worker',
      now: () => NOW,
      authenticator: testAuthenticator(),
    });
  expect((await expectFault(openAsWorker())).code).toBe('store_unavailable');
  const owner = await openOwnerStore(folder.path);
  const worker = await openAsWorker();
  await owner.grants.create('a', testGrant(), LATER);
  expect(await worker.grants.read('a')).toBeDefined();
  await worker.close();
  await owner.close();
});

test('S20 the folder and its files are accessible to their owner only', async () => {
  const path = join(folder.path, 'deep', 'store');
  const store = await openOwnerStore(path);
  await store.grants.create('a', testGrant(), LATER);
  expect(statSync(path).mode & 0o777).toBe(0o700);
  for (const file of ['data.mdb', 'data.mdb-lock', 'lock.db', 'store.json'])
    expect(statSync(join(path, file)).mode & 0o777, file).toBe(0o600);
  expect(store.notices).toEqual([]);
  await store.close();
});

test('S20 files readable by others are restricted, and this is logged', async () => {
  await createFilledStore(10);
  chmodSync(folder.path, 0o755);
  chmodSync(dataFile(), 0o644);
  const store = await openOwnerStore(folder.path);
  expect(statSync(folder.path).mode & 0o777).toBe(0o700);
  expect(statSync(dataFile()).mode & 0o777).toBe(0o600);
  expect(store.notices).toHaveLength(2);
  expect(store.notices[1]).toContain('644');
  await store.close();
});

test('S20 a folder, or a file in it, that belongs to another user is refused', async (context) => {
  if (process.geteuid?.() !== 0) return context.skip('only root can change the owner of files');
  await createFilledStore(10);
  chownSync(dataFile(), 12_345, 12_345);
  const file = await expectFault(openOwnerStore(folder.path));
  expect(file.code).toBe('store_unavailable');
  expect(file.message).toContain('12345');
  chownSync(dataFile(), 0, 0);
  chownSync(folder.path, 12_345, 12_345);
  expect((await expectFault(openOwnerStore(folder.path))).message).toContain(folder.path);
});

test('S20 a data file that is a symbolic link is refused', async () => {
  await createFilledStore(10);
  copyFileSync(dataFile(), join(folder.path, 'elsewhere'));
  rmSync(dataFile());
  symlinkSync('elsewhere', dataFile());
  expect((await expectFault(openOwnerStore(folder.path))).message).toContain('not a regular file');
});

test('S22 on a read-only file system the error names the folder', async (context) => {
  const path = join(folder.path, 'store');
  mkdirSync(path);
  try {
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=2m,mode=0700', 'tmpfs', path], { stdio: 'pipe' });
  } catch {
    return context.skip('this user may not mount a tmpfs');
  }
  try {
    const store = await openOwnerStore(path);
    await store.grants.create('a', testGrant(), LATER);
    await store.close();
    execFileSync('mount', ['-o', 'remount,ro', path]);
    for (const at of [path, join(path, 'new')]) {
      const fault = await expectFault(openOwnerStore(at));
      expect(fault.code).toBe('store_unavailable');
      expect(fault.message).toContain(at);
      expect(fault.message).toContain('read-only');
    }
  } finally {
    execFileSync('umount', ['-l', path]);
  }
});

test('S22 a folder that is a file, or is below one, is rejected by name', async () => {
  const path = join(folder.path, 'file');
  const fd = openSync(path, 'w');
  writeSync(fd, 'x');
  closeSync(fd);
  for (const at of [path, join(path, 'store')]) {
    const fault = await expectFault(openOwnerStore(at));
    expect(fault.code).toBe('store_unavailable');
    expect(fault.message).toContain(at);
  }
});
