import { execFileSync } from 'node:child_process';
import { rmSync, statfsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Redis } from 'ioredis';
import { expect, onTestFinished, test } from 'vitest';
import { createKeyringFile, writeKeyringFile } from '../../src/tokens/keyring-file.ts';
import type { Reply } from '../support/https-client.ts';
import { startRedis } from '../support/redis-server.ts';
import { connect, createServeFolder, readiness, startServe, until } from '../support/serve-process.ts';
import { stallFlush } from '../support/stalled-flush.ts';
import { tempFolder } from '../support/temp-folder.ts';
import { startGateway } from '../support/test-gateway.ts';

/** Responses while the store cannot write: a full disk, a disk that does not flush, a paused Redis. */
const isTemporary = ({ status, headers, json }: Reply): boolean =>
  status === 400 && json['Error'] === 'invalid_request' && Number(headers['retry-after']) > 0;
const CERTIFICATE = { client_id: 'report-runner', scope: 'files:read' };

test('S16 on a full disk new grants are refused temporarily; tokens can be verified, refreshed and revoked; free space restores service', async (context) => {
  const disk = tempFolder('disk');
  onTestFinished(() => disk.remove());
  try {
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=4m,mode=0700', 'tmpfs', disk.path], { stdio: 'pipe' });
  } catch {
    return context.skip('this user may not mount a tmpfs');
  }
  onTestFinished(() => void execFileSync('umount', ['-l', disk.path]));
  const gateway = await startGateway((settings) => ({
    ...settings,
    store: { path: join(disk.path, 'store') },
  }));
  onTestFinished(() => gateway.close());
  const [used, ended] = [await gateway.grant(), await gateway.grant()];
  const { bavail, bsize } = statfsSync(disk.path);
  const ballast = join(disk.path, 'ballast');
  writeFileSync(ballast, Buffer.alloc(bavail * bsize - 4_096));

  const requestGrant = (): Promise<Reply> =>
    gateway.post('/Authorize/Certificate', CERTIFICATE, { as: gateway.users.alice });
  const refused = await until('there is no space for a grant', async () => {
    const replies = await Promise.all(Array.from({ length: 20 }, requestGrant));
    return replies.find(({ status }) => status !== 200);
  });
  expect(isTemporary(refused)).toBe(true);
  const isReady = (): Promise<boolean> => readiness(gateway).then((status) => status === 200);
  // There may be space for one grant where there is none for many.
  await until('the gateway is not ready', async () => (await requestGrant()).status !== 200 && !(await isReady()));
  expect((await gateway.api('/files/a', used.access_token)).status).toBe(200);
  expect((await gateway.refresh(used.refresh_token)).status).toBe(200);
  expect((await gateway.api('/authsvc/Revoke/Token', ended.access_token)).status).toBe(200);
  expect((await gateway.api('/files/a', ended.access_token)).status).toBe(401);

  rmSync(ballast);
  await until('there is space', async () => (await requestGrant()).status === 200);
  await until('the gateway is ready', isReady);
});

test('S16 while the disk does not flush, tokens are verified and revocations apply at once; pending requests get responses when it flushes', async (context) => {
  const folder = await createServeFolder();
  onTestFinished(() => folder.remove());
  const server = await startServe(folder);
  const createClient = () => {
    const client = connect(folder, server.port, folder.alice);
    onTestFinished(() => client.close());
    return client;
  };
  const [api, refreshing, revoking] = [createClient(), createClient(), createClient()];
  const [used, ended] = [await api.grant(), await api.grant()];
  await Promise.all([refreshing, revoking].map((client) => client.getWithToken('/whoami', used.access_token)));
  const stall = await stallFlush(server.pid);
  if (stall === undefined) return context.skip('this user may not trace processes');
  onTestFinished(() => stall.resume());

  const refresh = refreshing.refresh(used.refresh_token);
  const revoked = revoking.getWithToken('/authsvc/Revoke/Token', ended.access_token);
  await until(
    'the revoked token is denied',
    async () => (await api.getWithToken('/whoami', ended.access_token)).status === 401,
  );
  expect((await api.getWithToken('/whoami', used.access_token)).status).toBe(200);
  expect((await api.getWithToken('/authsvc/Authorize/Verify', used.access_token)).status).toBe(200);
  expect(await readiness(server)).toBe(503);

  await stall.resume();
  const first = await refresh;
  // On a busy machine more than ten seconds may have passed.
  expect(first.status === 200 || isTemporary(first)).toBe(true);
  expect([200, 503]).toContain((await revoked).status);
  const retried = await until('the refresh succeeds', async () => {
    const reply = await refreshing.refresh(used.refresh_token);
    return !isTemporary(reply) && reply;
  });
  expect(retried.status).toBe(200);
  if (first.status === 200) expect(retried.json['refresh_token']).toBe(first.json['refresh_token']);
  await until('the gateway is ready', async () => (await readiness(server)) === 200);
});

test('S02 S03 V05 while Redis does not write, requests fail temporarily, no client is blamed, and the gateway is not ready', async () => {
  const redis = await startRedis();
  onTestFinished(() => redis.stop());
  const admin = new Redis(redis.port, '127.0.0.1');
  onTestFinished(() => admin.disconnect());
  const openGateway = async (keys: string) => {
    const gateway = await startGateway(
      (settings) => ({ ...settings, store: { type: 'redis', url: redis.url }, keys: { file: keys } }),
      undefined,
      1_000,
    );
    onTestFinished(() => gateway.close());
    return gateway;
  };
  const folder = tempFolder('keys');
  onTestFinished(() => folder.remove());
  const keys = folder.file('keys.json');
  writeKeyringFile(keys, createKeyringFile('EdDSA'), { replace: false });
  const gateway = await openGateway(keys);
  // On a busy machine Redis may not respond in time.
  const createGrant = () => until('a grant is issued', () => gateway.grant().catch(() => undefined));
  const [used, ended] = [await createGrant(), await createGrant()];

  // As in a failover: reads succeed, writes wait.
  await admin.call('CLIENT', 'PAUSE', '600000', 'WRITE');
  const [refresh, grant, revoke] = await Promise.all([
    gateway.refresh(used.refresh_token),
    gateway.post('/Authorize/Certificate', CERTIFICATE, { as: gateway.users.alice }),
    gateway.api('/authsvc/Revoke/Token', ended.access_token),
  ]);
  expect([isTemporary(refresh), isTemporary(grant)]).toEqual([true, true]);
  expect(revoke.status).toBe(503);
  expect(Number(revoke.headers['retry-after'])).toBeGreaterThan(0);
  expect(await readiness(gateway)).toBe(503);
  expect((await gateway.api('/files/a', used.access_token)).status).toBe(200);
  expect((await gateway.api('/files/a', ended.access_token)).status).toBe(401);

  await admin.call('CLIENT', 'UNPAUSE');
  await until('the refresh succeeds', async () => (await gateway.refresh(used.refresh_token)).status === 200);
  await until('the gateway is ready', async () => (await readiness(gateway)) === 200);
  // The revocation that failed is announced later.
  const other = await openGateway(keys);
  await until(
    'the other gateway knows the revocation',
    async () => (await other.api('/files/a', ended.access_token)).status === 401,
  );
});
