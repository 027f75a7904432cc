import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createLocalRevocations } from '../../src/grants/revoke.ts';
import { storeUnreachable, withFailure } from '../support/fault-injection.ts';
import { decodeJwt, loadKeyring, signJwtWith, splitRefreshToken } from '../support/forged-tokens.ts';
import { createMemoryStore } from '../support/memory-store.ts';
import {
  type Reply,
  startGateway,
  type TestGateway,
  type TestRequest,
  type TokenGrant,
} from '../support/test-gateway.ts';

/** Rows V01–V05: GET Revoke/Token. */
let gateway: TestGateway;
beforeAll(async () => {
  gateway = await startGateway();
});
afterAll(() => gateway.close());

const revoke = (token: string, more: Partial<TestRequest> = {}): Promise<Reply> =>
  gateway.request({ path: '/authsvc/Revoke/Token', headers: { authorization: `Bearer ${token}` }, ...more });
const call = async ({ access_token }: TokenGrant): Promise<number> =>
  (await gateway.api('/files/1', access_token)).status;
const bearer = (grantId: string) => ({ grantId, generation: 1, clientId: 'c', identity: 'i', issuedAt: 5 });

test('V01: after the 200 no token of the grant works, from the next request on', async () => {
  for (let attempt = 0; attempt < 30; attempt += 1) {
    const first = await gateway.grant();
    const second = (await gateway.refresh(first.refresh_token)).json as unknown as TokenGrant;
    expect([await call(first), await call(second)]).toEqual([200, 200]);
    expect((await revoke(attempt % 2 === 0 ? first.access_token : second.access_token)).status).toBe(200);
    expect([await call(first), await call(second)]).toEqual([401, 401]);
    expect((await gateway.refresh(second.refresh_token)).json).toMatchObject({ Error: 'invalid_grant' });
  }
});

test('V01: the audit log records a revocation once', async () => {
  const grant = await gateway.grant();
  const { grantId } = splitRefreshToken(grant.refresh_token);
  await revoke(grant.access_token);
  await revoke(grant.access_token);
  expect(gateway.auditEvents('grant_revoked').filter((line) => line['grant'] === grantId)).toHaveLength(1);
});

test('V01: a revocation survives a restart', async () => {
  const other = await startGateway();
  try {
    const grant = await other.grant();
    const headers = { authorization: `Bearer ${grant.access_token}` };
    expect((await other.request({ path: '/authsvc/Revoke/Token', headers })).status).toBe(200);
    await other.restart();
    expect((await other.api('/files/1', grant.access_token)).status).toBe(401);
    expect((await other.refresh(grant.refresh_token)).json).toMatchObject({ Error: 'invalid_grant' });
  } finally {
    await other.close();
  }
});

test('V02: a token in the query string is 400, revokes nothing, and is redacted wherever it was sent', async () => {
  const grant = await gateway.grant();
  const path = `?access_token=${grant.access_token}`;
  for (const target of ['/authsvc/Revoke/Token', '/files/1', '/health', '/authsvc/Authorize/Verify'])
    expect((await gateway.request({ path: target + path })).status, target).toBe(400);
  // A second question mark is part of the query and does not hide the token.
  for (const target of ['/authsvc/Revoke/Token', '/authsvc/Authorize/Verify'])
    expect((await gateway.request({ path: `${target}?a=?&access_token=${grant.access_token}` })).status, target).toBe(
      400,
    );
  expect(await call(grant)).toBe(200);
  expect(JSON.stringify(gateway.log)).not.toContain(decodeJwt(grant.access_token).parts[2]);
});

test('V03: authentic but expired, or already revoked: 200', async () => {
  const [expired, revokedTwice] = [await gateway.grant(), await gateway.grant()];
  expect((await revoke(revokedTwice.access_token)).status).toBe(200);
  gateway.clock.advance(3_601);
  expect((await revoke(expired.access_token)).status).toBe(200);
  expect((await revoke(revokedTwice.access_token)).status).toBe(200);
  expect((await gateway.refresh(expired.refresh_token)).json).toMatchObject({ Error: 'invalid_grant' });
});

test('V03: authentic, of a grant whose record no longer exists: 200, and the token is invalid', async () => {
  const grant = await gateway.grant();
  const now = Math.floor(gateway.clock.now());
  const claims = {
    ...decodeJwt(grant.access_token).claims,
    gid: 'AAAAAAAAAAAAAAAAAAAAAA',
    iat: now,
    exp: now + 600,
  };
  const orphan = signJwtWith(loadKeyring(gateway), JSON.stringify(claims));
  expect((await gateway.api('/files/1', orphan)).status).toBe(200);
  expect((await revoke(orphan)).status).toBe(200);
  expect((await gateway.api('/files/1', orphan)).status).toBe(401);
});

test('V03: a foreign or malformed token: 401, and nothing is revoked', async () => {
  const grant = await gateway.grant();
  const [header, payload] = decodeJwt(grant.access_token).parts;
  for (const token of [`${header}.${payload}.`, `${header}.${payload}.AAAA`, grant.refresh_token, '..', 'x'])
    expect((await revoke(token)).status).toBe(401);
  expect(await call(grant)).toBe(200);
});

test('V04: HEAD, a prefetch, and a GET without Authorization have no effect', async () => {
  const grant = await gateway.grant();
  const authorization = `Bearer ${grant.access_token}`;
  expect((await revoke(grant.access_token, { method: 'HEAD' })).status).toBe(405);
  for (const purpose of [{ 'sec-purpose': 'prefetch' }, { purpose: 'prefetch' }])
    expect((await revoke('', { headers: { authorization, ...purpose } })).status).toBe(400);
  for (const headers of [{}, { cookie: `access_token=${grant.access_token}` }, { 'x-authorization': authorization }])
    expect((await revoke('', { headers })).status).toBe(401);
  for (const method of ['POST', 'PUT', 'DELETE', 'OPTIONS'])
    expect((await revoke(grant.access_token, { method })).status).toBe(405);
  expect(await call(grant)).toBe(200);
});

describe('V05: the store is unreachable', () => {
  test.each([
    ['revocations', 'announce', 'not executed'],
    ['revocations', 'announce', 'response lost'],
    ['grants', 'read', 'not executed'],
    ['grants', 'replace', 'not executed'],
    ['grants', 'replace', 'response lost'],
  ] as const)(
    'V05: %s.%s %s: 503 with Retry-After, never 200, and the token stops working here',
    async (part, operation, failure) => {
      const grant = await gateway.grant();
      const { store } = gateway.server;
      const reply = await withFailure(store[part] as unknown as Record<string, unknown>, operation, failure, () =>
        revoke(grant.access_token),
      );
      expect(reply.status).toBe(503);
      expect(reply.headers['retry-after']).toMatch(/^[1-9]\d*$/);
      expect(await call(grant)).toBe(401);
      expect((await revoke(grant.access_token)).status).toBe(200);
      expect(await call(grant)).toBe(401);
    },
  );

  test('V05: a failed announcement is repeated when the store recovers', async () => {
    const { revocations } = createMemoryStore({ now: () => 10 });
    const announced: string[] = [];
    let isReachable = false;
    const log = createLocalRevocations({
      log: {
        async announce(revocation) {
          if (!isReachable) throw storeUnreachable();
          if (revocation.of === 'grant') announced.push(revocation.grantId);
          await revocations.announce(revocation);
        },
        isRevoked: (token) => revocations.isRevoked(token),
        getLastNumber: () => revocations.getLastNumber(),
      },
      now: () => 10,
      retryMs: 1,
    });
    const endOfGrant = { of: 'grant', belowGeneration: Number.POSITIVE_INFINITY, keepUntil: 100 } as const;
    await expect(log.announce({ ...endOfGrant, grantId: 'a' })).rejects.toThrow(/unreachable/);
    await expect(log.announce({ ...endOfGrant, grantId: 'b' })).rejects.toThrow(/unreachable/);
    expect([log.isRevoked(bearer('a')), revocations.isRevoked(bearer('a'))]).toEqual([true, false]);
    isReachable = true;
    await expect.poll(() => announced, { timeout: 15_000 }).toEqual(['a', 'b']);
    expect([log.isRevoked(bearer('b')), revocations.isRevoked(bearer('b'))]).toEqual([true, true]);
    await log.stop();
  });

  test('V05: local denials are bounded, and a failed supersession denies nothing', async () => {
    const log = createLocalRevocations({
      log: {
        announce: () => Promise.reject(storeUnreachable()),
        isRevoked: () => false,
        getLastNumber: () => 0,
      },
      now: () => 10,
      max: 100,
    });
    const superseded = { of: 'grant', grantId: 'a', belowGeneration: 2, keepUntil: 100 } as const;
    await expect(log.announce(superseded)).rejects.toThrow(/unreachable/);
    expect(log.isRevoked(bearer('a'))).toBe(false);
    for (let attempt = 0; attempt < 150; attempt += 1)
      await expect(
        log.announce({ ...superseded, grantId: `g${attempt}`, belowGeneration: Number.POSITIVE_INFINITY }),
      ).rejects.toThrow(/unreachable/);
    const denied = Array.from({ length: 150 }, (_, index) => log.isRevoked(bearer(`g${index}`)));
    expect(denied.filter(Boolean)).toHaveLength(100);
    expect(denied[149]).toBe(true);
    await log.stop();
  });
});
