import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createDeviceClient } from '../support/device-client.ts';
import { decodeJwt } from '../support/forged-tokens.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { issue } from '../support/pki.ts';
import { ALICE, type Reply, startGateway, type TestGateway, type TokenGrant } from '../support/test-gateway.ts';

/** Token API specification, section 2, row by row, for a refresh and for a certificate grant. */
let gateway: TestGateway;
freezeClock(250);
let byCertificate: Reply;
let byRefresh: Reply;
let first: TokenGrant;
let second: TokenGrant;
beforeAll(async () => {
  gateway = await startGateway();
  byCertificate = await requestGrant('files:read');
  first = byCertificate.json as unknown as TokenGrant;
  byRefresh = await gateway.refresh(first.refresh_token);
  second = byRefresh.json as unknown as TokenGrant;
});
afterAll(() => gateway.close());

const requestGrant = (scope: string, user: 'alice' | 'bob' = 'alice'): Promise<Reply> =>
  gateway.post('/Authorize/Certificate', { client_id: 'report-runner', scope }, { as: gateway.users[user] });

describe('2.1 token grant', () => {
  test('seed 2.1: both operations respond with 200 and a JSON object', () => {
    for (const reply of [byCertificate, byRefresh]) {
      expect(reply.status, reply.text).toBe(200);
      expect(reply.headers['content-type']).toMatch(/^application\/json\b/);
    }
  });

  test('seed 2.1: the token grant has exactly the fields of the table, and identity only by certificate', () => {
    const both = ['access_token', 'expires', 'expires_in', 'refresh_token', 'refresh_until', 'scope', 'token_type'];
    expect(Object.keys(byRefresh.json).toSorted()).toEqual(both);
    expect(Object.keys(byCertificate.json).toSorted()).toEqual([...both, 'identity'].toSorted());
  });

  test('seed 2.1 access_token: a string that authorizes API calls within the granted scope only', async () => {
    for (const { access_token } of [first, second]) {
      expect(access_token).toBeTypeOf('string');
      expect((await gateway.api('/files/1', access_token)).status).toBe(200);
      expect((await gateway.api('/reports/1', access_token)).status).toBe(403);
    }
  });

  test('seed 2.1 refresh_token: a new string each time, which works after the access token has expired', async () => {
    const grant = await gateway.grant();
    expect(grant.refresh_token).toBeTypeOf('string');
    gateway.clock.advance(3_601);
    expect((await gateway.api('/files/1', grant.access_token)).status).toBe(401);
    const renewed = (await gateway.refresh(grant.refresh_token)).json as unknown as TokenGrant;
    expect(renewed.refresh_token).not.toBe(grant.refresh_token);
    expect((await gateway.api('/files/1', renewed.access_token)).status).toBe(200);
  });

  test('seed 2.1 expires_in: an integer, the seconds until the access token stops working', async () => {
    const grant = await gateway.grant();
    expect(Number.isInteger(grant.expires_in)).toBe(true);
    gateway.clock.advance(grant.expires_in - 1);
    expect((await gateway.api('/files/1', grant.access_token)).status).toBe(200);
    gateway.clock.advance(2);
    expect((await gateway.api('/files/1', grant.access_token)).status).toBe(401);
  });

  test('seed 2.1 expires: an integer, the access token’s own expiry as an Epoch timestamp', () => {
    for (const grant of [first, second]) {
      expect(Number.isInteger(grant.expires)).toBe(true);
      expect(decodeJwt(grant.access_token).claims['exp']).toBe(grant.expires);
    }
  });

  test('seed 2.1 expires: the lifetime follows the server’s settings', async () => {
    const other = await startGateway((settings) => ({ ...settings, tokens: { accessLifetime: '5m' } }));
    try {
      const grant = await other.grant();
      expect(grant.expires).toBe(Math.floor(other.clock.now()) + 300);
    } finally {
      await other.close();
    }
  });

  test('seed 2.1 token_type: always Bearer', () => {
    for (const grant of [first, second]) expect(grant.token_type).toBe('Bearer');
  });

  test('seed 2.1 scope: a refresh returns the scope of the original authorization', async () => {
    const { json } = await requestGrant('Reports:write,read;files');
    const refreshed = await gateway.refresh(String(json['refresh_token']));
    expect(refreshed.json['scope']).toBe('Reports:write,read;files');
    expect(decodeJwt(String(refreshed.json['access_token'])).claims['scope']).toBe('files reports:read reports:write');
  });

  test('seed 2.1 scope: a scope sent with a refresh does not change the granted scope', async () => {
    const grant = await gateway.grant();
    for (const scope of ['reports:write', 'files'])
      expect((await gateway.refresh(grant.refresh_token, { scope })).json['scope']).toBe('files:read');
  });

  test('seed 2.1 scope: a certificate authorization echoes the requested scope', async () => {
    for (const scope of ['Files:read', 'files:read;', 'reports:write,read', 'FILES:read;reports'])
      expect((await requestGrant(scope)).json['scope']).toBe(scope);
  });

  test('seed 2.1 refresh_until: an integer; until then the refresh token works, after it a new Authorize call is needed', async () => {
    let grant = await gateway.grant();
    expect(Number.isInteger(grant.refresh_until)).toBe(true);
    gateway.clock.advance(grant.refresh_until - gateway.clock.now() - 2);
    grant = (await gateway.refresh(grant.refresh_token)).json as unknown as TokenGrant;
    expect((await gateway.api('/files/1', grant.access_token)).status).toBe(200);
    gateway.clock.advance(3);
    expect((await gateway.refresh(grant.refresh_token)).json).toMatchObject({ Error: 'invalid_grant' });
    expect((await gateway.grant()).refresh_until).toBeGreaterThan(gateway.clock.now());
  });

  test('seed 2.1 identity: <identity_provider_label>:<identity_id> with a braced GUID', () => {
    expect(first.identity).toBe(ALICE);
    expect(first.identity).toMatch(/^[A-Za-z0-9_.-]+:\{[0-9a-f-]{36}\}$/);
  });

  test('seed 2.1 identity: the id may be a hex string', async () => {
    const derived = await startGateway((settings) => ({
      ...settings,
      certificates: { ...settings.certificates, directory: 'workloads' },
      directories: { ...settings.directories, workloads: { label: 'wl', derive: true } },
      integrations: [{ clientId: 'report-runner', scope: 'files:read', access: [{ directory: 'workloads' }] }],
      routes: [],
    }));
    try {
      const body = { client_id: 'report-runner', scope: 'files:read' };
      const { json } = await derived.post('/Authorize/Certificate', body, { as: derived.users.alice });
      expect(json['identity']).toMatch(/^wl:[0-9a-f]{8,128}$/);
    } finally {
      await derived.close();
    }
  });

  test('seed 2.1 identity: a token after device authorization has none', async () => {
    const steps = createDeviceClient(gateway);
    const codes = await steps.requestCodes();
    await steps.confirm(codes);
    const reply = await steps.exchange(codes.device_code);
    expect(reply.status, reply.text).toBe(200);
    expect(reply.json).not.toHaveProperty('identity');
  });
});

describe('2.2 scope string', () => {
  test('seed 2.2: <resource>:<permission>,<permission> is understood', async () => {
    const { json } = await requestGrant('reports:read,write');
    expect((await gateway.api('/reports/1', String(json['access_token']))).status).toBe(200);
  });

  test('seed 2.2: the resource word may be in lower case or have a leading capital', async () => {
    for (const scope of ['reports:write', 'Reports:write']) {
      const { json } = await requestGrant(scope);
      expect((await gateway.api('/reports/1', String(json['access_token']))).status).toBe(200);
    }
  });

  test('seed 2.2: permissions are lower-case words', async () => {
    for (const scope of ['reports:Write', 'reports:WRITE', 'reports:read,Write'])
      expect((await requestGrant(scope)).json).toMatchObject({ Error: 'invalid_scope' });
  });

  test('seed 2.2: a request may ask for the entire scope of the integration', async () => {
    expect((await requestGrant('reports:read,write;files:read')).status).toBe(200);
  });

  test('seed 2.2: a request may ask for a subset of it', async () => {
    for (const scope of ['reports:read', 'reports:write;files', 'reports', 'files:read'])
      expect((await requestGrant(scope)).status, scope).toBe(200);
  });

  test('seed 2.2: a request may not ask for more', async () => {
    for (const scope of ['reports:delete', 'reports:read,delete', 'mail:read', 'files:read;mail', 'files:write'])
      expect((await requestGrant(scope)).json, scope).toMatchObject({ Error: 'invalid_scope' });
  });
});

describe('2.3 error body', () => {
  test('seed 2.3: HTTP 400 of Authorize/Token is JSON with Error and Error_description, both strings, and nothing else', async () => {
    const outsider = await issue(gateway.ca, { commonName: 'stranger' });
    const replies = [
      await gateway.post('/Authorize/Token', {}),
      await gateway.post('/Authorize/Token', { client_id: 'report-runner' }),
      await gateway.refresh('ghr_nonsense'),
      await gateway.refresh('x', { client_id: 'nobody' }),
      await gateway.post('/Authorize/Token', { client_id: 'report-runner', device_code: 'x' }),
      await gateway.request({ path: '/authsvc/Authorize/Token', method: 'POST', body: '' }),
      await gateway.post('/Authorize/Token', { client_id: 'x', refresh_token: 'y' }, { as: outsider }),
    ];
    for (const { status, json, headers } of replies) {
      expect(status).toBe(400);
      expect(headers['content-type']).toMatch(/^application\/json\b/);
      expect(Object.keys(json).toSorted()).toEqual(['Error', 'Error_description']);
      expect(json['Error']).toBeTypeOf('string');
      expect(json['Error_description']).toBeTypeOf('string');
    }
  });

  test('seed 2.3 Error_description: describes how to retry', async () => {
    const steps = createDeviceClient(gateway);
    const codes = await steps.requestCodes();
    const pending = await steps.exchange(codes.device_code);
    expect(pending.json['Error_description']).toMatch(/retry after the interval/i);
    const ended = await gateway.refresh('ghr_nonsense');
    expect(ended.json['Error_description']).toMatch(/new grant through an Authorize call/i);
  });
});
