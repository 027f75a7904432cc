import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { denyAtOnce } from '../../src/grants/local-denial.ts';
import { memoryStore } from '../../src/stores/memory.ts';
import { away, failing } from '../support/fault-injection.ts';
import { keysOf, openJwt, openRefresh, signAs } from '../support/forge.ts';
import { type Ask, type House, openHouse, type Reply, type TokenGrant } from '../support/house.ts';

/** Rows V01–V05: GET Revoke/Token. */
let house: House;
beforeAll(async () => {
  house = await openHouse();
});
afterAll(() => house.close());

const revoke = (token: string, more: Partial<Ask> = {}): Promise<Reply> =>
  house.ask({ path: '/authsvc/Revoke/Token', headers: { authorization: `Bearer ${token}` }, ...more });
const call = async ({ access_token }: TokenGrant): Promise<number> =>
  (await house.api('/files/1', access_token)).status;
const bearer = (grantId: string) => ({ grantId, generation: 1, clientId: 'c', identity: 'i', issuedAt: 5 });

test('V01: after the 200 no token of the grant works, from the very next request on', async () => {
  for (let turn = 0; turn < 30; turn += 1) {
    const first = await house.grant();
    const second = (await house.refresh(first.refresh_token)).json as unknown as TokenGrant;
    expect([await call(first), await call(second)]).toEqual([200, 200]);
    expect((await revoke(turn % 2 === 0 ? first.access_token : second.access_token)).status).toBe(200);
    expect([await call(first), await call(second)]).toEqual([401, 401]);
    expect((await house.refresh(second.refresh_token)).json).toMatchObject({ Error: 'invalid_grant' });
  }
});

test('V01: the audit log says who was revoked, once', async () => {
  const grant = await house.grant();
  const { grantId } = openRefresh(grant.refresh_token);
  await revoke(grant.access_token);
  await revoke(grant.access_token);
  expect(house.audits('grant_revoked').filter((line) => line['grant'] === grantId)).toHaveLength(1);
});

test('V01: a revocation outlives a restart', async () => {
  const own = await openHouse();
  try {
    const grant = await own.grant();
    const headers = { authorization: `Bearer ${grant.access_token}` };
    expect((await own.ask({ path: '/authsvc/Revoke/Token', headers })).status).toBe(200);
    await own.restart();
    expect((await own.api('/files/1', grant.access_token)).status).toBe(401);
    expect((await own.refresh(grant.refresh_token)).json).toMatchObject({ Error: 'invalid_grant' });
  } finally {
    await own.close();
  }
});

test('V02: a token in the query string is 400, revokes nothing, and is redacted wherever it was sent', async () => {
  const grant = await house.grant();
  const path = `?access_token=${grant.access_token}`;
  for (const to of ['/authsvc/Revoke/Token', '/files/1', '/health', '/authsvc/Authorize/Verify'])
    expect((await house.ask({ path: to + path })).status, to).toBe(400);
  // A second question mark is part of the query, and hides nothing.
  for (const to of ['/authsvc/Revoke/Token', '/authsvc/Authorize/Verify'])
    expect((await house.ask({ path: `${to}?a=?&access_token=${grant.access_token}` })).status, to).toBe(400);
  expect(await call(grant)).toBe(200);
  expect(JSON.stringify(house.log)).not.toContain(openJwt(grant.access_token).parts[2]);
});

test('V03: authentic but expired, or already revoked: 200', async () => {
  const [expired, again] = [await house.grant(), await house.grant()];
  expect((await revoke(again.access_token)).status).toBe(200);
  house.clock.advance(3_601);
  expect((await revoke(expired.access_token)).status).toBe(200);
  expect((await revoke(again.access_token)).status).toBe(200);
  expect((await house.refresh(expired.refresh_token)).json).toMatchObject({ Error: 'invalid_grant' });
});

test('V03: authentic, of a grant whose record is long gone: 200, and the token is dead', async () => {
  const grant = await house.grant();
  const now = Math.floor(house.clock.now());
  const claims = {
    ...openJwt(grant.access_token).claims,
    gid: 'AAAAAAAAAAAAAAAAAAAAAA',
    iat: now,
    exp: now + 600,
  };
  const orphan = signAs(keysOf(house), JSON.stringify(claims));
  expect((await house.api('/files/1', orphan)).status).toBe(200);
  expect((await revoke(orphan)).status).toBe(200);
  expect((await house.api('/files/1', orphan)).status).toBe(401);
});

test('V03: not ours, or malformed: 401, and nothing is revoked', async () => {
  const grant = await house.grant();
  const [header, payload] = openJwt(grant.access_token).parts;
  for (const token of [`${header}.${payload}.`, `${header}.${payload}.AAAA`, grant.refresh_token, '..', 'x'])
    expect((await revoke(token)).status).toBe(401);
  expect(await call(grant)).toBe(200);
});

test('V04: HEAD, a prefetch, and a GET without Authorization have no effect', async () => {
  const grant = await house.grant();
  const authorization = `Bearer ${grant.access_token}`;
  expect((await revoke(grant.access_token, { method: 'HEAD' })).status).toBe(405);
  for (const purpose of [{ 'sec-purpose': 'prefetch' }, { purpose: 'prefetch' }])
    expect((await revoke('', { headers: { authorization, ...purpose } })).status).toBe(400);
  for (const headers of [
    {},
    { cookie: `access_token=${grant.access_token}` },
    { 'x-authorization': authorization },
  ])
    expect((await revoke('', { headers })).status).toBe(401);
  for (const method of ['POST', 'PUT', 'DELETE', 'OPTIONS'])
    expect((await revoke(grant.access_token, { method })).status).toBe(405);
  expect(await call(grant)).toBe(200);
});

describe('V05: the store is away', () => {
  test.each([
    ['revocations', 'announce', 'does not happen'],
    ['revocations', 'announce', 'answer lost'],
    ['grants', 'read', 'does not happen'],
    ['grants', 'replace', 'does not happen'],
    ['grants', 'replace', 'answer lost'],
  ] as const)(
    'V05: %s.%s %s: 503 with Retry-After, never 200, and the token stops working here',
    async (part, operation, failure) => {
      const grant = await house.grant();
      const { store } = house.gateway;
      const reply = await failing(store[part] as unknown as Record<string, unknown>, operation, failure, () =>
        revoke(grant.access_token),
      );
      expect(reply.status).toBe(503);
      expect(reply.headers['retry-after']).toMatch(/^[1-9]\d*$/);
      expect(await call(grant)).toBe(401);
      expect((await revoke(grant.access_token)).status).toBe(200);
      expect(await call(grant)).toBe(401);
    },
  );

  test('V05: what could not be announced is announced when the store is back', async () => {
    const { revocations } = memoryStore({ now: () => 10 });
    const announced: string[] = [];
    let up = false;
    const log = denyAtOnce({
      log: {
        async announce(revocation) {
          if (!up) throw away();
          if (revocation.of === 'grant') announced.push(revocation.grantId);
          await revocations.announce(revocation);
        },
        isRevoked: (one) => revocations.isRevoked(one),
      },
      now: () => 10,
      retryMilliseconds: 1,
    });
    const end = { of: 'grant', belowGeneration: Number.POSITIVE_INFINITY, keepUntil: 100 } as const;
    await expect(log.announce({ ...end, grantId: 'a' })).rejects.toThrow(/away/);
    await expect(log.announce({ ...end, grantId: 'b' })).rejects.toThrow(/away/);
    expect([log.isRevoked(bearer('a')), revocations.isRevoked(bearer('a'))]).toEqual([true, false]);
    up = true;
    await expect.poll(() => announced, { timeout: 15_000 }).toEqual(['a', 'b']);
    expect([log.isRevoked(bearer('b')), revocations.isRevoked(bearer('b'))]).toEqual([true, true]);
    await log.stop();
  });

  test('V05: what is denied here has a bound, and a supersession that failed denies nothing', async () => {
    const log = denyAtOnce({
      log: { announce: () => Promise.reject(away()), isRevoked: () => false },
      now: () => 10,
      max: 100,
    });
    const superseded = { of: 'grant', grantId: 'a', belowGeneration: 2, keepUntil: 100 } as const;
    await expect(log.announce(superseded)).rejects.toThrow(/away/);
    expect(log.isRevoked(bearer('a'))).toBe(false);
    for (let turn = 0; turn < 150; turn += 1)
      await expect(
        log.announce({ ...superseded, grantId: `g${turn}`, belowGeneration: Number.POSITIVE_INFINITY }),
      ).rejects.toThrow(/away/);
    const denied = Array.from({ length: 150 }, (_, turn) => log.isRevoked(bearer(`g${turn}`)));
    expect(denied.filter(Boolean)).toHaveLength(100);
    expect(denied[149]).toBe(true);
    await log.stop();
  });
});
