import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type AdminApiDeps, handleAdminRequest } from '../../src/admin/grants-api.ts';
import type { Settings } from '../../src/config/schema.ts';
import { createAdminApi } from '../../src/server/admin-endpoint.ts';
import { type Reply, sendRequest } from '../support/https-client.ts';
import { ALICE, BOB, startGateway, type TestGateway } from '../support/test-gateway.ts';

let gateway: TestGateway;
let token: string;
beforeAll(async () => {
  gateway = await startGateway();
  token = readFileSync(join(gateway.folder, 'data/admin-token'), 'utf8').trim();
});
afterAll(() => gateway.close());

type AdminReply = Pick<Reply, 'status' | 'headers' | 'json'>;

/** Sends a request to the admin listener, with the token by default. */
function adminApi(
  method: string,
  path: string,
  {
    headers = { authorization: `Bearer ${token}` },
    body,
  }: { readonly headers?: Readonly<Record<string, string | string[]>>; readonly body?: string | Buffer } = {},
): Promise<AdminReply> {
  return sendRequest({
    port: gateway.adminPort,
    method,
    path: `/admin/v1${path}`,
    headers,
    body,
    plain: true,
  });
}

const JSON_TYPE = { 'content-type': 'application/json' };
const listIds = (reply: AdminReply): string[] => (reply.json['grants'] as { id: string }[]).map(({ id }) => id);
const readGrantId = async (accessToken: string): Promise<string> => {
  const claims = JSON.parse(Buffer.from(accessToken.split('.')[1] ?? '', 'base64url').toString()) as {
    gid: string;
  };
  return claims.gid;
};

test('without the token no admin path reveals or changes anything', async () => {
  const grant = await gateway.grant();
  const id = await readGrantId(grant.access_token);
  const wrong: Readonly<Record<string, string | string[]>>[] = [
    {},
    { authorization: '' },
    { authorization: 'Bearer' },
    { authorization: `Basic ${token}` },
    { authorization: `Bearer ${token}x` },
    { authorization: `Bearer ${token.slice(0, -1)}` },
    { authorization: `Bearer  ${token}` },
    { authorization: `Bearer =${token}` },
    { authorization: [`Bearer ${token}`, `Bearer ${token}`] },
    { authorization: `Bearer ${grant.access_token}` },
    { 'x-authorization': `Bearer ${token}` },
  ];
  for (const headers of wrong)
    for (const [method, path] of [
      ['GET', '/grants'],
      ['GET', `/grants/${id}`],
      ['POST', `/grants/${id}/revoke`],
      ['POST', '/revoke'],
      ['DELETE', '/nowhere'],
    ] as const) {
      const reply = await adminApi(method, path, {
        headers: { ...headers, ...JSON_TYPE },
        ...(method === 'POST' && { body: '{}' }),
      });
      expect({ headers, path, status: reply.status }).toEqual({ headers, path, status: 401 });
      expect(reply.headers['www-authenticate']).toBe('Bearer realm="gatehouse administration"');
      expect(JSON.stringify(reply.json)).not.toContain(id);
    }
  expect((await adminApi('GET', `/grants?token=${token}`, { headers: {} })).status).toBe(401);
  expect((await gateway.api('/files/a', grant.access_token)).status).toBe(200);
});

test('the admin API is not reachable through the public port', async () => {
  const reply = await gateway.request({
    path: '/admin/v1/grants',
    headers: { authorization: `Bearer ${token}` },
  });
  expect(reply.status).toBe(401);
});

test('an empty or missing token file allows no access; a new token in it applies at once', async () => {
  const file = join(gateway.folder, 'data/admin-token');
  writeFileSync(file, '\n');
  expect((await adminApi('GET', '/grants', { headers: { authorization: 'Bearer ' } })).status).toBe(401);
  expect((await adminApi('GET', '/grants')).status).toBe(401);
  rmSync(file);
  expect((await adminApi('GET', '/grants')).status).toBe(401);
  token = 'another-token-of-an-operator';
  writeFileSync(file, token, { mode: 0o600 });
  expect((await adminApi('GET', '/grants')).status).toBe(200);
  // RFC 6750 §2.1: equals signs only at the end, and any length.
  writeFileSync(file, 'a-token=with-an-equals-sign-inside');
  const headers = { authorization: 'Bearer a-token=with-an-equals-sign-inside' };
  expect((await adminApi('GET', '/grants', { headers })).status).toBe(401);
  token = `${'x'.repeat(600)}==`;
  writeFileSync(file, token);
  expect((await adminApi('GET', '/grants')).status).toBe(200);
});

test('grants are listed by identity and client, in pages, and without secrets', async () => {
  const mine = await gateway.grant({ clientId: 'other-app' });
  const bobs = await gateway.grant({ user: 'bob' });
  const [mineId, bobsId] = [await readGrantId(mine.access_token), await readGrantId(bobs.access_token)];
  const byClient = await adminApi('GET', '/grants?client=other-app');
  expect(listIds(byClient)).toContain(mineId);
  expect(listIds(byClient)).not.toContain(bobsId);
  const byIdentity = await adminApi('GET', `/grants?identity=${encodeURIComponent(BOB)}`);
  expect(listIds(byIdentity)).toEqual([bobsId]);

  const found: string[] = [];
  let after: string | undefined;
  do {
    const page = await adminApi(
      'GET',
      `/grants?limit=1${after === undefined ? '' : `&after=${encodeURIComponent(after)}`}`,
    );
    found.push(...listIds(page));
    after = page.json['next'] as string | undefined;
  } while (after !== undefined);
  expect(found).toEqual(expect.arrayContaining([mineId, bobsId]));

  const shown = await adminApi('GET', `/grants/${mineId}`);
  expect(shown.json).toMatchObject({
    id: mineId,
    client: 'other-app',
    identity: ALICE,
    scope: 'files:read',
    by: 'certificate',
    state: 'live',
    refreshes: 0,
  });
  expect(JSON.stringify(shown.json)).not.toContain(mine.refresh_token);
});

test('the tokens of a revoked grant are rejected at once, and the action is recorded', async () => {
  const grant = await gateway.grant();
  const id = await readGrantId(grant.access_token);
  expect((await adminApi('POST', `/grants/${id}/revoke`)).json).toEqual({ ended: id });
  expect((await gateway.api('/files/a', grant.access_token)).status).toBe(401);
  expect((await gateway.refresh(grant.refresh_token)).json['Error']).toBe('invalid_grant');
  expect(gateway.auditEvents('admin_action').at(-1)).toMatchObject({
    act: 'revoke_grant',
    by: 'admin token',
    grant: id,
    identity: ALICE,
  });
  expect(listIds(await adminApi('GET', '/grants'))).not.toContain(id);
  expect(listIds(await adminApi('GET', '/grants?state=all'))).toContain(id);
  expect((await adminApi('POST', `/grants/${id}/revoke`)).status).toBe(200);
});

test.each([
  ['identity', BOB],
  ['client', 'other-app'],
])('everything of an %s is ended, and what is issued afterwards works', async (name, whose) => {
  const hit = name === 'identity' ? ({ user: 'bob' } as const) : ({ clientId: 'other-app' } as const);
  const [before, another] = [await gateway.grant(hit), await gateway.grant()];
  const reply = await adminApi('POST', '/revoke', {
    headers: { authorization: `Bearer ${token}`, ...JSON_TYPE },
    body: JSON.stringify({ [name]: whose }),
  });
  expect(reply).toMatchObject({ status: 200, json: { ended: { [name]: whose } } });
  expect(reply.json).not.toHaveProperty('user_disabled');
  if (name === 'identity') expect(Number(reply.json['live_grants'])).toBeGreaterThanOrEqual(1);
  expect((await gateway.api('/whoami', before.access_token)).status).toBe(401);
  expect((await gateway.refresh(before.refresh_token)).status).toBe(400);
  expect((await gateway.api('/whoami', another.access_token)).status).toBe(200);
  gateway.clock.advance(2);
  const after = await gateway.grant(hit);
  expect((await gateway.api('/whoami', after.access_token)).status).toBe(200);
});

test.each([
  ['GET', '/nowhere', undefined, 404],
  ['GET', '/grants/unknown', undefined, 404],
  ['POST', '/grants/unknown/revoke', undefined, 404],
  ['GET', '/grants/a%2Fb', undefined, 400],
  ['DELETE', '/grants', undefined, 405],
  ['GET', '/revoke', undefined, 405],
  ['GET', '/grants/unknown/revoke', undefined, 405],
  ['GET', '/grants?limit=0', undefined, 400],
  ['GET', '/grants?limit=100000', undefined, 400],
  ['GET', '/grants?after=..%2F..%2Fkeys', undefined, 400],
  ['GET', `/grants?after=${'a'.repeat(4_000)}`, undefined, 400],
  ['GET', '/grants/..%2Fkeys', undefined, 400],
  ['GET', '/grants?state=dead', undefined, 400],
  ['GET', '/grants?client=a&client=b', undefined, 400],
  ['GET', '/grants?cleint=a', undefined, 400],
  ['POST', '/revoke', '{}', 400],
  ['POST', '/revoke', '{"client":"a","identity":"b"}', 400],
  ['POST', '/revoke', '{"client":"a","client":"b"}', 400],
  ['POST', '/revoke', '{"client":7}', 400],
  ['POST', '/revoke', '[]', 400],
  ['POST', '/revoke', 'client=a', 400],
  ['POST', '/revoke', Buffer.from('{"identity":"local:\xff"}', 'latin1'), 400],
  ['POST', '/revoke', `{"client":"${'a'.repeat(5_000)}"}`, 400],
])('%s %s %s is %i', async (method, path, body, status) => {
  const reply = await adminApi(method, path, {
    headers: { authorization: `Bearer ${token}`, ...JSON_TYPE },
    ...(body !== undefined && { body }),
  });
  expect(reply.status).toBe(status);
  expect(reply.json).toHaveProperty('error');
});

test('a client cannot be revoked with a form, which a web page could send without CORS', async () => {
  const reply = await adminApi('POST', '/revoke', {
    headers: { authorization: `Bearer ${token}`, 'content-type': 'text/plain' },
    body: '{"client":"other-app"}',
  });
  expect(reply.status).toBe(400);
  const repeated = await adminApi('POST', '/revoke', {
    headers: { authorization: `Bearer ${token}`, 'content-type': ['application/json', 'text/plain'] },
    body: '{"client":"other-app"}',
  });
  expect(repeated.status).toBe(400);
});

test('revoking all grants of an unknown integration is 404, and nothing is recorded', async () => {
  const grant = await gateway.grant();
  const body = JSON.stringify({ client: 'report-runer' });
  const reply = await adminApi('POST', '/revoke', {
    headers: { authorization: `Bearer ${token}`, ...JSON_TYPE },
    body,
  });
  expect(reply).toMatchObject({
    status: 404,
    json: { error: 'not_found', error_description: 'No such integration.' },
  });
  expect((await gateway.api('/files/a', grant.access_token)).status).toBe(200);
});

test('grants can be listed and revoked by user name', async () => {
  const revoke = (body: object): Promise<AdminReply> =>
    adminApi('POST', '/revoke', {
      headers: { authorization: `Bearer ${token}`, ...JSON_TYPE },
      body: JSON.stringify(body),
    });
  const grant = await gateway.grant({ user: 'bob' });
  const other = await gateway.grant();
  const listed = await adminApi('GET', '/grants?name=BOB');
  expect(listIds(listed)).toContain(await readGrantId(grant.access_token));
  expect(listIds(listed)).not.toContain(await readGrantId(other.access_token));
  expect(listIds(await adminApi('GET', '/grants?name=BO*')).toSorted()).toEqual(listIds(listed).toSorted());
  expect(listIds(await adminApi('GET', '/grants?name=o*'))).toEqual([]);
  expect((await adminApi('GET', '/grants?name=*')).status).toBe(400);
  const byPrefix = { headers: { authorization: `Bearer ${token}`, ...JSON_TYPE }, body: '{"name":"bo*"}' };
  expect((await adminApi('POST', '/revoke', byPrefix)).status).toBe(404);
  expect(listIds(await adminApi('GET', '/grants?name=nobody'))).toEqual([]);
  expect((await adminApi('GET', '/grants?name=')).status).toBe(400);
  expect((await adminApi('GET', `/grants?name=bob&identity=${encodeURIComponent(ALICE)}`)).status).toBe(400);
  for (const body of [{ name: 'nobody' }, { name: '' }, { name: 'bob', identity: ALICE }, { name: ['bob'] }])
    expect((await revoke(body)).status).toBe(body.name === 'nobody' ? 404 : 400);
  expect((await gateway.api('/files/a', grant.access_token)).status).toBe(200);
  expect((await revoke({ name: 'bob' })).json).toMatchObject({ ended: { identity: BOB } });
  expect((await gateway.api('/files/a', grant.access_token)).status).toBe(401);
  expect((await gateway.api('/files/a', other.access_token)).status).toBe(200);
});

test('a user name that exists in several directories is 409 with the identities', async () => {
  const deps = { findIdentities: async () => ['local:{a}', 'staff:{b}'] } as unknown as AdminApiDeps;
  const reply = await handleAdminRequest(deps, {
    method: 'GET',
    path: '/grants',
    query: new URLSearchParams('name=bob'),
    by: 'a test',
  });
  expect(reply).toMatchObject({
    status: 409,
    body: { error: 'ambiguous', identities: ['local:{a}', 'staff:{b}'] },
  });
  const bob = { id: '00ff00ff', name: 'bob', groups: [], disabled: false };
  const directories = {
    one: { label: 'one', users: [bob], derive: false },
    two: { label: 'two', users: [{ ...bob, disabled: true }], derive: false },
    all: { label: 'all', users: [], derive: true },
  };
  const { findIdentities, isDisabled } = createAdminApi(
    {} as AdminApiDeps,
    () => ({ directories }) as unknown as Settings,
  );
  expect(await findIdentities('userName', 'Bob')).toEqual(['one:00ff00ff', 'two:00ff00ff']);
  const identities = ['one:00ff00ff', 'two:00ff00ff', 'two:ff', `all:${'0'.repeat(64)}`, 'other:1'];
  expect(await Promise.all(identities.map(isDisabled))).toEqual([false, true, false, false, false]);
});
