import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createKeyringFile, writeKeyringFile } from '../../../src/tokens/keyring-file.ts';
import { signForeign } from '../../support/foreign-issuer.ts';
import {
  type ForeignIssuerServer,
  startForeignIssuer,
  withTrustedIssuer,
} from '../../support/foreign-issuer-server.ts';
import { type RedisServer, startRedis } from '../../support/redis-server.ts';
import { REDIS_TIMEOUT_MS, startGateway, type TestGateway } from '../../support/test-gateway.ts';
import { until } from '../../support/until.ts';

let folder: string;
let redis: RedisServer;
let issuer: ForeignIssuerServer;
let gateways: readonly TestGateway[] = [];
beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'gatehouse-foreign-'));
  writeKeyringFile(join(folder, 'keys.json'), createKeyringFile('EdDSA'), { replace: false });
  [redis, issuer] = await Promise.all([startRedis(), startForeignIssuer()]);
  const open = (): Promise<TestGateway> =>
    startGateway(
      (settings) => ({
        ...withTrustedIssuer(issuer, { logout: { audience: 'gatehouse-client' } })(settings),
        store: { type: 'redis', url: `redis://127.0.0.1:${redis.port}` },
        keys: { file: join(folder, 'keys.json') },
      }),
      undefined,
      REDIS_TIMEOUT_MS,
    );
  gateways = await Promise.all([open(), open()]);
  // Tokens that are older than the store are refused.
  await until('tokens are accepted', async () =>
    (await callAll(await issuer.sign())).every((status) => status === 200),
  );
});
afterAll(async () => {
  await Promise.all(gateways.map((gateway) => gateway.close()));
  issuer?.close();
  await redis?.stop();
  rmSync(folder, { recursive: true, force: true });
});

const callAll = async (token: string): Promise<readonly number[]> =>
  Promise.all(gateways.map(async (gateway) => (await gateway.api('/files/1', token)).status));
const revoke = async (body: unknown): Promise<readonly [number, unknown]> => {
  const [gateway] = gateways;
  if (gateway === undefined) throw new Error('no gateway');
  const adminToken = readFileSync(join(gateway.folder, 'data/admin-token'), 'utf8').trim();
  const response = await fetch(`http://127.0.0.1:${gateway.adminPort}/admin/v1/revoke`, {
    method: 'POST',
    headers: { authorization: `Bearer ${adminToken}`, 'content-type': 'application/json' },
    body: JSON.stringify(body),
  });
  return [response.status, await response.json()];
};

test('a token revoked by its jti is refused by every replica, also when it was signed again', async () => {
  const claims = { sub: 'dave', jti: 'one' };
  const token = await issuer.sign(claims);
  const other = await issuer.sign({ sub: 'dave', jti: 'two' });
  expect(await callAll(token)).toEqual([200, 200]);
  expect(await revoke({ issuer: 'corp', jti: 'one' })).toEqual([200, { ended: { issuer: 'corp', jti: 'one' } }]);
  expect(await callAll(token)).toEqual([401, 401]);
  // ECDSA signatures are random: the same claims, other bytes. Later times do not help either.
  const later = Math.floor(Date.now() / 1_000) + 3;
  for (const again of [await issuer.sign(claims), await issuer.sign({ ...claims, iat: later })]) {
    expect(again).not.toBe(token);
    expect(await callAll(again)).toEqual([401, 401]);
  }
  expect(await callAll(other), 'another token of the subject').toEqual([200, 200]);
  expect(gateways[0]?.auditEvents('admin_action').at(-1)).toMatchObject({
    act: 'revoke_token',
    issuer: 'corp',
    jti: 'one',
  });
});

test('a subject is revoked by every replica, and another subject is not', async () => {
  const token = await issuer.sign({ sub: 'erin' });
  const other = await issuer.sign({ sub: 'erin2' });
  expect(await callAll(token)).toEqual([200, 200]);
  expect(await revoke({ issuer: 'corp', subject: 'erin' })).toEqual([
    200,
    { ended: { identity: 'corp:erin' }, live_grants: 0 },
  ]);
  expect(await callAll(token)).toEqual([401, 401]);
  expect(await callAll(other)).toEqual([200, 200]);
});

test.each([
  [{ issuer: 'unknown', jti: 'one' }, 404],
  [{ issuer: 'corp', jti: 'one', subject: 'dave' }, 400],
  [{ issuer: 'corp', jti: '' }, 400],
  [{ issuer: 'corp', jti: 7 }, 400],
  [{ issuer: 'corp', subject: null }, 400],
  [{ issuer: 'corp', client: 'cli' }, 400],
  [{ jti: 'one' }, 400],
  [{ issuer: 'corp', jti: ['one'] }, 400],
])('a revocation of %j is refused', async (body, status) => {
  const token = await issuer.sign({ sub: 'frank' });
  expect((await revoke(body))[0]).toBe(status);
  expect(await callAll(token)).toEqual([200, 200]);
});

test('a logout token revokes the subject and the session on every replica', async () => {
  const [key] = issuer.published;
  const [first] = gateways;
  if (key === undefined || first === undefined) throw new Error('not started');
  const logOut = async (claims: Readonly<Record<string, unknown>>): Promise<number> => {
    const now = Math.floor(Date.now() / 1_000);
    const logoutToken = await signForeign(
      key,
      {
        iss: issuer.url,
        aud: 'gatehouse-client',
        iat: now,
        exp: now + 60,
        jti: crypto.randomUUID(),
        events: { 'http://schemas.openid.net/event/backchannel-logout': {} },
        ...claims,
      },
      { typ: 'logout+jwt' },
    );
    const { status } = await first.request({
      method: 'POST',
      path: '/authsvc/oauth2/backchannel_logout',
      headers: { 'content-type': 'application/x-www-form-urlencoded' },
      body: new URLSearchParams({ logout_token: logoutToken }).toString(),
    });
    return status;
  };
  const ofSession = await issuer.sign({ sub: 'grace', sid: 's1' });
  const ofOther = await issuer.sign({ sub: 'grace', sid: 's2' });
  expect(await callAll(ofSession)).toEqual([200, 200]);
  expect(await logOut({ sid: 's1' })).toBe(200);
  expect(await callAll(ofSession)).toEqual([401, 401]);
  expect(await callAll(ofOther)).toEqual([200, 200]);
  expect(await logOut({ sub: 'grace' })).toBe(200);
  expect(await callAll(ofOther)).toEqual([401, 401]);
});
