import { afterEach, beforeEach, expect, test } from 'vitest';
import { decodeJwt, loadKeyring, signJwtWith } from '../support/forged-tokens.ts';
import { ALICE, startGateway, type TestGateway, type TokenGrant } from '../support/test-gateway.ts';

/** V13: revocation of all tokens of an integration or identity that were issued before a given time. */
let gateway: TestGateway;
beforeEach(async () => {
  gateway = await startGateway();
});
afterEach(() => gateway.close());

const call = async ({ access_token }: TokenGrant): Promise<number> =>
  (await gateway.api('/files/1', access_token)).status;
const verify = async ({ access_token }: TokenGrant): Promise<number> => {
  const headers = { authorization: `Bearer ${access_token}` };
  return (await gateway.request({ path: '/authsvc/Authorize/Verify', headers })).status;
};
const refresh = async ({ refresh_token }: TokenGrant, clientId = 'report-runner') =>
  gateway.refresh(refresh_token, { client_id: clientId });
const announce = (of: { clientId: string } | { identity: string }): Promise<void> => {
  gateway.clock.advance(1);
  const times = { notBefore: Math.floor(gateway.clock.now()), keepUntil: gateway.clock.now() + 90 * 86_400 };
  return gateway.server.store.revocations.announce(
    'clientId' in of ? { of: 'client', ...of, ...times } : { of: 'identity', ...of, ...times },
  );
};

test('V13: a client’s earlier tokens are invalid, also cached ones; those of others stay valid', async () => {
  const [alice, bob] = [await gateway.grant(), await gateway.grant({ user: 'bob' })];
  const other = await gateway.grant({ clientId: 'other-app' });
  expect([await call(alice), await call(bob), await call(other)]).toEqual([200, 200, 200]);
  await announce({ clientId: 'report-runner' });
  expect([await call(alice), await call(bob), await call(other)]).toEqual([401, 401, 200]);
  expect([await verify(alice), await verify(other)]).toEqual([401, 200]);
});

test('V13: an identity’s earlier tokens are invalid in every integration; those of others stay valid', async () => {
  const [alice, other] = [await gateway.grant(), await gateway.grant({ clientId: 'other-app' })];
  const bob = await gateway.grant({ user: 'bob' });
  await announce({ identity: ALICE });
  expect([await call(alice), await call(other), await call(bob)]).toEqual([401, 401, 200]);
  expect([await verify(alice), await verify(other), await verify(bob)]).toEqual([401, 401, 200]);
});

test.each([{ clientId: 'report-runner' }, { identity: ALICE }])(
  'V13: an old grant cannot be refreshed after revoking %o: not at once, not after its access token has expired, not after a restart',
  async (of) => {
    const first = await gateway.grant();
    const second = (await refresh(first)).json as unknown as TokenGrant;
    await announce(of);
    expect((await refresh(second)).json).toMatchObject({ Error: 'invalid_grant' });
    gateway.clock.advance(86_400);
    expect((await refresh(second)).json).toMatchObject({ Error: 'invalid_grant' });
    await gateway.restart();
    expect((await refresh(second)).json).toMatchObject({ Error: 'invalid_grant' });
    expect(await call(second)).toBe(401);
  },
);

test.each([{ clientId: 'report-runner' }, { identity: ALICE }])(
  'V13: a grant issued after revoking %o works and can be refreshed',
  async (of) => {
    await announce(of);
    const grant = await gateway.grant();
    expect(await call(grant)).toBe(200);
    gateway.clock.advance(10);
    const renewed = (await refresh(grant)).json as unknown as TokenGrant;
    expect(await call(renewed)).toBe(200);
  },
);

test('V13: a token refreshed just before the revocation is invalid as well', async () => {
  const grant = await gateway.grant();
  gateway.clock.advance(1_000);
  const renewed = (await refresh(grant)).json as unknown as TokenGrant;
  await announce({ identity: ALICE });
  expect(await call(renewed)).toBe(401);
});

test('V13: the strictest revocation applies: an earlier time does not undo a later one, nor the revocation of a grant', async () => {
  const grant = await gateway.grant();
  await announce({ clientId: 'report-runner' });
  await gateway.server.store.revocations.announce({
    of: 'client',
    clientId: 'report-runner',
    notBefore: 1,
    keepUntil: gateway.clock.now() + 86_400,
  });
  expect(await call(grant)).toBe(401);
  const fresh = await gateway.grant();
  const headers = { authorization: `Bearer ${fresh.access_token}` };
  expect((await gateway.request({ path: '/authsvc/Revoke/Token', headers })).status).toBe(200);
  expect(await call(fresh)).toBe(401);
});

test('V13: identities that are a prefix of another, or differ by case, are distinct', async () => {
  const grant = await gateway.grant();
  await announce({ identity: ALICE.slice(0, -1) });
  await announce({ identity: ALICE.toUpperCase() });
  await announce({ clientId: 'report' });
  await announce({ clientId: 'Report-Runner' });
  expect(await call(grant)).toBe(200);
});

test('V13: a token that claims another identity is not a gatehouse token', async () => {
  const grant = await gateway.grant();
  await announce({ identity: ALICE });
  const { parts, claims } = decodeJwt(grant.access_token);
  const changed = Buffer.from(JSON.stringify({ ...claims, sub: 'local:{00000000-0000-4000-8000-000000000000}' }));
  expect((await gateway.api('/files/1', `${parts[0]}.${changed.toString('base64url')}.${parts[2]}`)).status).toBe(401);
  // A token signed with the real key is checked by its claims.
  expect((await gateway.api('/files/1', signJwtWith(loadKeyring(gateway), JSON.stringify(claims)))).status).toBe(401);
});
