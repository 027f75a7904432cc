import { hash } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { openEmbeddedStore } from '../../../src/stores/embedded/store.ts';
import { readKeyringFile } from '../../../src/tokens/keyring-file.ts';
import { openSealingKeys } from '../../../src/tokens/sealing-keys.ts';
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

/** Runs the rounds, a few at a time. */
async function rounds(count: number, atOnce: number, round: (index: number) => Promise<void>): Promise<void> {
  let next = 0;
  const run = async (): Promise<void> => {
    while (next < count) await round(next++);
  };
  await Promise.all(Array.from({ length: atOnce }, run));
}

export function grantsOfTwoWorkers(counts: Counts): void {
  let folder: ServeFolder;
  let server: ServeProcess;
  let clients: readonly WorkerClient[];
  /** One client at each of the two workers. */
  let here: WorkerClient;
  let there: WorkerClient;

  beforeAll(async () => {
    folder = await createServeFolder((settings) => ({
      ...settings,
      listen: { ...settings.listen, workers: 2 },
      log: { level: 'info' },
    }));
    server = await startServe(folder);
    clients = await connectMany(folder, server, 100, folder.alice);
    [here, there] = [...groupByWorker(clients).values()].map(([first]) => first) as [
      WorkerClient,
      WorkerClient,
    ];
  });
  afterAll(async () => {
    for (const client of clients ?? []) client.close();
    await folder?.remove();
  });

  const audits = (event: string, grantId?: string) =>
    server.log.filter(
      (line) =>
        line.audit === true && line.event === event && (grantId === undefined || line['grant'] === grantId),
    );

  const grantIdOf = ({ refresh_token }: TokenGrant): string => refresh_token.split('.')[1] ?? '';

  test('the clients are spread over both workers', () => {
    const spread = groupByWorker(clients);
    expect(new Set(spread.keys())).toEqual(new Set(server.workers));
  });

  test('R05 a hundred refreshes of one token at once, over both workers: one rotation, the same two tokens in every response', async () => {
    const ids: string[] = [];
    for (let round = 0; round < counts.refreshed; round += 1) {
      const first = await here.grant();
      const replies = await Promise.all(clients.map((client) => client.refresh(first.refresh_token)));
      expect(replies.filter(({ status }) => status !== 200).map(({ text }) => text)).toEqual([]);
      const pairs = new Set(
        replies.map(({ json }) => [json['access_token'], json['refresh_token']].join(' ')),
      );
      expect(pairs.size).toBe(1);
      const refreshed = replies[0]?.json as unknown as TokenGrant;
      expect(refreshed.refresh_token).toContain(`.${grantIdOf(first)}.2.`);
      expect(refreshed.refresh_until).toBe(first.refresh_until);
      ids.push(grantIdOf(first));
    }
    const last = await there.refresh((await there.grant()).refresh_token);
    expect(last.status).toBe(200);
    for (const id of ids) {
      // The lines of two processes come in no particular order.
      await until(
        'every response has its line',
        () => audits('grant_refreshed', id).length + audits('refresh_retried', id).length >= 100,
      );
      expect(audits('grant_refreshed', id)).toHaveLength(1);
      expect(audits('refresh_retried', id)).toHaveLength(99);
    }
    // Both workers took part in it, so it was a race between processes and not a queue in one.
    expect(
      new Set(ids.flatMap((id) => audits('refresh_retried', id)).map((line) => line['worker'])).size,
    ).toBe(2);
  });

  test('D03 confirmed codes, each redeemed twice at once over both workers: one grant each', async () => {
    const request = await Promise.all(
      Array.from({ length: counts.redeemed }, async (_, index) => {
        const reply = await (clients[index % clients.length] ?? here).post('/Authorize/Device', {
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
    for (const code of request) {
      const id = hash('sha256', code, 'base64url').slice(0, 22);
      const found = await store.devices.read(id);
      if (found === undefined) throw new Error('the request is not in the store');
      const confirmed = { ...found.record, state: 'confirmed', identity: ALICE } as const;
      expect(await store.devices.replace(id, found.version, confirmed, confirmed.expires + 600)).toBe(
        'replaced',
      );
    }
    await store.close();

    const redeem = (client: WorkerClient, code: string) =>
      client.post('/Authorize/Token', {
        client_id: 'report-runner',
        grant_type: 'urn:ietf:params:oauth:grant-type:device_code',
        device_code: code,
      });
    const winners = new Map<number, number>();
    await rounds(request.length, 8, async (index) => {
      const code = request[index] ?? '';
      const pair = await Promise.all(
        [here, there].map(async (client) => ({ client, reply: await redeem(client, code) })),
      );
      const won = pair.filter(({ reply }) => reply.status === 200);
      const lost = pair.filter(({ reply }) => reply.status !== 200);
      expect(won).toHaveLength(1);
      expect(lost.map(({ reply }) => [reply.status, reply.json['Error']])).toEqual([[400, 'invalid_grant']]);
      for (const { client } of won) winners.set(client.worker, (winners.get(client.worker) ?? 0) + 1);
    });
    expect([...winners.values()].reduce((sum, count) => sum + count, 0)).toBe(request.length);
  });

  test('R17 a refresh beside a revocation: after the 200 no token of the grant is accepted by either worker', async () => {
    let raced = 0;
    await rounds(counts.raced, 4, async (index) => {
      const [revoker, refresher] = index % 2 === 0 ? [here, there] : [there, here];
      const first = await revoker.grant();
      const refreshing = refresher.refresh(first.refresh_token);
      // In every fourth round the refresh is first for certain; in the others both run at once.
      if (index % 4 === 0) await refreshing;
      const revoked = await revoker.revoke(first.access_token);
      expect(revoked.status, revoked.text).toBe(200);
      expect(await Promise.all([here, there].map((client) => client.isAccepted(first.access_token)))).toEqual(
        [false, false],
      );
      const refreshed = await refreshing;
      if (refreshed.status !== 200) {
        expect(refreshed.json).toMatchObject({ Error: 'invalid_grant' });
        return;
      }
      raced += 1;
      const second = refreshed.json as unknown as TokenGrant;
      for (const client of [here, there]) {
        expect(await client.isAccepted(second.access_token)).toBe(false);
        for (const token of [first.refresh_token, second.refresh_token])
          expect((await client.refresh(token)).json).toMatchObject({ Error: 'invalid_grant' });
      }
    });
    expect(raced).toBeGreaterThanOrEqual(counts.raced / 4);
  });

  test('V01 a token revoked at one worker is refused by the other at the next request', async () => {
    await rounds(counts.revoked, 4, async (index) => {
      const [revoker, other] = index % 2 === 0 ? [here, there] : [there, here];
      const { access_token: token, refresh_token: refresh } = await other.grant();
      // Both have seen it, so both remember that it is authentic.
      expect(await other.isAccepted(token)).toBe(true);
      expect(await revoker.isAccepted(token)).toBe(true);
      expect((await revoker.revoke(token)).status).toBe(200);
      expect(await other.isAccepted(token)).toBe(false);
      expect((await other.refresh(refresh)).json).toMatchObject({ Error: 'invalid_grant' });
      expect(await revoker.isAccepted(token)).toBe(false);
    });
  });
}
