import { afterAll, beforeAll, expect, test } from 'vitest';
import { decodeJwt } from '../support/forged-tokens.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { type Reply, startGateway, type TestGateway } from '../support/test-gateway.ts';

/** Section 7 of the wire, asked over HTTP: what may be granted, and what a granted scope opens. */
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

const ask = (scope: string, user: 'alice' | 'bob' = 'alice'): Promise<Reply> =>
  gateway.post('/Authorize/Certificate', { client_id: 'report-runner', scope }, { as: gateway.users[user] });
const opens = async (scope: string, path: string): Promise<number> => {
  const reply = await ask(scope);
  expect(reply.status, reply.text).toBe(200);
  return (await gateway.api(path, String(reply.json['access_token']))).status;
};

test('wire 7: items are joined by ; and a trailing ; is allowed', async () => {
  expect(await opens('files:read;reports:write', '/need/both')).toBe(200);
  expect(await opens('files:read;reports:write;', '/need/both')).toBe(200);
  for (const scope of ['files:read;;reports', ';files', ';', 'files:read reports:write', 'files:read, write'])
    expect((await ask(scope)).json, scope).toMatchObject({ Error: 'invalid_scope' });
});

test('wire 7: the same resource twice is one resource with both permissions', async () => {
  expect(await opens('reports:write;files:readwrite;FILES:read', '/need/both')).toBe(200);
});

test('wire 7: resource names compare without case, permissions exactly', async () => {
  for (const scope of ['files:read', 'Files:read', 'FILES:read'])
    expect(await opens(scope, '/need/files-read')).toBe(200);
  expect(await opens('notes:read', '/need/notes')).toBe(200);
  for (const scope of ['files:Read', 'files:READ'])
    expect((await ask(scope)).json).toMatchObject({ Error: 'invalid_scope' });
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
    expect((await ask(scope)).json, scope.slice(0, 20)).toMatchObject({ Error: 'invalid_scope' });
});

test('wire 7: a bare resource is within a resource with permissions, and may be asked for', async () => {
  expect(await opens('files', '/need/files')).toBe(200);
  expect(await opens('mail', '/need/any')).toBe(200);
});

test('wire 7: a rule that asks for a bare resource is met by any item of it', async () => {
  for (const scope of ['files', 'files:read', 'files:readwrite'])
    expect(await opens(scope, '/need/files')).toBe(200);
  expect(await opens('mail', '/need/files')).toBe(403);
});

test('wire 7: a bare resource never satisfies a permission', async () => {
  expect(await opens('files', '/need/files-read')).toBe(403);
});

test('wire 7: files:readwrite never satisfies files:read', async () => {
  expect(await opens('files:readwrite', '/need/files-read')).toBe(403);
});

test('wire 7: an integration with a bare resource gives no permission of it', async () => {
  const reply = await ask('mail:send');
  expect(reply.json).toMatchObject({ Error: 'invalid_scope' });
  expect(reply.json['Error_description']).toContain('mail:send');
});

test('wire 7: a request beyond the integration is invalid_scope naming the excess and only the excess', async () => {
  const reply = await ask('files:read,delete;reports:read;calendar:write');
  expect(reply.json).toMatchObject({ Error: 'invalid_scope' });
  expect(reply.json['Error_description']).toContain('calendar:write;files:delete');
  expect(reply.json['Error_description']).not.toContain('reports');
});

test('wire 7: responses echo the scope verbatim, tokens and upstream headers have the normal form', async () => {
  const scope = 'Reports:write,read;FILES:read;';
  const reply = await ask(scope);
  const token = String(reply.json['access_token']);
  expect(reply.json['scope']).toBe(scope);
  const normal = 'files:read;reports:read,write';
  expect(decodeJwt(token).claims['scope']).toBe(normal);
  expect((await gateway.api('/need/any', token)).json['headers']).toMatchObject({
    'x-forwarded-scope': normal,
  });
  const headers = { authorization: `Bearer ${token}` };
  expect((await gateway.request({ path: '/authsvc/Authorize/Verify', headers })).json['scope']).toBe(scope);
});

test('wire 7: access entries add up', async () => {
  expect((await ask('files:read;reports:read', 'bob')).status).toBe(200);
  expect((await ask('reports:write', 'bob')).json).toMatchObject({ Error: 'invalid_scope' });
});

test('wire 7: an entry without scope gives the whole integration scope', async () => {
  expect((await ask('reports:read,write;files:read,readwrite;mail;notes:read')).status).toBe(200);
});
