import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createDeviceClient } from '../support/device-client.ts';
import { freezeClock } from '../support/frozen-clock.ts';
import { type Reply, startGateway, type TestGateway } from '../support/test-gateway.ts';

/** Wire specification, section 1: paths, methods and responses. */
let gateway: TestGateway;
freezeClock(250);
beforeAll(async () => {
  gateway = await startGateway((settings) => ({
    ...settings,
    service: { paths: ['/authsvc', '/auth'] },
    // A rule that forwards everything, so that a request reaches the upstream unless gatehouse handles it.
    routes: [...(settings.routes ?? []), { path: '/**', public: true }],
  }));
});
afterAll(() => gateway.close());

const postToken = (body: string | Buffer, headers: Record<string, string> = {}): Promise<Reply> =>
  gateway.request({
    path: '/authsvc/Authorize/Token',
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body,
  });
const refreshBody = (refreshToken: string, more: Readonly<Record<string, unknown>> = {}): string =>
  JSON.stringify({ client_id: 'report-runner', refresh_token: refreshToken, ...more });
const expectNothingForwarded = async (run: () => Promise<void>): Promise<void> => {
  const before = gateway.upstream.requests.length;
  await run();
  expect(gateway.upstream.requests.slice(before)).toEqual([]);
};

describe('paths and methods', () => {
  test('wire 1: an alias of the service path serves the same operations', async () => {
    const { refresh_token } = await gateway.grant();
    const reply = await gateway.request({
      path: '/auth/Authorize/Token',
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: refreshBody(refresh_token),
    });
    expect(reply.status, reply.text).toBe(200);
  });

  test('wire 1: the service path and its operations are case-insensitive and never forwarded', async () => {
    await expectNothingForwarded(async () => {
      for (const path of [
        '/AuthSvc/authorize/token',
        '/AUTHSVC/AUTHORIZE/TOKEN',
        '/authsvc/Authorize/tOKEN',
        '/Auth/authorize/Token',
        '/%61uthsvc/Authorize/%54oken',
        '/authsvc/Authorize/Token?x=1',
      ]) {
        const { refresh_token } = await gateway.grant();
        const reply = await gateway.request({
          path,
          method: 'POST',
          headers: { 'content-type': 'application/json' },
          body: refreshBody(refresh_token),
        });
        expect(reply.status, path).toBe(200);
      }
    });
  });

  test('wire 1: an unknown path under the service path is 404 JSON and is never forwarded', async () => {
    await expectNothingForwarded(async () => {
      for (const path of [
        '/authsvc',
        '/authsvc/',
        '/authsvc/Authorize',
        '/authsvc/Authorize/Token/',
        '/authsvc/Authorize/Tokens',
        '/authsvc/Authorize%2FToken',
        '/authsvc/authorize/token%00',
        '/AUTHSVC/nothing',
        '/auth/nothing',
        '/authsvc/__proto__',
      ])
        for (const method of ['GET', 'POST', 'DELETE', 'PUT']) {
          const reply = await gateway.request({ path, method });
          // An ambiguous path is always 400.
          expect(reply.status, `${method} ${path}`).toBe(path.includes('%00') ? 400 : 404);
          expect(reply.headers['content-type'], path).toMatch(/^application\/json\b/);
          expect(reply.headers['cache-control'], path).toBe('no-store');
          expect(reply.json).not.toEqual({});
        }
    });
  });

  test('wire 1: a path that only begins like the service path is another path', async () => {
    const reply = await gateway.request({ path: '/authsvcs/Authorize/Token' });
    expect(reply.status).toBe(200);
    expect(gateway.upstream.requests.at(-1)?.url).toBe('/authsvcs/Authorize/Token');
  });

  test('wire 1: a known path with another method is 405 with Allow, and is never forwarded', async () => {
    await expectNothingForwarded(async () => {
      for (const [path, allow, others] of [
        ['/Authorize/Token', 'POST', ['GET', 'PUT', 'DELETE', 'PATCH', 'OPTIONS']],
        ['/Authorize/Certificate', 'POST', ['GET', 'PUT', 'DELETE', 'PATCH', 'OPTIONS']],
        ['/Authorize/Device', 'POST', ['GET', 'PUT', 'DELETE', 'PATCH', 'OPTIONS']],
        ['/Revoke/Token', 'GET', ['POST', 'PUT', 'DELETE', 'PATCH', 'OPTIONS']],
        ['/Authorize/Verify', 'GET, HEAD', ['POST', 'PUT', 'DELETE', 'PATCH', 'OPTIONS']],
      ] as const)
        for (const method of others) {
          const reply = await gateway.request({ path: `/authsvc${path}`, method });
          expect(reply.status, `${method} ${path}`).toBe(405);
          expect(reply.headers.allow).toBe(allow);
          expect(reply.json['Error']).toBe('invalid_request');
        }
    });
  });

  test('wire 1: HEAD gets the response of GET without a body', async () => {
    const { access_token } = await gateway.grant();
    const request = {
      path: '/authsvc/Authorize/Verify',
      headers: { authorization: `Bearer ${access_token}` },
    };
    const get = await gateway.request(request);
    const head = await gateway.request({ ...request, method: 'HEAD' });
    expect(head.status).toBe(200);
    expect(head.text).toBe('');
    expect(head.headers['content-length']).toBe(get.headers['content-length']);
    expect((await gateway.request({ path: '/authsvc/Authorize/Verify', method: 'HEAD' })).status).toBe(401);
  });

  test('wire 1: HEAD on Revoke is 405 and revokes nothing', async () => {
    const { access_token } = await gateway.grant();
    const headers = { authorization: `Bearer ${access_token}` };
    const reply = await gateway.request({ path: '/authsvc/Revoke/Token', method: 'HEAD', headers });
    expect(reply.status).toBe(405);
    expect(reply.headers.allow).toBe('GET');
    expect((await gateway.api('/files/1', access_token)).status).toBe(200);
  });

  test('wire 1: HEAD on the POST operations is 405', async () => {
    for (const path of ['/Authorize/Token', '/Authorize/Certificate', '/Authorize/Device'])
      expect((await gateway.request({ path: `/authsvc${path}`, method: 'HEAD' })).status).toBe(405);
  });

  test('wire 1: a prefetch changes nothing', async () => {
    const { access_token } = await gateway.grant();
    for (const prefetch of [
      { 'sec-purpose': 'prefetch' },
      { 'sec-purpose': 'prefetch;prerender' },
      { purpose: 'prefetch' },
    ]) {
      const headers = { authorization: `Bearer ${access_token}`, ...prefetch };
      expect((await gateway.request({ path: '/authsvc/Revoke/Token', headers })).status).toBe(400);
    }
    expect((await gateway.api('/files/1', access_token)).status).toBe(200);
  });
});

describe('responses', () => {
  test('wire 1: every response is JSON and has Cache-Control: no-store', async () => {
    const grant = await gateway.grant();
    const steps = createDeviceClient(gateway);
    const codes = await steps.requestCodes();
    const authorization = `Bearer ${grant.access_token}`;
    const replies = [
      await gateway.post(
        '/Authorize/Certificate',
        { client_id: 'report-runner', scope: 'files' },
        { as: gateway.users.alice },
      ),
      await gateway.post('/Authorize/Certificate', { client_id: 'report-runner', scope: 'files' }),
      await gateway.post('/Authorize/Certificate', {}),
      await gateway.post('/Authorize/Device', { client_id: 'report-runner', scope: 'files' }),
      await gateway.post('/Authorize/Device', {}),
      await steps.exchange(codes.device_code),
      await gateway.refresh(grant.refresh_token),
      await gateway.refresh('x'),
      await postToken('{'),
      await postToken(Buffer.alloc(20_000, 32)),
      await gateway.request({ path: '/authsvc/Authorize/Verify', headers: { authorization } }),
      await gateway.request({ path: '/authsvc/Authorize/Verify' }),
      await gateway.request({ path: '/authsvc/Revoke/Token', headers: { authorization } }),
      await gateway.request({ path: '/authsvc/Revoke/Token' }),
      await gateway.request({ path: '/authsvc/Revoke/Token', method: 'POST' }),
      await gateway.request({ path: '/authsvc/none' }),
    ];
    expect(new Set(replies.map(({ status }) => status))).toEqual(new Set([200, 400, 401, 404, 405, 413]));
    for (const { headers, status } of replies) {
      expect(headers['content-type'], String(status)).toBe('application/json; charset=utf-8');
      expect(headers['cache-control']).toBe('no-store');
    }
  });

  test('wire 1: Authorization is ignored on Authorize/Token, Authorize/Certificate and Authorize/Device', async () => {
    const { refresh_token, access_token } = await gateway.grant();
    gateway.clock.advance(3_700);
    for (const authorization of [
      `Bearer ${access_token}`,
      'Bearer stale',
      'Basic eDp5',
      'nonsense',
      'Bearer a, Bearer b',
    ])
      for (const reply of [
        await gateway.refresh(refresh_token),
        await gateway.post(
          '/Authorize/Token',
          { client_id: 'report-runner', refresh_token },
          { headers: { authorization } },
        ),
        await gateway.post(
          '/Authorize/Certificate',
          { client_id: 'report-runner', scope: 'files' },
          { headers: { authorization }, as: gateway.users.alice },
        ),
        await gateway.post(
          '/Authorize/Device',
          { client_id: 'report-runner', scope: 'files' },
          { headers: { authorization } },
        ),
      ])
        expect(reply.status, `${authorization}: ${reply.text}`).toBe(200);
  });

  test('wire 1: the reason phrase is a short ASCII form of the description', async () => {
    const reply = await gateway.post('/Authorize/Token', { refresh_token: 'x' });
    expect(reply.reason).toBe('client_id is required.');
    for (const scope of ['fıles:read', 'files:read\u0000', 'files\r\nX-Injected: 1', '💥', 'x'.repeat(4_000)]) {
      const reported = await gateway.post(
        '/Authorize/Certificate',
        { client_id: 'report-runner', scope },
        { as: gateway.users.alice },
      );
      expect(reported.status).toBe(400);
      expect(reported.reason).toMatch(/^[\x20-\x7e]{1,120}$/);
      expect(reported.headers).not.toHaveProperty('x-injected');
    }
  });

  test('wire 1: the reason phrase never contains a secret', async () => {
    const { refresh_token, access_token } = await gateway.grant();
    const cut = refresh_token.slice(0, -1);
    for (const reply of [await gateway.refresh(cut), await gateway.refresh(access_token)]) {
      expect(reply.reason).not.toContain(cut.slice(0, 20));
      expect(reply.reason).not.toContain(access_token.slice(0, 20));
    }
  });
});
