import { afterAll, beforeAll, expect, test } from 'vitest';
import { decodeJwt } from '../support/forged-tokens.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { createOAuthClient } from '../support/oauth-client.ts';
import { type Reply, startGateway, type TestGateway } from '../support/test-gateway.ts';

/** Wire specification, section 7, over HTTP: what may be granted, and what a granted scope allows. */
let gateway: TestGateway;
freezeClock(250);
beforeAll(async () => {
  gateway = await startGateway((settings) => ({
    ...settings,
    integrations: [
      {
        clientId: 'report-runner',
        scope: 'reports:read,write;files:read,readwrite;mail;Notes:read',
        access: [
          { groups: ['operators'] },
          { groups: ['readers'], scope: 'files:read' },
          { groups: ['readers'], scope: 'reports:read' },
        ],
      },
    ],
    routes: [
      { path: '/need/files', requires: 'files' },
      { path: '/need/files-read', requires: 'files:read' },
      { path: '/need/both', requires: 'files:read;reports:write' },
      { path: '/need/notes', requires: 'NOTES:read' },
      { path: '/need/any', requires: 'any-token' },
    ],
  }));
});
afterAll(() => gateway.close());

const requestGrant = (scope: string, user: 'alice' | 'bob' = 'alice'): Promise<Reply> =>
  gateway.post('/Authorize/Certificate', { client_id: 'report-runner', scope }, { as: gateway.users[user] });
const callWithScope = async (scope: string, path: string): Promise<number> => {
  const reply = await requestGrant(scope);
  expect(reply.status, reply.text).toBe(200);
  return (await gateway.api(path, String(reply.json['access_token']))).status;
};

test('wire 7: items are joined by ; and a trailing ; is allowed', async () => {
  expect(await callWithScope('files:read;reports:write', '/need/both')).toBe(200);
  expect(await callWithScope('files:read;reports:write;', '/need/both')).toBe(200);
  for (const scope of ['files:read;;reports', ';files', ';', 'files:read reports:write', 'files:read, write'])
    expect((await requestGrant(scope)).json, scope).toMatchObject({ Error: 'invalid_scope' });
});

test('wire 7: the same resource twice is one resource with both permissions', async () => {
  expect(await callWithScope('reports:write;files:readwrite;FILES:read', '/need/both')).toBe(200);
});

test('wire 7: resource names compare without case, permissions exactly', async () => {
  for (const scope of ['files:read', 'Files:read', 'FILES:read'])
    expect(await callWithScope(scope, '/need/files-read')).toBe(200);
  expect(await callWithScope('notes:read', '/need/notes')).toBe(200);
  for (const scope of ['files:Read', 'files:READ'])
    expect((await requestGrant(scope)).json).toMatchObject({ Error: 'invalid_scope' });
});

test('wire 7: an unknown form is invalid_scope', async () => {
  for (const scope of [
    '*',
    '*:*',
    'files:*',
    'files:read[1]',
    'files(read)',
    'files:read@eu',
    'files:read:more',
    'files/read',
    '-files',
    'files:re\u0430d',
    'files\u0000',
    `files:${'a'.repeat(5_000)}`,
  ])
    expect((await requestGrant(scope)).json, scope.slice(0, 20)).toMatchObject({ Error: 'invalid_scope' });
});

test('wire 7: a bare resource is within a resource with permissions, and may be requested', async () => {
  expect(await callWithScope('files', '/need/files')).toBe(200);
  expect(await callWithScope('mail', '/need/any')).toBe(200);
});

test('wire 7: a rule that requires a bare resource is satisfied by any permission of it', async () => {
  for (const scope of ['files', 'files:read', 'files:readwrite'])
    expect(await callWithScope(scope, '/need/files')).toBe(200);
  expect(await callWithScope('mail', '/need/files')).toBe(403);
});

test('wire 7: a bare resource never satisfies a permission', async () => {
  expect(await callWithScope('files', '/need/files-read')).toBe(403);
});

test('wire 7: files:readwrite never satisfies files:read', async () => {
  expect(await callWithScope('files:readwrite', '/need/files-read')).toBe(403);
});

test('wire 7: an integration with a bare resource grants no permission of it', async () => {
  const reply = await requestGrant('mail:send');
  expect(reply.json).toMatchObject({ Error: 'invalid_scope' });
  expect(reply.json['Error_description']).toContain('mail:send');
});

test('wire 7: a request beyond the integration is invalid_scope naming the excess and only the excess', async () => {
  const reply = await requestGrant('files:read,delete;reports:read;calendar:write');
  expect(reply.json).toMatchObject({ Error: 'invalid_scope' });
  expect(reply.json['Error_description']).toContain('calendar:write;files:delete');
  expect(reply.json['Error_description']).not.toContain('reports');
});

test('wire 7: the token API echoes the scope verbatim, tokens have one permission per item, and upstream headers the normal form', async () => {
  const scope = 'Reports:write,read;FILES:read;';
  const reply = await requestGrant(scope);
  const token = String(reply.json['access_token']);
  expect(reply.json['scope']).toBe(scope);
  expect(decodeJwt(token).claims['scope']).toBe('files:read reports:read reports:write');
  expect((await gateway.api('/need/any', token)).json['headers']).toMatchObject({
    'x-forwarded-scope': 'files:read;reports:read,write',
  });
  const headers = { authorization: `Bearer ${token}` };
  expect((await gateway.request({ path: '/authsvc/Authorize/Verify', headers })).json['scope']).toBe(scope);
});

test('wire 7: the scopes of several access entries are combined', async () => {
  expect((await requestGrant('files:read;reports:read', 'bob')).status).toBe(200);
  expect((await requestGrant('reports:write', 'bob')).json).toMatchObject({ Error: 'invalid_scope' });
});

test('wire 7: an entry without a scope allows the entire integration scope', async () => {
  expect((await requestGrant('reports:read,write;files:read,readwrite;mail;notes:read')).status).toBe(200);
});

test('wire 7: a grant has the form of each interface through which it is refreshed', async () => {
  const scope = 'Reports:write,read;FILES:read;';
  const list = 'files:read reports:read reports:write';
  const oauth = createOAuthClient(gateway);
  const { json } = await requestGrant(scope);
  const first = await oauth.refresh(String(json['refresh_token']));
  expect(first).toMatchObject({ status: 200, json: { scope: list } });
  const second = await gateway.refresh(String(first.json['refresh_token']));
  expect(second).toMatchObject({ status: 200, json: { scope } });
  for (const reply of [first, second]) expect(decodeJwt(String(reply.json['access_token'])).claims['scope']).toBe(list);
});

test('wire 7: the longest scope gives a token that is accepted', async () => {
  const permissions = Array.from({ length: 400 }, (_, index) => `p${index}`).join(',');
  const resource = `r${'x'.repeat(500)}`;
  await gateway.reload((settings) => ({
    ...settings,
    integrations: [{ clientId: 'wide', scope: `${resource}:${permissions}`, access: [{ groups: ['operators'] }] }],
  }));
  const reply = await gateway.post(
    '/Authorize/Certificate',
    { client_id: 'wide', scope: `${resource}:${permissions}` },
    { as: gateway.users.alice },
  );
  expect(reply.status, reply.text).toBe(200);
  expect((await gateway.api('/need/any', String(reply.json['access_token']))).status).toBe(200);
});
