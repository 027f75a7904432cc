import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, onTestFinished, test } from 'vitest';
import { randomGrantId } from '../../../src/grants/issue.ts';
import { Fault } from '../../../src/ports/fault.ts';
import { createKeyringFile, writeKeyringFile } from '../../../src/tokens/keyring-file.ts';
import { until } from '../../support/serve-process.ts';
import { testGrant } from '../../support/store-fixtures.ts';
import { type Reply, startGateway } from '../../support/test-gateway.ts';
import {
  endWaits,
  later,
  openReplicated,
  partitionAndPromote,
  revoke,
  startReplicatedRedis,
} from './replicated-redis.ts';

test('a write succeeds once the replica has it; otherwise it fails, and a retry converges', async () => {
  const { primary, replica, atPrimary, atReplica } = await startReplicatedRedis();
  const store = await openReplicated(primary.url);
  await Promise.all(Array.from({ length: 200 }, (_, index) => store.grants.create(`g${index}`, testGrant(), later)));
  for (let index = 0; index < 200; index += 1) expect(await atReplica.exists(`gh:{g${index}}:g`)).toBe(1);

  const found = await store.grants.read('g0');
  if (found === undefined) throw new Error('g0 is missing');
  replica.pause();
  onTestFinished(() => replica.resume());
  const expectUnconfirmed = async (work: Promise<unknown>): Promise<Fault> => {
    const settled = work.then(
      () => new Error('the write was confirmed'),
      (error: unknown) => error,
    );
    let outcome: unknown;
    void settled.then((value) => (outcome = value));
    await until('the write ends', async () => {
      await endWaits(atPrimary);
      return outcome !== undefined;
    });
    if (!(outcome instanceof Fault)) throw outcome;
    return outcome;
  };
  expect(
    await expectUnconfirmed(store.grants.replace('g0', found.version, testGrant({ generation: 2 }), later)),
  ).toMatchObject({ code: 'store_unavailable', message: expect.stringMatching(/0 of 1 replicas/) });
  const id = randomGrantId();
  expect(await expectUnconfirmed(revoke(store, id))).toMatchObject({ code: 'store_unavailable' });
  // Reads do not wait for replicas.
  expect((await store.grants.read('g0'))?.record.generation).toBe(2);
  replica.resume();
  await revoke(store, id);
  expect(await atReplica.zscore('{gh}:rev', `g:${id}`)).toBe(String(later));
  expect(await store.grants.create('after', testGrant(), later)).toBe('created');
});

test('a refresh retried after an unconfirmed write gets tokens only once that write is confirmed', async () => {
  const { primary, replica, atReplica } = await startReplicatedRedis();
  const folder = mkdtempSync(join(tmpdir(), 'gatehouse-durable-'));
  onTestFinished(() => rmSync(folder, { recursive: true, force: true }));
  const keys = join(folder, 'keys.json');
  writeKeyringFile(keys, createKeyringFile('EdDSA'), { replace: false });
  const gateway = await startGateway((settings) => ({
    ...settings,
    store: { type: 'redis', url: primary.url, durability: 'replicated', replicas: 1 },
    keys: { file: keys },
  }));
  onTestFinished(() => gateway.close());
  /** Retries temporary errors as docs/storage.md asks of clients. */
  const retryTemporaryErrors = (send: () => Promise<Reply>): Promise<Reply> =>
    until('a response that is not temporary', async () => {
      const reply = await send();
      return reply.headers['retry-after'] === undefined && reply;
    });
  const granted = await retryTemporaryErrors(() =>
    gateway.post(
      '/Authorize/Certificate',
      { client_id: 'report-runner', scope: 'files:read' },
      { as: gateway.users.alice },
    ),
  );
  const token = String(granted.json['refresh_token']);
  const readGeneration = async (): Promise<number> => {
    const [key = ''] = await atReplica.keys('gh:*:g');
    const value = (await atReplica.get(key)) ?? '';
    return (JSON.parse(value.slice(value.indexOf('{'))) as { r: { generation: number } }).r.generation;
  };
  replica.pause();
  onTestFinished(() => replica.resume());
  for (let attempt = 0; attempt < 3; attempt += 1) {
    const { status, json } = await gateway.refresh(token);
    expect([status, json['Error']]).toEqual([400, 'invalid_request']);
  }
  replica.resume();
  const refreshed = await retryTemporaryErrors(() => gateway.refresh(token));
  expect(refreshed.status).toBe(200);
  expect(await readGeneration()).toBe(2);
  const repeated = await retryTemporaryErrors(() => gateway.refresh(token));
  expect(repeated.json['refresh_token']).toBe(refreshed.json['refresh_token']);
  expect(gateway.auditEvents('refresh_reuse')).toEqual([]);
});

test('S08 a partition and promotion lose no acknowledged write', partitionAndPromote);
