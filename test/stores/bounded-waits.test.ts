import { afterEach, expect, test, vi } from 'vitest';
import { writeNote } from '../../src/commands/restore/migrate-to-redis.ts';
import { KEEP_FOREVER, MIGRATION_NOTE, type RecordStore } from '../../src/ports/store.ts';
import type { ExportedRecord } from '../../src/stores/embedded/backup.ts';
import { connectRedis } from '../../src/stores/redis/client.ts';
import { importRecords } from '../../src/stores/redis/import.ts';
import { RevocationFollower } from '../../src/stores/redis/revocation-follower.ts';
import { createRevocationScripts, revocationKeys } from '../../src/stores/redis/revocation-scripts.ts';
import { createRevocationView } from '../../src/stores/revocation-rules.ts';
import { createMemoryStore } from '../support/memory-store.ts';
import { startRedis } from '../support/redis-server.ts';
import { LATER, NOW, testGrant } from '../support/store-fixtures.ts';

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of cleanups.splice(0).toReversed()) await close();
});

/** A store in which every record changes between a read and the following write. */
function contestedRecords<T>(records: RecordStore<T>): {
  readonly records: RecordStore<T>;
  readonly reads: () => number;
} {
  let reads = 0;
  return {
    reads: () => reads,
    records: {
      ...records,
      async read(id) {
        reads += 1;
        const found = await records.read(id);
        if (found !== undefined) await records.replace(id, found.version, found.record, KEEP_FOREVER);
        return found;
      },
    },
  };
}

test('a migration whose note is continually changed by another process fails', async () => {
  const store = createMemoryStore({ now: () => NOW });
  await store.notes.create(MIGRATION_NOTE, { state: 'ended' }, KEEP_FOREVER);
  const { records: notes, reads } = contestedRecords(store.notes);
  await expect(writeNote({ notes }, MIGRATION_NOTE, { state: 'begun' })).rejects.toMatchObject({
    code: 'overloaded',
  });
  expect(reads()).toBe(16);
  await writeNote({ notes: store.notes }, MIGRATION_NOTE, { state: 'begun' });
  expect((await store.notes.read(MIGRATION_NOTE))?.record).toEqual({ state: 'begun' });
});

test('the import of a record that is continually changed by another process fails', async () => {
  const store = createMemoryStore({ now: () => NOW });
  await store.grants.create('g1', testGrant({ generation: 1 }), LATER);
  const { records: grants, reads } = contestedRecords(store.grants);
  const source = async function* (): AsyncGenerator<ExportedRecord> {
    yield { kind: 'grants', id: 'g1', record: testGrant({ generation: 7 }), keepUntil: LATER };
  };
  await expect(importRecords({ ...store, grants }, source(), () => {})).rejects.toMatchObject({
    code: 'overloaded',
  });
  expect(reads()).toBe(64);
});

test('a start that never catches up with the revocation log fails', async () => {
  const server = await startRedis();
  cleanups.push(() => server.stop());
  const open = (name: string) => connectRedis({ url: server.url, name, commandTimeout: 5_000 });
  const [control, reader] = await Promise.all([open('control'), open('reader')]);
  cleanups.push(
    () => control.close(),
    () => reader.close(),
  );
  const keys = revocationKeys('gh');
  const real = createRevocationScripts(control, keys);
  let heartbeats = 0;
  const options = {
    reader,
    keys,
    lease: 60_000,
    onFault: () => {},
    onHeartbeat: () => {},
    issuingTime: () => Number.POSITIVE_INFINITY,
    onDataLoss: async () => {},
  };
  // The server reports a last entry that its log does not contain.
  const ahead: typeof real = {
    ...real,
    async heartbeat(...args) {
      heartbeats += 1;
      await control.execute((redis) => redis.hset(keys.head, 'last', `${Date.now() + 60_000 + heartbeats}-0`));
      return real.heartbeat(...args);
    },
  };
  // A clock that moves with each beat: three fit into the time that is given.
  const clock = vi.spyOn(performance, 'now').mockImplementation(() => heartbeats * 20_000);
  const late = { ...options, scripts: ahead, view: createRevocationView() };
  await expect(new RevocationFollower(late).start()).rejects.toMatchObject({
    code: 'store_unavailable',
    message: expect.stringContaining('catch up'),
  });
  expect(heartbeats).toBe(3);
  clock.mockRestore();
  // Announcements do not wait for a replica that failed to start.
  expect((await real.peers()).peers).toEqual([]);
  const follower = new RevocationFollower({ ...options, scripts: real, view: createRevocationView() });
  await follower.start();
  expect(follower.staleness()).toBeLessThan(options.lease);
  await follower.stop();
});
