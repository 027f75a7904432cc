import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { withFailure } from '../support/fault-injection.ts';
import { decodeJwt } from '../support/forged-tokens.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { withIntegration, withoutIntegration, withSettings, withTokens } from '../support/reconfigure.ts';
import {
  ALICE,
  type Reply,
  startGateway,
  type TestGateway,
  type TestRequest,
  type TokenGrant,
} from '../support/test-gateway.ts';

/** Wire specification, sections 5 and 6. */
let gateway: TestGateway;
freezeClock(250);
beforeAll(async () => {
  gateway = await startGateway();
});
afterAll(() => gateway.close());

const revoke = (token: string, more: Partial<TestRequest> = {}): Promise<Reply> =>
  gateway.request({ path: '/authsvc/Revoke/Token', headers: { authorization: `Bearer ${token}` }, ...more });
const verify = (token: string, more: Partial<TestRequest> = {}): Promise<Reply> =>
  gateway.request({
    path: '/authsvc/Authorize/Verify',
    headers: { authorization: `Bearer ${token}` },
    ...more,
  });
const invalidToken = { status: 401, json: { Error: 'invalid_token' } };
const isGrantValid = async ({ access_token, refresh_token }: TokenGrant): Promise<boolean> => {
  const call = await gateway.api('/whoami', access_token);
  const renewed = await gateway.refresh(refresh_token);
  expect(call.status === 200, 'both tokens are valid or invalid').toBe(renewed.status === 200);
  return call.status === 200;
};

describe('5 GET Revoke/Token', () => {
  test('wire 5: 200 {} revokes the entire grant, including the refresh token', async () => {
    const grant = await gateway.grant();
    const reply = await revoke(grant.access_token);
    expect(reply.status).toBe(200);
    expect(reply.text).toBe('{}');
    expect(await isGrantValid(grant)).toBe(false);
  });

  test('wire 5: every generation of the grant is revoked, and no other grant', async () => {
    const other = await gateway.grant();
    const first = await gateway.grant();
    const second = (await gateway.refresh(first.refresh_token)).json as unknown as TokenGrant;
    expect((await revoke(first.access_token)).status).toBe(200);
    expect(await isGrantValid(second)).toBe(false);
    expect((await gateway.api('/whoami', first.access_token)).status).toBe(401);
    expect(await isGrantValid(other)).toBe(true);
  });

  test('wire 5: a token in the query is rejected, revokes nothing and is not logged', async () => {
    const grant = await gateway.grant();
    const { access_token: token } = grant;
    for (const query of [
      `access_token=${token}`,
      `x=1&ACCESS_TOKEN=${token}`,
      `%61ccess_token=${token}`,
      `token=${token}`,
    ])
      for (const headers of [{}, { authorization: `Bearer ${token}` }])
        expect((await gateway.request({ path: `/authsvc/Revoke/Token?${query}`, headers })).status, query).toBe(400);
    expect(JSON.stringify(gateway.log)).not.toContain(token.slice(-40));
    expect(await isGrantValid(grant)).toBe(true);
  });

  test('wire 5: a token that is already revoked gets 200', async () => {
    const { access_token } = await gateway.grant();
    expect((await revoke(access_token)).status).toBe(200);
    expect((await revoke(access_token)).status).toBe(200);
  });

  test('wire 5: an expired token gets 200, and the grant is revoked', async () => {
    const grant = await gateway.grant();
    gateway.clock.advance(3_601);
    expect((await revoke(grant.access_token)).status).toBe(200);
    expect((await gateway.refresh(grant.refresh_token)).json).toMatchObject({ Error: 'invalid_grant' });
  });

  test('wire 5: a superseded token gets 200, and the grant is revoked', async () => {
    await withSettings(gateway, withTokens({ refresh: { supersede: true } }), async () => {
      const first = await gateway.grant();
      const second = (await gateway.refresh(first.refresh_token)).json as unknown as TokenGrant;
      expect((await gateway.api('/whoami', first.access_token)).status).toBe(401);
      expect((await revoke(first.access_token)).status).toBe(200);
      expect(await isGrantValid(second)).toBe(false);
    });
  });

  test('wire 5: a bound token without its certificate gets 200, and the grant is revoked', async () => {
    await withSettings(gateway, withIntegration('report-runner', { bindToCertificate: true }), async () => {
      const grant = await gateway.grant();
      expect((await revoke(grant.access_token)).status).toBe(200);
      const asBound = await gateway.api('/whoami', grant.access_token, { as: gateway.users.alice });
      expect(asBound.status).toBe(401);
    });
  });

  test('wire 5: a token of a removed integration gets 200, and stays revoked when the integration is added again', async () => {
    const grant = await gateway.grant();
    await withSettings(gateway, withoutIntegration('report-runner'), async () =>
      expect((await revoke(grant.access_token)).status).toBe(200),
    );
    expect(await isGrantValid(grant)).toBe(false);
  });

  test('wire 5: a foreign, malformed or missing token is 401 invalid_token', async () => {
    const { access_token, refresh_token } = await gateway.grant();
    const cut = access_token.slice(0, -2);
    for (const token of [cut, refresh_token, 'x', 'eyJhbGciOiJub25lIn0.e30.'])
      expect(await revoke(token), token.slice(0, 5)).toMatchObject(invalidToken);
    for (const authorization of [
      `Basic ${access_token}`,
      access_token,
      'Bearer',
      `Bearer  ${access_token}`,
      `Bearer ${access_token} x`,
    ])
      expect(await gateway.request({ path: '/authsvc/Revoke/Token', headers: { authorization } })).toMatchObject(
        invalidToken,
      );
    const missing = await gateway.request({ path: '/authsvc/Revoke/Token' });
    expect(missing).toMatchObject(invalidToken);
    expect(missing.headers['www-authenticate']).toMatch(/^Bearer realm=/);
    expect((await gateway.api('/whoami', access_token)).status).toBe(200);
  });

  test('wire 5: two Authorization headers are rejected and revoke nothing', async () => {
    const [first, second] = [await gateway.grant(), await gateway.grant()];
    const authorization = [`Bearer ${first.access_token}`, `Bearer ${second.access_token}`];
    expect((await revoke('', { headers: { authorization } })).status).toBe(400);
    expect(await isGrantValid(first)).toBe(true);
    expect(await isGrantValid(second)).toBe(true);
  });

  test('wire 5: if the store is unreachable, 503 with Retry-After, never 200, and this process rejects the token at once', async () => {
    const { revocations } = gateway.server.store;
    const grant = await gateway.grant();
    const reply = await withFailure(revocations, 'announce', 'not executed', async () => {
      const response = await revoke(grant.access_token);
      expect((await gateway.api('/whoami', grant.access_token)).status).toBe(401);
      return response;
    });
    expect(reply.status).toBe(503);
    expect(reply.headers['retry-after']).toMatch(/^[1-9]\d*$/);
    expect(reply.json['Error']).not.toBe('invalid_token');
    expect(await isGrantValid(grant)).toBe(false);
    expect((await revoke(grant.access_token)).status).toBe(200);
    expect(await isGrantValid(grant)).toBe(false);
  });

  test('wire 5: if the store cannot be read, 503, and this process rejects the token at once', async () => {
    const { grants } = gateway.server.store;
    const grant = await gateway.grant();
    const reply = await withFailure(grants, 'read', 'not executed', () => revoke(grant.access_token));
    expect(reply.status).toBe(503);
    expect((await gateway.api('/whoami', grant.access_token)).status).toBe(401);
  });

  test('wire 5: if the revocation is announced but the grant is not updated, 503, and the grant is revoked nevertheless', async () => {
    const { grants } = gateway.server.store;
    const grant = await gateway.grant();
    const reply = await withFailure(grants, 'replace', 'not executed', () => revoke(grant.access_token));
    expect(reply.status).toBe(503);
    expect(await isGrantValid(grant)).toBe(false);
  });
});

describe('6 GET Authorize/Verify', () => {
  test('wire 6: application, identity, scope, valid_for', async () => {
    const grant = await gateway.grant({ scope: 'Files:read' });
    const { json, status } = await verify(grant.access_token);
    expect(status).toBe(200);
    expect(json).toMatchObject({
      application: 'report-runner',
      identity: ALICE,
      scope: 'Files:read',
      valid_for: 3_600,
    });
  });

  test.each([
    ['access_issued_on', 'the access token’s issue'],
    ['grant_issued_on', 'the grant’s issue'],
    ['expires', 'the expiry of the grant'],
  ] as const)('wire 6: %s (%s) in three forms', async (name, _meaning) => {
    const first = await gateway.grant();
    gateway.clock.advance(100);
    const grant = (await gateway.refresh(first.refresh_token)).json as unknown as TokenGrant;
    const issued = Number(decodeJwt(first.access_token).claims['iat']);
    const time = {
      access_issued_on: Number(decodeJwt(grant.access_token).claims['iat']),
      grant_issued_on: issued,
      expires: grant.refresh_until,
    }[name];
    const { json } = await verify(grant.access_token);
    expect(json[name]).toBe(`/Date(${time * 1_000})/`);
    expect(json[`${name}_ISO8601`]).toMatch(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$/);
    expect(Date.parse(String(json[`${name}_ISO8601`]))).toBe(time * 1_000);
    expect(json[`${name}_unix_time`]).toBe(time);
  });

  test('wire 6: the response has no other members', async () => {
    const { json } = await verify((await gateway.grant()).access_token);
    const times = ['access_issued_on', 'grant_issued_on', 'expires'];
    expect(Object.keys(json).toSorted()).toEqual(
      [
        'application',
        'identity',
        'scope',
        'valid_for',
        ...times.flatMap((name) => [name, `${name}_ISO8601`, `${name}_unix_time`]),
      ].toSorted(),
    );
  });

  test('wire 6: valid_for is the total lifetime, not the remaining one', async () => {
    const { access_token } = await gateway.grant();
    gateway.clock.advance(3_000);
    expect((await verify(access_token)).json['valid_for']).toBe(3_600);
  });

  test('wire 6: 401 invalid_token for a missing, foreign, expired or revoked token', async () => {
    const { access_token, refresh_token } = await gateway.grant();
    expect(await gateway.request({ path: '/authsvc/Authorize/Verify' })).toMatchObject(invalidToken);
    expect(await verify(refresh_token)).toMatchObject(invalidToken);
    expect(await verify(`${access_token}x`)).toMatchObject(invalidToken);
    const old = await gateway.grant();
    gateway.clock.advance(3_600);
    expect(await verify(old.access_token)).toMatchObject(invalidToken);
    const gone = await gateway.grant();
    await revoke(gone.access_token);
    const reply = await verify(gone.access_token);
    expect(reply).toMatchObject(invalidToken);
    expect(reply.headers['www-authenticate']).toContain('error="invalid_token"');
  });

  test('wire 6: 401 for a token of a removed integration, and for a bound one without its certificate', async () => {
    const grant = await gateway.grant();
    await withSettings(gateway, withoutIntegration('report-runner'), async () =>
      expect(await verify(grant.access_token)).toMatchObject(invalidToken),
    );
    await withSettings(gateway, withIntegration('report-runner', { bindToCertificate: true }), async () => {
      const bound = await gateway.grant();
      expect(await verify(bound.access_token)).toMatchObject(invalidToken);
      expect((await verify(bound.access_token, { as: gateway.users.alice })).status).toBe(200);
    });
  });

  test('wire 6: if the store is unreachable, 503 with Retry-After, not 401', async () => {
    const { access_token } = await gateway.grant();
    const reply = await withFailure(gateway.server.store.grants, 'read', 'not executed', () => verify(access_token));
    expect(reply.status).toBe(503);
    expect(reply.headers['retry-after']).toMatch(/^[1-9]\d*$/);
  });
});
