import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Revocation } from '../../../src/ports/store.ts';
import { createDeviceClient } from '../../support/device-client.ts';
import { splitRefreshToken } from '../../support/forged-tokens.ts';
import { freezeClock } from '../../support/frozen-clock.ts';
import { ALICE, type Reply, startGateway, type TestGateway, type TokenGrant } from '../../support/test-gateway.ts';

/** Vulnerabilities of Keycloak, and refresh token rotation bugs of django-oauth-toolkit and Eventra. */
freezeClock();
let gateway: TestGateway;
beforeAll(async () => {
  gateway = await startGateway();
});
afterAll(() => gateway.close());

const INVALID_GRANT = { status: 400, json: { Error: 'invalid_grant' } };
const call = async (token: string): Promise<number> => (await gateway.api('/files/1', token)).status;
const rotate = async (token: string): Promise<TokenGrant> => {
  const reply = await gateway.refresh(token);
  expect([reply.status, reply.json['Error']]).toEqual([200, undefined]);
  return reply.json as unknown as TokenGrant;
};

test('CVE-2023-2585 Keycloak: a device code can be exchanged only by the client that requested it', async () => {
  const steps = createDeviceClient(gateway);
  const codes = await steps.requestCodes('report-runner');
  await steps.confirm(codes);
  for (const other of ['other-app', 'Report-Runner', 'unknown'])
    expect(await steps.exchange(codes.device_code, other)).toMatchObject(INVALID_GRANT);
  expect((await steps.exchange(codes.device_code)).status).toBe(200);
});

test('Keycloak PR 46054: of concurrent refreshes with one token, only one rotates it', async () => {
  const first = await gateway.grant();
  const replies: Reply[] = await Promise.all(Array.from({ length: 20 }, () => gateway.refresh(first.refresh_token)));
  const tokens = new Set(replies.map(({ json }) => String(json['refresh_token'])));
  expect(tokens.size).toBe(1);
  const [second = ''] = tokens;
  expect(splitRefreshToken(second).generation).toBe(2);
  const third = await rotate(second);
  expect(await gateway.refresh(first.refresh_token)).toMatchObject(INVALID_GRANT);
  expect(await gateway.refresh(third.refresh_token)).toMatchObject(INVALID_GRANT);
  expect(await call(third.access_token)).toBe(401);
});

test('CVE-2026-8922 Keycloak: not-before applies at every level, and the strictest one decides', async () => {
  const { revocations } = gateway.server.store;
  const early = 1;
  const levels: readonly ((notBefore: number) => Revocation)[] = [
    (notBefore) => ({
      of: 'client',
      clientId: 'report-runner',
      notBefore,
      keepUntil: gateway.clock.now() + 7_776_000,
    }),
    (notBefore) => ({
      of: 'identity',
      identity: ALICE,
      notBefore,
      keepUntil: gateway.clock.now() + 7_776_000,
    }),
  ];
  for (const [at, strict] of levels.entries()) {
    const grant = await gateway.grant();
    expect(await call(grant.access_token)).toBe(200);
    gateway.clock.advance(2);
    await revocations.announce(strict(gateway.clock.now()));
    expect([at, await call(grant.access_token)]).toEqual([at, 401]);
    // A later and laxer entry, on either level, does not undo it.
    for (const lax of levels) await revocations.announce(lax(early));
    expect([at, await call(grant.access_token)]).toEqual([at, 401]);
    gateway.clock.advance(2);
    expect(await call((await gateway.grant()).access_token)).toBe(200);
  }
});

test('django-oauth-toolkit #1617: the retry window covers the direct predecessor only', async () => {
  const first = await gateway.grant();
  const second = await rotate(first.refresh_token);
  const third = await rotate(second.refresh_token);
  expect(await gateway.refresh(first.refresh_token)).toMatchObject(INVALID_GRANT);
  expect(await gateway.refresh(third.refresh_token)).toMatchObject(INVALID_GRANT);
});

test('django-oauth-toolkit #702: a retry gets the valid successor, not the used token', async () => {
  const first = await gateway.grant();
  const second = await rotate(first.refresh_token);
  const retried = await rotate(first.refresh_token);
  expect(retried.refresh_token).toBe(second.refresh_token);
  expect(retried.refresh_token).not.toBe(first.refresh_token);
  await rotate(retried.refresh_token);
});

test('Eventra #17845: retries do not extend the retry window', async () => {
  const first = await gateway.grant();
  await rotate(first.refresh_token);
  for (let seconds = 3; seconds <= 9; seconds += 3) {
    gateway.clock.advance(3);
    await rotate(first.refresh_token);
  }
  gateway.clock.advance(2);
  expect(await gateway.refresh(first.refresh_token)).toMatchObject(INVALID_GRANT);
});
