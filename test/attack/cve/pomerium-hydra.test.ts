import { afterAll, beforeAll, expect, test } from 'vitest';
import { createDeviceClient } from '../../support/device-client.ts';
import { withFailure } from '../../support/fault-injection.ts';
import { splitRefreshToken } from '../../support/forged-tokens.ts';
import { freezeClock } from '../../support/frozen-clock.ts';
import { type Reply, startGateway, type TestGateway, type TokenGrant } from '../../support/test-gateway.ts';

/** Vulnerabilities of Pomerium, and of Ory Hydra and its library fosite. */
freezeClock();
let gateway: TestGateway;
beforeAll(async () => {
  gateway = await startGateway();
});
afterAll(() => gateway.close());

const call = async (token: string): Promise<number> => (await gateway.api('/files/1', token)).status;
const revoke = (token: string): Promise<Reply> =>
  gateway.request({ path: '/authsvc/Revoke/Token', headers: { authorization: `Bearer ${token}` } });
const expectGrant = (reply: Reply): TokenGrant => {
  expect([reply.status, reply.json['Error']]).toEqual([200, undefined]);
  return reply.json as unknown as TokenGrant;
};

test('CVE-2024-47616 Pomerium: a token of one kind is refused in place of another', async () => {
  const grant = await gateway.grant();
  const codes = await createDeviceClient(gateway).requestCodes();
  for (const wrong of [grant.refresh_token, codes.device_code, codes.user_code]) {
    expect(await call(wrong)).toBe(401);
    expect(
      (
        await gateway.request({
          path: '/authsvc/Authorize/Verify',
          headers: { authorization: `Bearer ${wrong}` },
        })
      ).status,
    ).toBe(401);
    expect((await revoke(wrong)).status).toBe(401);
  }
  for (const wrong of [grant.access_token, codes.device_code])
    expect(await gateway.refresh(wrong)).toMatchObject({ status: 400, json: { Error: 'invalid_grant' } });
  expect(await createDeviceClient(gateway).exchange(grant.refresh_token)).toMatchObject({
    status: 400,
    json: { Error: 'invalid_grant' },
  });
  expect(await call(grant.access_token)).toBe(200);
});

test('CVE-2024-39315 Pomerium: no page or response about a token contains the token', async () => {
  const grant = await gateway.grant();
  const codes = await createDeviceClient(gateway).requestCodes();
  const last = await createDeviceClient(gateway).decideInBrowser(codes);
  const verify = await gateway.request({
    path: '/authsvc/Authorize/Verify',
    headers: { authorization: `Bearer ${grant.access_token}` },
  });
  const refused = await gateway.api('/files/1', `${grant.access_token}x`);
  const probes = await fetch(`http://127.0.0.1:${gateway.adminPort}/readyz`);
  const page = await gateway.request({ path: '/authsvc/device' });
  const output = [
    last.text,
    verify.text,
    refused.text,
    JSON.stringify(refused.headers),
    await probes.text(),
    page.text,
  ].join();
  for (const secret of [grant.access_token, grant.refresh_token, codes.device_code])
    expect(output).not.toContain(secret.slice(8, 40));
});

test('CVE-2021-29651 Pomerium: no parameter redirects a user, or a token, to another site', async () => {
  const codes = await createDeviceClient(gateway).requestCodes();
  const targets = ['https://evil.test/', '//evil.test', '/\\evil.test', 'javascript:alert(1)'];
  const names = ['redirect_uri', 'pomerium_redirect_uri', 'next', 'return_to', 'rd', 'url'];
  for (const target of targets) {
    const query = new URLSearchParams([
      ...names.map((name): [string, string] => [name, target]),
      ['user_code', codes.user_code],
    ]);
    for (const path of [
      '/authsvc/device',
      '/authsvc/device/sign-in',
      '/authsvc/device/approve',
      '/authsvc/Authorize/Verify',
    ]) {
      const reply = await gateway.request({ path: `${path}?${query.toString()}` });
      expect([path, reply.headers.location ?? '/authsvc/']).toEqual([path, expect.stringMatching(/^\/authsvc\//)]);
      expect(reply.text).not.toMatch(/evil\.test|javascript:/);
    }
  }
});

test('CVE-2020-15223 fosite: a revocation that was not stored is 503, never 200', async () => {
  const { store } = gateway.server;
  const grant = await gateway.grant();
  const reply = await withFailure(store.revocations, 'announce', 'not executed', () => revoke(grant.access_token));
  expect(reply.status).toBe(503);
  expect(reply.headers['retry-after']).toMatch(/^[1-9]\d*$/);
  expect((await revoke(grant.access_token)).status).toBe(200);
  expect(await call(grant.access_token)).toBe(401);
});

test('Hydra #3604: thirty concurrent refreshes of one token all get the same response', async () => {
  const grant = await gateway.grant();
  const replies = await Promise.all(Array.from({ length: 30 }, () => gateway.refresh(grant.refresh_token)));
  expect(new Set(replies.map(({ status }) => status))).toEqual(new Set([200]));
  expect(new Set(replies.map(({ json }) => json['refresh_token'])).size).toBe(1);
  expect(new Set(replies.map(({ json }) => json['access_token'])).size).toBe(1);
});

test('Hydra #1928: an unreachable store is not reported as a client error, and the grant stays valid', async () => {
  const grant = await gateway.grant();
  const { grants } = gateway.server.store;
  for (const operation of ['read', 'replace'] as const) {
    const reply = await withFailure(grants, operation, 'not executed', () => gateway.refresh(grant.refresh_token));
    expect(reply).toMatchObject({ status: 400, json: { Error: 'invalid_request' } });
    expect(reply.headers['retry-after']).toMatch(/^[1-9]\d*$/);
  }
  expectGrant(await gateway.refresh(grant.refresh_token));
});

test('Hydra #1831: a client that lost the response gets it again, and continues', async () => {
  const grant = await gateway.grant();
  const lost = expectGrant(await gateway.refresh(grant.refresh_token));
  gateway.clock.advance(5);
  const retried = expectGrant(await gateway.refresh(grant.refresh_token));
  expect([retried.refresh_token, retried.access_token]).toEqual([lost.refresh_token, lost.access_token]);
  expect(splitRefreshToken(expectGrant(await gateway.refresh(retried.refresh_token)).refresh_token).generation).toBe(3);
});
