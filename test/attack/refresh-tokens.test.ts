import { gzipSync } from 'node:zlib';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { FORM } from '../support/device-client.ts';
import { forgeRefreshToken, loadKeyring, splitRefreshToken } from '../support/forged-tokens.ts';
import { withIntegration, withoutIntegration, withSettings, withTokens, withUser } from '../support/reconfigure.ts';
import { startGateway, type TestGateway, type TokenGrant } from '../support/test-gateway.ts';
import { createRefreshClient, INVALID_GRANT } from './refresh-client.ts';

/** Rows R01–R12 and R18: retries, reuse of stolen tokens, malformed requests and changed settings. */
let gateway: TestGateway;
beforeAll(async () => {
  // Time advances only through `gateway.clock`, so a slow machine cannot make a token expire.
  vi.useFakeTimers({ toFake: ['Date'] });
  gateway = await startGateway();
});
afterAll(async () => {
  await gateway?.close();
  vi.useRealTimers();
});

const { parseGrant, rotate, requestStatus, reuseEvents, expectFamilyEnded } = createRefreshClient(() => gateway);

describe('retries and stolen tokens', () => {
  test('R01: the predecessor repeated after 5 s gets the same tokens and the same refresh_until', async () => {
    const first = await gateway.grant();
    const second = await rotate(first.refresh_token);
    gateway.clock.advance(5);
    const retried = await rotate(first.refresh_token);
    expect(retried.refresh_token).toBe(second.refresh_token);
    expect(retried.access_token).toBe(second.access_token);
    expect(retried.refresh_until).toBe(first.refresh_until);
    expect(retried.expires).toBe(second.expires);
    expect((await rotate(second.refresh_token)).refresh_token).not.toBe(second.refresh_token);
  });

  test('R02: the predecessor of a predecessor revokes the grant at once', async () => {
    const first = await gateway.grant();
    const second = await rotate(first.refresh_token);
    const third = await rotate(second.refresh_token);
    expect(await gateway.refresh(first.refresh_token)).toMatchObject(INVALID_GRANT);
    await expectFamilyEnded(third, second, first);
    expect(reuseEvents(first)[0]).toMatchObject({ action: 'grant_revoked' });
  });

  test('R02: once the successor was used, the predecessor is treated as stolen even within the window', async () => {
    const first = await gateway.grant();
    const second = await rotate(first.refresh_token);
    await rotate(second.refresh_token);
    const third = await rotate(second.refresh_token);
    expect(await gateway.refresh(first.refresh_token)).toMatchObject(INVALID_GRANT);
    await expectFamilyEnded(third);
  });

  test('R03: the predecessor after the window revokes the grant', async () => {
    const first = await gateway.grant();
    const second = await rotate(first.refresh_token);
    gateway.clock.advance(11);
    expect(await gateway.refresh(first.refresh_token)).toMatchObject(INVALID_GRANT);
    await expectFamilyEnded(second, first);
    expect(reuseEvents(first)).toHaveLength(1);
  });

  test('R04: a retry every second does not extend the window: it closes 10 s after the rotation', async () => {
    const first = await gateway.grant();
    const second = await rotate(first.refresh_token);
    const statuses: number[] = [];
    for (let attempt = 1; attempt <= 100; attempt += 1) {
      gateway.clock.advance(1);
      const reply = await gateway.refresh(first.refresh_token);
      statuses.push(reply.status);
      if (reply.status !== 200) expect(reply).toMatchObject(INVALID_GRANT);
    }
    expect(statuses.findIndex((status) => status !== 200) + 1).toBe(10);
    expect(statuses.lastIndexOf(200) + 1).toBe(9);
    await expectFamilyEnded(second);
  });

  test('R04: with reuse: reject the spent token is rejected and audited, and the grant stays valid', async () => {
    await withSettings(gateway, withTokens({ refresh: { reuse: 'reject' } }), async () => {
      const first = await gateway.grant();
      const second = await rotate(first.refresh_token);
      gateway.clock.advance(11);
      expect(await gateway.refresh(first.refresh_token)).toMatchObject(INVALID_GRANT);
      expect(reuseEvents(first)[0]).toMatchObject({ action: 'refused' });
      expect(await requestStatus(second.access_token)).toBe(200);
      await rotate(second.refresh_token);
    });
  });

  test('R04: with retryWindow 0 there is no retry; of concurrent refreshes one wins, the others are rejected, and the grant stays valid', async () => {
    await withSettings(gateway, withTokens({ refresh: { retryWindow: '0s' } }), async () => {
      const first = await gateway.grant();
      const replies = await Promise.all(Array.from({ length: 20 }, () => gateway.refresh(first.refresh_token)));
      const winners = replies.filter(({ status }) => status === 200);
      expect(winners).toHaveLength(1);
      const second = winners[0]?.json as unknown as TokenGrant;
      expect(reuseEvents(first)).toEqual([]);
      expect(await requestStatus(second.access_token)).toBe(200);
      const third = await rotate(second.refresh_token);
      gateway.clock.advance(2);
      expect(await gateway.refresh(second.refresh_token)).toMatchObject(INVALID_GRANT);
      await expectFamilyEnded(third);
    });
  });

  test('R01: after a restart the window starts again, and the same tokens are returned', async () => {
    const other = await startGateway();
    try {
      const first = await other.grant();
      const second = parseGrant(await other.refresh(first.refresh_token));
      await other.restart(() => other.clock.advance(3_000));
      other.clock.advance(5);
      const retried = parseGrant(await other.refresh(first.refresh_token));
      expect(retried.refresh_token).toBe(second.refresh_token);
      expect(retried.access_token).toBe(second.access_token);
      other.clock.advance(6);
      expect(await other.refresh(first.refresh_token)).toMatchObject(INVALID_GRANT);
      expect(await other.refresh(second.refresh_token)).toMatchObject(INVALID_GRANT);
    } finally {
      await other.close();
    }
  });

  test('R18: the previous access token is valid until its own expiry', async () => {
    const first = await gateway.grant();
    gateway.clock.advance(1_800);
    const second = await rotate(first.refresh_token);
    expect(await requestStatus(first.access_token)).toBe(200);
    gateway.clock.advance(1_801);
    expect(await requestStatus(first.access_token)).toBe(401);
    expect(await requestStatus(second.access_token)).toBe(200);
  });
});

describe('request contents', () => {
  test('R06: a wrong client_id, another letter case, or none: rejected, and the token remains valid', async () => {
    const grant = await gateway.grant();
    for (const client_id of ['other-app', 'nobody', 'Report-runner', 'REPORT-RUNNER'])
      expect(await gateway.refresh(grant.refresh_token, { client_id })).toMatchObject(INVALID_GRANT);
    expect((await gateway.post('/Authorize/Token', { refresh_token: grant.refresh_token })).json).toMatchObject({
      Error: 'invalid_request',
    });
    expect(reuseEvents(grant)).toEqual([]);
    expect(await requestStatus(grant.access_token)).toBe(200);
    await rotate(grant.refresh_token);
  });

  test('R06: a spent token with a wrong client_id neither rotates nor revokes the grant', async () => {
    const first = await gateway.grant();
    const second = await rotate(first.refresh_token);
    const third = await rotate(second.refresh_token);
    for (const grant of [first, second])
      expect(await gateway.refresh(grant.refresh_token, { client_id: 'other-app' })).toMatchObject(INVALID_GRANT);
    expect(reuseEvents(first)).toEqual([]);
    await rotate(third.refresh_token);
  });

  test('R07: a refresh with a form body is invalid_request and does not spend the token', async () => {
    const { refresh_token } = await gateway.grant();
    const reply = await gateway.request({
      path: '/authsvc/Authorize/Token',
      method: 'POST',
      headers: { 'content-type': FORM },
      body: new URLSearchParams({ client_id: 'report-runner', refresh_token }).toString(),
    });
    expect(reply).toMatchObject({ status: 400, json: { Error: 'invalid_request' } });
    await rotate(refresh_token);
    expect(gateway.auditEvents('refresh_retried').at(-1)?.['grant']).not.toBe(splitRefreshToken(refresh_token).grantId);
  });

  test('R08: ambiguous and malformed requests are refused and do not spend the token', async () => {
    const { refresh_token } = await gateway.grant();
    const valid = { client_id: 'report-runner', refresh_token };
    const text = JSON.stringify(valid);
    const post = (body: string | Buffer, headers: Record<string, string> = {}) =>
      gateway.request({
        path: '/authsvc/Authorize/Token',
        method: 'POST',
        headers: { 'content-type': 'application/json', ...headers },
        body,
      });
    for (const reply of [
      await gateway.post('/Authorize/Token', { ...valid, device_code: 'x' }),
      await post(text.replace('{', '{"client_id":"report-runner",')),
      await post(text.replace('{', '{"refresh_token":"x",')),
      await gateway.post('/Authorize/Token', { ...valid, refresh_token: [refresh_token] }),
      await gateway.post('/Authorize/Token', { ...valid, refresh_token: 7 }),
      await post(text.slice(0, -1)),
      await post(Buffer.from(text, 'utf16le'), { 'content-type': 'application/json; charset=utf-16' }),
      await post(gzipSync(text), { 'content-encoding': 'gzip' }),
    ])
      expect(reply).toMatchObject({ status: 400, json: { Error: 'invalid_request' } });
    expect(await post(text + ' '.repeat(1_048_576))).toMatchObject({
      status: 413,
      json: { Error: 'invalid_request' },
    });
    const retriedCount = gateway.auditEvents('refresh_retried').length;
    await rotate(refresh_token);
    expect(gateway.auditEvents('refresh_retried')).toHaveLength(retriedCount);
  });

  test('R09: a refresh one second before refresh_until works and its token expires with the grant; at refresh_until or later it fails', async () => {
    const grants = [await gateway.grant(), await gateway.grant(), await gateway.grant()];
    const [first, second, third] = grants as [TokenGrant, TokenGrant, TokenGrant];
    const until = Math.min(...grants.map(({ refresh_until }) => refresh_until));
    gateway.clock.advance(until - gateway.clock.now() - 1);
    const last = await rotate(first.refresh_token);
    expect(last.expires).toBeLessThanOrEqual(first.refresh_until);
    expect(last.expires_in).toBeLessThanOrEqual(2);
    gateway.clock.advance(second.refresh_until - gateway.clock.now());
    expect(await gateway.refresh(second.refresh_token)).toMatchObject(INVALID_GRANT);
    gateway.clock.advance(third.refresh_until + 1 - gateway.clock.now());
    expect(await gateway.refresh(third.refresh_token)).toMatchObject(INVALID_GRANT);
    expect(await gateway.refresh(last.refresh_token)).toMatchObject(INVALID_GRANT);
    expect(await requestStatus(last.access_token)).toBe(401);
  });

  test('R10: any changed character, a later generation under the old MAC, another grant’s id: rejected without a store read', async () => {
    const [grant, other] = [await gateway.grant(), await gateway.grant()];
    const token = grant.refresh_token;
    const { kid, grantId, generation, mac } = splitRefreshToken(token);
    const forgeries = [
      ...Array.from(token, (char, at) => token.slice(0, at) + (char === 'B' ? 'C' : 'B') + token.slice(at + 1)),
      `ghr_${kid}.${grantId}.${generation + 1}.${mac}`,
      `ghr_${kid}.${grantId}.0${generation}.${mac}`,
      `ghr_${kid}.${grantId}.+${generation}.${mac}`,
      `ghr_${kid}.${splitRefreshToken(other.refresh_token).grantId}.${generation}.${mac}`,
      `ghr_${kid}.${grantId}.${generation}.${splitRefreshToken(other.refresh_token).mac}`,
      `ghr_${kid}.${grantId}.${generation}.`,
      `ghr_unknown0.${grantId}.${generation}.${mac}`,
      `${token}=`,
      ` ${token}`,
      `${token}\n`,
      token.toUpperCase(),
      forgeRefreshToken(loadKeyring(gateway), grantId, '1e0'),
      forgeRefreshToken(loadKeyring(gateway), grantId, '00000000001'),
      forgeRefreshToken(loadKeyring(gateway), grantId, '-1'),
    ];
    const reads = vi.spyOn(gateway.server.store.grants, 'read');
    try {
      for (const forged of forgeries) expect(await gateway.refresh(forged), forged).toMatchObject(INVALID_GRANT);
      expect(reads).not.toHaveBeenCalled();
    } finally {
      reads.mockRestore();
    }
    expect(reuseEvents(grant)).toEqual([]);
    await rotate(token);
    await rotate(other.refresh_token);
  });
});

describe('changed settings', () => {
  test('R11: a reduced scope of the integration: invalid_scope; once restored, the grant works again', async () => {
    const grant = await gateway.grant({ scope: 'reports:write' });
    await withSettings(gateway, withIntegration('report-runner', { scope: 'files:read' }), async () => {
      for (let attempt = 0; attempt < 3; attempt += 1)
        expect((await gateway.refresh(grant.refresh_token)).json).toMatchObject({ Error: 'invalid_scope' });
    });
    await rotate(grant.refresh_token);
  });

  test('R12: a disabled user, a user without access, or a removed integration: rejected, and the grant is kept', async () => {
    const grant = await gateway.grant();
    for (const [change, error] of [
      [withUser('alice', { disabled: true }), 'unauthorized_client'],
      [withUser('alice', { groups: [] }), 'unauthorized_client'],
      [withIntegration('report-runner', { access: [] }), 'unauthorized_client'],
      [withoutIntegration('report-runner'), 'invalid_grant'],
    ] as const)
      await withSettings(gateway, change, async () =>
        expect((await gateway.refresh(grant.refresh_token)).json).toMatchObject({ Error: error }),
      );
    await rotate(grant.refresh_token);
  });
});
