import { expect, onTestFinished, test } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { createKeyringFile, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import type { Reply } from '../support/https-client.ts';
import { startRedis } from '../support/redis-server.ts';
import {
  type Client,
  connect,
  createServeFolder,
  type ServeFolder,
  type ServeProcess,
  startServe,
  until,
} from '../support/serve-process.ts';

/** Processes and stores that fail or stall; only time in which gatehouse served counts towards the retry window. */
const INVALID_GRANT = { status: 400, json: { Error: 'invalid_grant' } };

type Refresh = NonNullable<NonNullable<SettingsInput['tokens']>['refresh']>;
const withRefresh =
  (refresh: Refresh) =>
  (settings: SettingsInput): SettingsInput => ({
    ...settings,
    tokens: { ...settings.tokens, refresh },
  });

async function createFolderWith(refresh: Refresh, store?: SettingsInput['store']): Promise<ServeFolder> {
  const folder = await createServeFolder((settings) => ({
    ...withRefresh(refresh)(settings),
    ...(store && { store, keys: { file: 'keys.json' } }),
  }));
  onTestFinished(() => folder.remove());
  if (store !== undefined) writeKeyringFile(folder.file('keys.json'), createKeyringFile('EdDSA'), { replace: false });
  return folder;
}

function createClient(folder: ServeFolder, server: ServeProcess): Client {
  const client = connect(folder, server.port, folder.alice);
  onTestFinished(() => client.close());
  return client;
}

/** On a busy machine Redis may count as unreachable: repeats the request while the error is temporary. */
const retryWhileTemporary = (send: () => Promise<Reply>): Promise<Reply> =>
  until('the failure is not temporary', async () => {
    const reply = await send();
    return reply.json['Error'] !== 'invalid_request' && reply;
  });

/** Creates a used refresh token whose retry window has closed; needs `reuse: reject`. */
function spendToken(client: Client): Promise<{ readonly spent: string; readonly successor: string }> {
  return until('a token is spent', async () => {
    const { refresh_token: spent } = await client.grant();
    const { status, json } = await client.refresh(spent);
    if (status !== 200) return undefined;
    await until(
      'its window has closed',
      async () => (await retryWhileTemporary(() => client.refresh(spent))).status !== 200,
    );
    return { spent, successor: String(json['refresh_token']) };
  });
}

test('R03 R13 a refresh token that was spent before a kill -9 stays spent after the restart, and using it revokes the grant', async () => {
  const folder = await createFolderWith({ retryWindow: '1s', reuse: 'reject' });
  const first = await startServe(folder);
  const { spent, successor } = await spendToken(createClient(folder, first));
  await first.kill();
  folder.configure(withRefresh({ retryWindow: '1s', reuse: 'revoke' }));
  const second = await startServe(folder);
  const client = createClient(folder, second);
  expect(await client.refresh(spent)).toMatchObject(INVALID_GRANT);
  expect(await client.refresh(successor)).toMatchObject(INVALID_GRANT);
  await until('the reuse is recorded', () => second.log.some(({ event }) => event === 'refresh_reuse'));
});

/** Sets the clock of the process a minute ahead, as if the restart had taken that long. */
const A_MINUTE_LATER = 'data:text/javascript,const{now}=Date;Date.now=()=>now.call(Date)+60_000;//a minute later';

test('R13 a refresh right before a kill -9 gets the same tokens after an outage longer than the retry window', async () => {
  const folder = await createFolderWith({ retryWindow: '50s' });
  const first = await startServe(folder);
  const client = createClient(folder, first);
  const { refresh_token: token } = await client.grant();
  const { json: lost } = await client.refresh(token);
  await first.kill();
  const second = await startServe(folder, { nodeOptions: ['--import', A_MINUTE_LATER] });
  const { status, json } = await createClient(folder, second).refresh(token);
  expect(status).toBe(200);
  expect([json['refresh_token'], json['access_token']]).toEqual([lost['refresh_token'], lost['access_token']]);
});

test('R03 on Redis a spent refresh token stays spent when one of two replicas restarts, and when Redis stalls', async () => {
  const redis = await startRedis();
  onTestFinished(() => redis.stop());
  const folder = await createFolderWith({ retryWindow: '1s', reuse: 'reject' }, { type: 'redis', url: redis.url });
  const [first, other] = await Promise.all([startServe(folder), startServe(folder)]);
  const client = createClient(folder, other);
  const { spent, successor } = await spendToken(client);

  await first.kill();
  const restarted = createClient(folder, await startServe(folder));
  expect(await retryWhileTemporary(() => restarted.refresh(spent))).toMatchObject(INVALID_GRANT);

  redis.pause();
  onTestFinished(() => redis.resume());
  const failed = await client.refresh(successor);
  expect(failed).toMatchObject({ status: 400, json: { Error: 'invalid_request' } });
  expect(Number(failed.headers['retry-after'])).toBeGreaterThan(0);
  redis.resume();
  expect(await retryWhileTemporary(() => client.refresh(spent))).toMatchObject(INVALID_GRANT);
  expect((await retryWhileTemporary(() => restarted.refresh(successor))).status).toBe(200);
});
