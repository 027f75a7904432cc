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

/** A small file system of its own; undefined when this user may not mount. */
function smallDisk(size = '2m'): { readonly path: string } | undefined {
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

const codeOf = async (act: Promise<unknown>): Promise<string> => {
  try {
    await act;
    return 'fine';
  } catch (error) {
    return error instanceof Fault ? error.code : String(error);
  }
};

/** Writes until that fails. */
const fill = async (store: Store): Promise<void> => {
  for (let count = 0; count < 20_000; count += 1)
    await store.grants.create(`fill-${count}`, testGrant(), LATER);
};

test('S16 on a full disk writes fail with a clear error, nothing acknowledged is lost, reads continue, and writes work again when there is space', async (context) => {
  const disk = smallDisk();
  if (disk === undefined) return context.skip('this user may not mount a tmpfs');
  const stray: unknown[] = [];
  const onStray = (reason: unknown): void => void stray.push(reason);
  process.on('unhandledRejection', onStray);
  onTestFinished(() => void process.off('unhandledRejection', onStray));
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
        const code = await codeOf(store.grants.create(id, testGrant({ id }), LATER));
        if (code === 'fine') written.push(id);
        else faults.add(code);
      }),
    );
  expect([...faults]).toEqual(['store_full']);
  expect(written.length).toBeGreaterThan(100);
  await until('the probe sees it', async () => (await codeOf(store.probe())) === 'store_full');
  for (const id of written) expect((await store.grants.read(id))?.record.id).toBe(id);

  await store.close();
  store = await openOwnerStore(path, () => time);
  for (const id of written) expect(await store.grants.read(id)).toBeDefined();
  await until('it is still full', async () => (await codeOf(fill(store))) === 'store_full');
  await until('the probe sees it', async () => (await codeOf(store.probe())) === 'store_full');
  await store.revocations.announce({ of: 'grant', grantId: 'g0', belowGeneration: 9, keepUntil: LATER });

  rmSync(ballast);
  time += 60;
  await until(
    'writing works again',
    async () => (await codeOf(store.grants.create('after', testGrant(), LATER))) === 'fine',
  );
  await until('the probe sees that', async () => (await codeOf(store.probe())) === 'fine');
  await store.close();

  const again = await openOwnerStore(path);
  for (const id of [...written, 'after']) expect(await again.grants.read(id)).toBeDefined();
  await again.close();
  expect(stray).toEqual([]);
});

test('S16 a full store empties itself: what has ended is swept without any space left on the disk', async (context) => {
  const disk = smallDisk('24m');
  if (disk === undefined) return context.skip('this user may not mount a tmpfs');
  let time = NOW;
  const store = await openOwnerStore(join(disk.path, 'store'), () => time);
  const createMany = async (): Promise<number> => {
    for (let count = 0; ; count += 50) {
      const codes = await Promise.all(
        Array.from({ length: 50 }, (_, index) =>
          codeOf(store.grants.create(`g${count + index}`, testGrant(), time + 100)),
        ),
      );
      if (codes.includes('store_full')) return count;
    }
  };
  expect(await createMany()).toBeGreaterThan(1000);
  let revoked = 0;
  for (let isFull = false; !isFull; revoked += 50) {
    const some = Array.from({ length: 50 }, (_, index) => codeOf(announce(store, `r${revoked + index}`)));
    isFull = (await Promise.all(some)).some((code) => code !== 'fine');
  }
  expect(revoked).toBeGreaterThan(100);
  time += 100;
  expect(await store.sweep()).toBeGreaterThan(1000);
  await until('there is room again', async () => (await codeOf(announce(store, 'more'))) === 'fine');
  await store.close();
});

test('S16 when there is no space for rotations any more, grants can still be ended', async (context) => {
  const disk = smallDisk('24m');
  if (disk === undefined) return context.skip('this user may not mount a tmpfs');
  const store = await openOwnerStore(join(disk.path, 'store'));
  const refreshUntil = LATER;
  let made = 0;
  for (let isFull = false; !isFull; made += 50) {
    const some = Array.from({ length: 50 }, (_, index) => {
      const id = `g${made + index}`;
      return codeOf(store.grants.create(id, testGrant({ id, refreshUntil }), LATER));
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
  for (let code = 'fine'; code === 'fine' && rotated < made; rotated += 1)
    code = await codeOf(rotate(`g${rotated}`));
  expect(rotated).toBeLessThan(made);
  const log = createLogger({ level: 'error', format: 'json', write: () => {} });
  for (let index = 0; index < 20; index += 1) {
    const id = `g${index}`;
    expect(await codeOf(rotate(`g${made - 100}`))).toBe('store_full');
    const grant = testGrant({ id, refreshUntil });
    expect(await codeOf(revokeGrant({ store, now: () => NOW, log }, grant))).toBe('fine');
    expect((await store.grants.read(id))?.record.revokedAt).toBeDefined();
  }
  await store.close();
});

const announce = (store: Store, grantId: string): Promise<void> =>
  store.revocations.announce({ of: 'grant', grantId, belowGeneration: 9, keepUntil: LATER });

test('S16 a store that cannot be created for lack of space reports it', async (context) => {
  const disk = smallDisk();
  if (disk === undefined) return context.skip('this user may not mount a tmpfs');
  try {
    writeFileSync(join(disk.path, 'ballast'), Buffer.alloc(2 * 2 ** 20));
  } catch {
    // Full is what it should be.
  }
  expect(await codeOf(openOwnerStore(join(disk.path, 'store')))).toBe('store_full');
});

test('a store at its configured limit refuses new grants, and still revokes and replaces', async () => {
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
          codeOf(store.grants.create(`g${codes.length + index}`, testGrant(), LATER)),
        ),
      )),
    );
  expect(new Set(codes)).toEqual(new Set(['fine', 'store_full']));
  expect(codes.indexOf('store_full')).toBeGreaterThan(500);
  const found = await store.grants.read('g0');
  if (found === undefined) throw new Error('gone');
  expect(await store.grants.replace('g0', found.version, testGrant({ revokedAt: NOW }), LATER)).toBe(
    'replaced',
  );
  await store.revocations.announce({ of: 'grant', grantId: 'g0', belowGeneration: 9, keepUntil: LATER });

  time = LATER;
  await store.sweep();
  await until(
    'there is room again',
    async () => (await codeOf(store.grants.create('new', testGrant(), LATER + 9))) === 'fine',
  );
  await store.close();
});
