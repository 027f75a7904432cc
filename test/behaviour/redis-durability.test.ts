import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, expect, test, vi } from 'vitest';
import { randomGrantId } from '../../src/grants/issue.ts';
import type { Fault } from '../../src/ports/fault.ts';
import { openRedis, type RedisOptions, type RedisStore } from '../../src/stores/redis.ts';
import { connectRedis, type RedisClient } from '../../src/stores/redis-client.ts';
import { newKeyring, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import { openHouse } from '../support/house.ts';
import { type RedisServer, redisServer } from '../support/redis-server.ts';
import { aGrant } from '../support/store-fixtures.ts';
import { type FaultyWay, faultyWay } from '../support/tcp-fault.ts';

const later = Math.floor(Date.now() / 1_000) + 3_600;
const closing: (() => unknown)[] = [];
afterEach(async () => {
  for (const close of closing.splice(0).toReversed()) await close();
});

interface Pair {
  readonly primary: RedisServer;
  readonly replica: RedisServer;
  /** Between the two. */
  readonly way: FaultyWay;
  readonly atReplica: RedisClient;
}

async function aPair(): Promise<Pair> {
  const primary = await redisServer(['--repl-ping-replica-period', '1', '--repl-diskless-sync-delay', '0']);
  closing.push(() => primary.stop());
  const way = await faultyWay(primary.port);
  closing.push(() => way.close());
  const replica = await redisServer(['--replicaof', '127.0.0.1', String(way.port)]);
  closing.push(() => replica.stop());
  const atReplica = await connectRedis({ url: replica.url, name: 'test', commandTimeout: 5_000 });
  closing.push(() => atReplica.close());
  await vi.waitFor(
    async () =>
      expect(await atReplica.ask((redis) => redis.info('replication'))).toMatch(/master_link_status:up/),
    { timeout: 20_000, interval: 50 },
  );
  return { primary, replica, way, atReplica };
}
const open = async (url: string, changes: Partial<RedisOptions> = {}): Promise<RedisStore> => {
  // What is tested here is what was confirmed, not how quickly on a busy machine.
  const store = await openRedis({
    url,
    maxStaleness: 60,
    ack: 'reachable',
    replicas: 1,
    commandTimeout: 2_000,
    ...changes,
  });
  closing.push(() => store.close());
  return store;
};
const faultOf = (work: Promise<unknown>): Promise<Fault> =>
  work.then(
    () => {
      throw new Error('there was no fault');
    },
    (error: Fault) => error,
  );
const end = (store: RedisStore, grantId: string): Promise<void> =>
  store.revocations.announce({
    of: 'grant',
    grantId,
    belowGeneration: Number.POSITIVE_INFINITY,
    keepUntil: later,
  });

test('a write is answered when the replica holds it; one that it does not hold is a fault, and trying again converges', async () => {
  const { primary, replica, atReplica } = await aPair();
  const store = await open(primary.url);
  await Promise.all(
    Array.from({ length: 200 }, (_, index) => store.grants.create(`g${index}`, aGrant(), later)),
  );
  for (let index = 0; index < 200; index += 1)
    expect(await atReplica.ask((redis) => redis.exists(`gh:{g${index}}:g`))).toBe(1);

  const found = await store.grants.read('g0');
  if (found === undefined) throw new Error('gone');
  expect(store.recoveredAt()).toBe(0);
  replica.pause();
  const fault = await faultOf(store.grants.replace('g0', found.version, aGrant({ generation: 2 }), later));
  expect(fault.code).toBe('store_unavailable');
  expect(fault.message).toMatch(/0 of 1 replicas/);
  const id = randomGrantId();
  expect((await faultOf(end(store, id))).code).toBe('store_unavailable');
  // Reading does not wait for replicas.
  expect((await store.grants.read('g0'))?.record.generation).toBe(2);
  // Whoever was told to try again is not late, for as long as this lasts and from its end on.
  expect(Math.abs(store.recoveredAt() - Date.now() / 1_000)).toBeLessThan(2);
  replica.resume();
  await vi.waitFor(() => end(store, id), { timeout: 10_000, interval: 50 });
  expect(await atReplica.ask((redis) => redis.zscore('{gh}:rev', `g:${id}`))).toBe(String(later));
  expect(await store.grants.create('after', aGrant(), later)).toBe('created');
  const recovered = store.recoveredAt();
  expect(Math.abs(recovered - Date.now() / 1_000)).toBeLessThan(10);
  expect(await store.grants.create('later', aGrant(), later)).toBe('created');
  expect(store.recoveredAt()).toBe(recovered);
});

test('a refresh that is repeated after an unconfirmed write is answered only when that write is confirmed', async () => {
  const { primary, replica, atReplica } = await aPair();
  const folder = mkdtempSync(join(tmpdir(), 'gatehouse-durable-'));
  closing.push(() => rmSync(folder, { recursive: true, force: true }));
  const keys = join(folder, 'keys.json');
  writeKeyringFile(keys, newKeyring('EdDSA'), { replace: false });
  const house = await openHouse((settings) => ({
    ...settings,
    store: { type: 'redis', url: primary.url, durability: 'replicated', replicas: 1 },
    keys: { file: keys },
  }));
  closing.push(() => house.close());
  const grant = await vi.waitFor(() => house.grant(), { timeout: 20_000, interval: 50 });
  const generation = async (): Promise<number> => {
    const [key = ''] = await atReplica.ask((redis) => redis.keys('gh:*:g'));
    const value = (await atReplica.ask((redis) => redis.get(key))) ?? '';
    return (JSON.parse(value.slice(value.indexOf('{'))) as { r: { generation: number } }).r.generation;
  };
  replica.pause();
  for (let turn = 0; turn < 3; turn += 1) {
    const { status, json } = await house.refresh(grant.refresh_token);
    expect([status, json['Error']]).toEqual([400, 'invalid_request']);
  }
  replica.resume();
  const answers = await vi.waitFor(
    async () => {
      const reply = await house.refresh(grant.refresh_token);
      expect(reply.status).toBe(200);
      return [await generation(), reply.json['refresh_token']];
    },
    { timeout: 20_000, interval: 50 },
  );
  expect(answers[0]).toBe(2);
  expect((await house.refresh(grant.refresh_token)).json['refresh_token']).toBe(answers[1]);
  expect(house.audits('refresh_reuse')).toEqual([]);
});

const ROUNDS = Number(process.env['ROUNDS'] ?? 3);

test(`S08 partition and promotion, ${ROUNDS} times: nothing that was acknowledged is lost`, async () => {
  for (let round = 0; round < ROUNDS; round += 1) {
    const { primary, way, atReplica } = await aPair();
    const store = await open(primary.url);
    const grants: string[] = [];
    const revoked: string[] = [];
    let refused = 0;
    let going = true;
    const writing = Array.from({ length: 8 }, async () => {
      for (;;) {
        if (!going) return;
        const id = randomGrantId();
        try {
          if ((await store.grants.create(id, aGrant({ id }), later)) === 'created') grants.push(id);
          await end(store, id);
          revoked.push(id);
        } catch {
          refused += 1;
        }
      }
    });
    await vi.waitFor(() => expect(revoked.length).toBeGreaterThan(50), { timeout: 20_000 });
    way.set('black hole');
    await vi.waitFor(() => expect(refused).toBeGreaterThan(20), { timeout: 20_000 });
    await atReplica.ask((redis) => redis.replicaof('NO', 'ONE'));
    await primary.kill();
    going = false;
    await Promise.all(writing);
    const isThere = await Promise.all(
      grants.map((id) => atReplica.ask((redis) => redis.exists(`gh:{${id}}:g`))),
    );
    expect(isThere.filter((there) => there === 0)).toEqual([]);
    const scores = await Promise.all(
      revoked.map((id) => atReplica.ask((redis) => redis.zscore('{gh}:rev', `g:${id}`))),
    );
    expect(scores.filter((score) => score === null)).toEqual([]);
    for (const close of closing.splice(0).toReversed()) await close();
  }
}, 180_000);
