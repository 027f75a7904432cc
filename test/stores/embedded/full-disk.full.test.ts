import { execFileSync } from 'node:child_process';
import { rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { revokeGrant } from '../../../src/grants/revoke.ts';
import { createLogger } from '../../../src/observability/logger.ts';
import { Fault } from '../../../src/ports/fault.ts';
import type { Store } from '../../../src/ports/store.ts';
import { openEmbeddedStore } from '../../../src/stores/embedded/store.ts';
import { testAuthenticator } from '../../support/record-keys.ts';
import { LATER, NOW, openOwnerStore, storeTempFolder, testGrant } from '../../support/store-fixtures.ts';
import { until } from '../../support/until.ts';

/** Mounts a small file system; undefined if this user may not mount. */
function mountSmallDisk(size = '2m'): { readonly path: string } | undefined {
  const folder = storeTempFolder();
  try {
    execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${size},mode=0700`, 'tmpfs', folder.path], {
      stdio: 'pipe',
    });
  } catch {
    folder.remove();
    return undefined;
  }
  onTestFinished(() => {
    execFileSync('umount', ['-l', folder.path]);
    folder.remove();
  });
  return { path: folder.path };
}

const getResult = async (operation: Promise<unknown>): Promise<string> => {
  try {
    await operation;
    return 'ok';
  } catch (error) {
    return error instanceof Fault ? error.code : String(error);
  }
};

/** Creates grants until it fails. */
const fillStore = async (store: Store): Promise<void> => {
  for (let count = 0; count < 20_000; count += 1) await store.grants.create(`fill-${count}`, testGrant(), LATER);
};

test('S16 on a full disk writes fail with a clear error, nothing acknowledged is lost, reads continue, and writes work again when there is space', async (context) => {
  const disk = mountSmallDisk();
  if (disk === undefined) return context.skip('this user may not mount a tmpfs');
  const unhandled: unknown[] = [];
  const onUnhandled = (reason: unknown): void => void unhandled.push(reason);
  process.on('unhandledRejection', onUnhandled);
  onTestFinished(() => void process.off('unhandledRejection', onUnhandled));
  const path = join(disk.path, 'store');
  const ballast = join(disk.path, 'ballast');
  writeFileSync(ballast, Buffer.alloc(900 * 1024));
  let time = NOW;
  let store = await openOwnerStore(path, () => time);

  const written: string[] = [];
  const faults = new Set<string>();
  for (let count = 0; count < 20_000 && faults.size === 0; count += 20)
    await Promise.all(
      Array.from({ length: 20 }, async (_, index) => {
        const id = `g${count + index}`;
        const code = await getResult(store.grants.create(id, testGrant({ id }), LATER));
        if (code === 'ok') written.push(id);
        else faults.add(code);
      }),
    );
  expect([...faults]).toEqual(['store_full']);
  expect(written.length).toBeGreaterThan(100);
  await until('the probe reports the full disk', async () => (await getResult(store.probe())) === 'store_full');
  for (const id of written) expect((await store.grants.read(id))?.record.id).toBe(id);

  await store.close();
  store = await openOwnerStore(path, () => time);
  for (const id of written) expect(await store.grants.read(id)).toBeDefined();
  await until('the disk is still full', async () => (await getResult(fillStore(store))) === 'store_full');
  await until('the probe reports the full disk', async () => (await getResult(store.probe())) === 'store_full');
  await store.revocations.announce({ of: 'grant', grantId: 'g0', belowGeneration: 9, keepUntil: LATER });

  rmSync(ballast);
  time += 60;
  await until(
    'writing works again',
    async () => (await getResult(store.grants.create('after', testGrant(), LATER))) === 'ok',
  );
  await until('the probe succeeds', async () => (await getResult(store.probe())) === 'ok');
  await store.close();

  const reopened = await openOwnerStore(path);
  for (const id of [...written, 'after']) expect(await reopened.grants.read(id)).toBeDefined();
  await reopened.close();
  expect(unhandled).toEqual([]);
});

test('S16 a full store recovers on its own: expired records are swept without any free space on the disk', async (context) => {
  const disk = mountSmallDisk('24m');
  if (disk === undefined) return context.skip('this user may not mount a tmpfs');
  let time = NOW;
  const store = await openOwnerStore(join(disk.path, 'store'), () => time);
  const createMany = async (): Promise<number> => {
    for (let count = 0; ; count += 50) {
      const codes = await Promise.all(
        Array.from({ length: 50 }, (_, index) =>
          getResult(store.grants.create(`g${count + index}`, testGrant(), time + 100)),
        ),
      );
      if (codes.includes('store_full')) return count;
    }
  };
  expect(await createMany()).toBeGreaterThan(1000);
  let revoked = 0;
  for (let isFull = false; !isFull; revoked += 50) {
    const some = Array.from({ length: 50 }, (_, index) => getResult(announce(store, `r${revoked + index}`)));
    isFull = (await Promise.all(some)).some((code) => code !== 'ok');
  }
  expect(revoked).toBeGreaterThan(100);
  time += 100;
  expect(await store.sweep()).toBeGreaterThan(1000);
  await until('writing works again', async () => (await getResult(announce(store, 'more'))) === 'ok');
  await store.close();
});

test('S16 when there is no more space for rotations, grants can still be revoked', async (context) => {
  const disk = mountSmallDisk('24m');
  if (disk === undefined) return context.skip('this user may not mount a tmpfs');
  const store = await openOwnerStore(join(disk.path, 'store'));
  const refreshUntil = LATER;
  let createdCount = 0;
  for (let isFull = false; !isFull; createdCount += 50) {
    const some = Array.from({ length: 50 }, (_, index) => {
      const id = `g${createdCount + index}`;
      return getResult(store.grants.create(id, testGrant({ id, refreshUntil }), LATER));
    });
    isFull = (await Promise.all(some)).includes('store_full');
  }
  const rotate = async (id: string): Promise<void> => {
    const found = await store.grants.read(id);
    if (found === undefined) return;
    const grown = { ...found.record, scope: 'x'.repeat(1_200) };
    await store.grants.replace(id, found.version, grown, LATER);
  };
  let rotated = 100;
  for (let code = 'ok'; code === 'ok' && rotated < createdCount; rotated += 1)
    code = await getResult(rotate(`g${rotated}`));
  expect(rotated).toBeLessThan(createdCount);
  const log = createLogger({ level: 'error', format: 'json', write: () => {} });
  for (let index = 0; index < 20; index += 1) {
    const id = `g${index}`;
    expect(await getResult(rotate(`g${createdCount - 100}`))).toBe('store_full');
    const grant = testGrant({ id, refreshUntil });
    expect(await getResult(revokeGrant({ store, now: () => NOW, log }, grant))).toBe('ok');
    expect((await store.grants.read(id))?.record.revokedAt).toBeDefined();
  }
  await store.close();
});

const announce = (store: Store, grantId: string): Promise<void> =>
  store.revocations.announce({ of: 'grant', grantId, belowGeneration: 9, keepUntil: LATER });

test('S16 a store that cannot be created for lack of space fails with store_full', async (context) => {
  const disk = mountSmallDisk();
  if (disk === undefined) return context.skip('this user may not mount a tmpfs');
  try {
    writeFileSync(join(disk.path, 'ballast'), Buffer.alloc(2 * 2 ** 20));
  } catch {
    // The disk is full, as intended.
  }
  expect(await getResult(openOwnerStore(join(disk.path, 'store')))).toBe('store_full');
});

test('a store at its configured limit refuses new grants, but still accepts revocations and updates', async () => {
  const folder = storeTempFolder();
  onTestFinished(() => folder.remove());
  let time = NOW;
  const store = await openEmbeddedStore({
    path: folder.path,
    mapSize: 2 ** 20,
    role: 'owner',
    now: () => time,
    authenticator: testAuthenticator(),
  });
  const codes: string[] = [];
  while (!codes.includes('store_full') && codes.length < 20_000)
    codes.push(
      ...(await Promise.all(
        Array.from({ length: 50 }, (_, index) =>
          getResult(store.grants.create(`g${codes.length + index}`, testGrant(), LATER)),
        ),
      )),
    );
  expect(new Set(codes)).toEqual(new Set(['ok', 'store_full']));
  expect(codes.indexOf('store_full')).toBeGreaterThan(500);
  const found = await store.grants.read('g0');
  if (found === undefined) throw new Error('grant not found');
  expect(await store.grants.replace('g0', found.version, testGrant({ revokedAt: NOW }), LATER)).toBe('replaced');
  await store.revocations.announce({ of: 'grant', grantId: 'g0', belowGeneration: 9, keepUntil: LATER });

  time = LATER;
  await store.sweep();
  await until(
    'writing works again',
    async () => (await getResult(store.grants.create('new', testGrant(), LATER + 9))) === 'ok',
  );
  await store.close();
});
