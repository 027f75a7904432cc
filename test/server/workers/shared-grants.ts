import { hash } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { openEmbeddedStore } from '../../../src/stores/embedded/store.ts';
import { openSealingKeys } from '../../../src/tokens/keyring.ts';
import { readKeyringFile } from '../../../src/tokens/keyring-file.ts';
import { testAuthenticator } from '../../support/record-keys.ts';
import {
  connectMany,
  createServeFolder,
  groupByWorker,
  type ServeFolder,
  type ServeProcess,
  startServe,
  until,
  type WorkerClient,
} from '../../support/serve-process.ts';
import { ALICE, type TokenGrant } from '../../support/test-gateway.ts';

/** How often each behaviour is repeated. */
export interface Counts {
  readonly refreshed: number;
  readonly redeemed: number;
  readonly raced: number;
  readonly revoked: number;
}

/** Runs `count` rounds, `concurrency` at a time. */
async function runRounds(count: number, concurrency: number, round: (index: number) => Promise<void>): Promise<void> {
  let next = 0;
  const run = async (): Promise<void> => {
    while (next < count) await round(next++);
  };
  await Promise.all(Array.from({ length: concurrency }, run));
}

export function testGrantsOfTwoWorkers(counts: Counts): void {
  let folder: ServeFolder;
  let server: ServeProcess;
  let clients: readonly WorkerClient[];
  /** One client of each worker. */
  let firstClient: WorkerClient;
  let secondClient: WorkerClient;

  beforeAll(async () => {
    folder = await createServeFolder((settings) => ({
      ...settings,
      listen: { ...settings.listen, workers: 2 },
      log: { level: 'info' },
    }));
    server = await startServe(folder);
    clients = await connectMany(folder, server, 100, folder.alice);
    [firstClient, secondClient] = [...groupByWorker(clients).values()].map(([first]) => first) as [
      WorkerClient,
      WorkerClient,
    ];
  });
  afterAll(async () => {
    for (const client of clients ?? []) client.close();
    await folder?.remove();
  });

  const auditLines = (event: string, grantId?: string) =>
    server.log.filter(
      (line) => line.audit === true && line.event === event && (grantId === undefined || line['grant'] === grantId),
    );

  const readGrantId = ({ refresh_token }: TokenGrant): string => refresh_token.split('.')[1] ?? '';

  test('the clients are spread over both workers', () => {
    const spread = groupByWorker(clients);
    expect(new Set(spread.keys())).toEqual(new Set(server.workers));
  });

  test('R05 a hundred refreshes of one token at once, over both workers: one rotation, the same two tokens in every response', async () => {
    const ids: string[] = [];
    for (let round = 0; round < counts.refreshed; round += 1) {
      const first = await firstClient.grant();
      const replies = await Promise.all(clients.map((client) => client.refresh(first.refresh_token)));
      expect(replies.filter(({ status }) => status !== 200).map(({ text }) => text)).toEqual([]);
      const pairs = new Set(replies.map(({ json }) => [json['access_token'], json['refresh_token']].join(' ')));
      expect(pairs.size).toBe(1);
      const refreshed = replies[0]?.json as unknown as TokenGrant;
      expect(refreshed.refresh_token).toContain(`.${readGrantId(first)}.2.`);
      expect(refreshed.refresh_until).toBe(first.refresh_until);
      ids.push(readGrantId(first));
    }
    const last = await secondClient.refresh((await secondClient.grant()).refresh_token);
    expect(last.status).toBe(200);
    for (const id of ids) {
      // The log lines of two processes are not ordered.
      await until(
        'every response has an audit line',
        () => auditLines('grant_refreshed', id).length + auditLines('refresh_retried', id).length >= 100,
      );
      expect(auditLines('grant_refreshed', id)).toHaveLength(1);
      expect(auditLines('refresh_retried', id)).toHaveLength(99);
    }
    // Both workers took part, so this was a race between processes.
    expect(new Set(ids.flatMap((id) => auditLines('refresh_retried', id)).map((line) => line['worker'])).size).toBe(2);
  });

  test('D03 a confirmed code redeemed at both workers at once yields one grant', async () => {
    const codes = await Promise.all(
      Array.from({ length: counts.redeemed }, async (_, index) => {
        const reply = await (clients[index % clients.length] ?? firstClient).post('/Authorize/Device', {
          client_id: 'report-runner',
          scope: 'files:read',
        });
        expect(reply.status, reply.text).toBe(200);
        return String(reply.json['device_code']);
      }),
    );
    const store = await openEmbeddedStore({
      path: folder.file('data'),
      mapSize: 2 ** 34,
      role: 'worker',
      now: () => Date.now() / 1_000,
      authenticator: testAuthenticator({}, openSealingKeys(readKeyringFile(folder.file('data/keys.json')))),
    });
    for (const code of codes) {
      const id = hash('sha256', code, 'base64url').slice(0, 22);
      const found = await store.devices.read(id);
      if (found === undefined) throw new Error('the request is not in the store');
      const { record } = found;
      const confirmed = {
        ...record,
        state: 'confirmed',
        identity: ALICE,
        decidedAt: record.askedAt,
      } as const;
      expect(await store.devices.replace(id, found.version, confirmed, confirmed.expires + 600)).toBe('replaced');
    }
    await store.close();

    const redeem = (client: WorkerClient, code: string) =>
      client.post('/Authorize/Token', {
        client_id: 'report-runner',
        grant_type: 'urn:ietf:params:oauth:grant-type:device_code',
        device_code: code,
      });
    const winners = new Map<number, number>();
    await runRounds(codes.length, 8, async (index) => {
      const code = codes[index] ?? '';
      const results = await Promise.all(
        [firstClient, secondClient].map(async (client) => ({ client, reply: await redeem(client, code) })),
      );
      const won = results.filter(({ reply }) => reply.status === 200);
      const lost = results.filter(({ reply }) => reply.status !== 200);
      expect(won).toHaveLength(1);
      expect(lost.map(({ reply }) => [reply.status, reply.json['Error']])).toEqual([[400, 'invalid_grant']]);
      for (const { client } of won) winners.set(client.worker, (winners.get(client.worker) ?? 0) + 1);
    });
    expect([...winners.values()].reduce((sum, count) => sum + count, 0)).toBe(codes.length);
  });

  test('R17 after the 200 of a revocation that races with a refresh, neither worker accepts a token of the grant', async () => {
    let raced = 0;
    await runRounds(counts.raced, 4, async (index) => {
      const [revoker, refresher] = index % 2 === 0 ? [firstClient, secondClient] : [secondClient, firstClient];
      const first = await revoker.grant();
      const refreshing = refresher.refresh(first.refresh_token);
      // In every fourth round the refresh completes first; in the others both run concurrently.
      if (index % 4 === 0) await refreshing;
      const revoked = await revoker.revoke(first.access_token);
      expect(revoked.status, revoked.text).toBe(200);
      expect(
        await Promise.all([firstClient, secondClient].map((client) => client.isAccepted(first.access_token))),
      ).toEqual([false, false]);
      const refreshed = await refreshing;
      if (refreshed.status !== 200) {
        expect(refreshed.json).toMatchObject({ Error: 'invalid_grant' });
        return;
      }
      raced += 1;
      const second = refreshed.json as unknown as TokenGrant;
      for (const client of [firstClient, secondClient]) {
        expect(await client.isAccepted(second.access_token)).toBe(false);
        for (const token of [first.refresh_token, second.refresh_token])
          expect((await client.refresh(token)).json).toMatchObject({ Error: 'invalid_grant' });
      }
    });
    expect(raced).toBeGreaterThanOrEqual(counts.raced / 4);
  });

  test('V01 a token revoked at one worker is rejected by the other at the next request', async () => {
    await runRounds(counts.revoked, 4, async (index) => {
      const [revoker, other] = index % 2 === 0 ? [firstClient, secondClient] : [secondClient, firstClient];
      const { access_token: token, refresh_token: refresh } = await other.grant();
      // Both workers have cached that the token is valid.
      expect(await other.isAccepted(token)).toBe(true);
      expect(await revoker.isAccepted(token)).toBe(true);
      expect((await revoker.revoke(token)).status).toBe(200);
      expect(await other.isAccepted(token)).toBe(false);
      expect((await other.refresh(refresh)).json).toMatchObject({ Error: 'invalid_grant' });
      expect(await revoker.isAccepted(token)).toBe(false);
    });
  });
}
