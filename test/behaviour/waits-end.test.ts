import { afterEach, expect, test, vi } from 'vitest';
import { note } from '../../src/gateway/move.ts';
import type { RecordStore } from '../../src/ports/record-store.ts';
import { KEEP_FOREVER, MOVE_NOTE } from '../../src/ports/store.ts';
import type { ExportedRecord } from '../../src/stores/embedded-backup.ts';
import { memoryStore } from '../../src/stores/memory.ts';
import { connectRedis } from '../../src/stores/redis-client.ts';
import { follow } from '../../src/stores/redis-follower.ts';
import { importRecords } from '../../src/stores/redis-import.ts';
import { revocationKeys, revocationServer } from '../../src/stores/redis-revocation-scripts.ts';
import { revocationView } from '../../src/stores/revocation-view.ts';
import { redisServer } from '../support/redis-server.ts';
import { aGrant, LATER, NOW } from '../support/store-fixtures.ts';

const closing: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).toReversed()) await close();
});

/** Every record changes between our read and our write. */
function contested<T>(records: RecordStore<T>): {
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

test('a migration whose note another process keeps changing ends with a fault', async () => {
  const store = memoryStore({ now: () => NOW });
  await store.notes.create(MOVE_NOTE, { state: 'ended' }, KEEP_FOREVER);
  const { records: notes, reads } = contested(store.notes);
  await expect(note({ notes }, MOVE_NOTE, { state: 'begun' })).rejects.toMatchObject({ code: 'overloaded' });
  expect(reads()).toBe(16);
  await note({ notes: store.notes }, MOVE_NOTE, { state: 'begun' });
  expect((await store.notes.read(MOVE_NOTE))?.record).toEqual({ state: 'begun' });
});

test('the import of a record that another process keeps changing ends with a fault', async () => {
  const store = memoryStore({ now: () => NOW });
  await store.grants.create('g1', aGrant({ generation: 1 }), LATER);
  const { records: grants, reads } = contested(store.grants);
  const source = async function* (): AsyncGenerator<ExportedRecord> {
    yield { kind: 'grants', id: 'g1', record: aGrant({ generation: 7 }), keepUntil: LATER };
  };
  await expect(importRecords({ ...store, grants }, source(), () => {})).rejects.toMatchObject({
    code: 'overloaded',
  });
  expect(reads()).toBe(64);
});

test('a start that never catches up with the log of revocations ends with a fault', async () => {
  const server = await redisServer();
  closing.push(() => server.stop());
  const open = (name: string) => connectRedis({ url: server.url, name, commandTimeout: 5_000 });
  const [control, reader] = await Promise.all([open('control'), open('reader')]);
  closing.push(
    () => control.close(),
    () => reader.close(),
  );
  const keys = revocationKeys('gh');
  const real = revocationServer(control, keys);
  let beats = 0;
  const terms = {
    reader,
    keys,
    lease: 60_000,
    onFault: () => {},
    onBeat: () => {},
    issuingTime: () => Number.POSITIVE_INFINITY,
    onDataLoss: async () => {},
  };
  // The server names a last entry that its log does not hold.
  const ahead: typeof real = {
    ...real,
    async beat(...told) {
      beats += 1;
      await control.ask((redis) => redis.hset(keys.head, 'last', `${Date.now() + 60_000 + beats}-0`));
      return real.beat(...told);
    },
  };
  // A clock that moves with each beat: three fit into the time that is given.
  const clock = vi.spyOn(performance, 'now').mockImplementation(() => beats * 100);
  await expect(
    follow({ ...terms, server: ahead, view: revocationView(), withinMs: 300 }),
  ).rejects.toMatchObject({ code: 'store_unavailable', message: expect.stringContaining('caught up') });
  expect(beats).toBe(3);
  clock.mockRestore();
  // Announcers do not wait for a replica that gave up.
  expect((await real.peers()).peers).toEqual([]);
  const follower = await follow({ ...terms, server: real, view: revocationView() });
  expect(follower.staleness()).toBeLessThan(terms.lease);
  await follower.stop();
});
