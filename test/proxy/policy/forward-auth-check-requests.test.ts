import { beforeAll, describe, expect, onTestFinished, test, vi } from 'vitest';
import { forwardedCertificateHeaders } from '../../support/forwarded-certificate.ts';
import { frameClient, requestFields } from '../../support/http2-frames.ts';
import { beginRequest } from '../../support/https-client.ts';
import { withForwardedCertificates, withSettings } from '../../support/reconfigure.ts';
import { ALICE } from '../../support/test-gateway.ts';
import { CHECK, type Headers, useForwardAuthGateway } from './forward-auth-gateway.ts';

const setUp = useForwardAuthGateway();
const {
  bearer,
  check,
  gateways: { nginx },
} = setUp;

test('no part of a check request is ever forwarded', async () => {
  await nginx('GET', '/files/a', bearer());
  await nginx('GET', '/nowhere', bearer());
  await check(bearer());
  expect(setUp.gateway.upstream.requests).toEqual([]);
});

test('path segments are compared case-insensitively, below every service path', async () => {
  const headers = { ...bearer(), 'x-original-method': 'GET', 'x-original-uri': '/files/a' };
  expect((await check(headers, { path: '/AuthSvc/CHECK' })).status).toBe(200);
  expect((await check(headers, { path: '/authsvc/check?from=nginx' })).status).toBe(200);
  expect((await check(headers, { path: '/authsvc/checked' })).status).toBe(404);
});

test('any method may be used, and a revoked token is rejected at once', async () => {
  const { access_token: ownToken } = await setUp.gateway.grant({ scope: 'files:read' });
  const headers = { ...bearer(ownToken), 'x-forwarded-method': 'GET', 'x-forwarded-uri': '/files/a' };
  for (const method of ['GET', 'HEAD', 'POST', 'PUT', 'DELETE', 'OPTIONS', 'PROPFIND'])
    expect((await check(headers, { method })).status, method).toBe(200);
  expect((await setUp.gateway.request({ path: '/authsvc/Revoke/Token', headers: bearer(ownToken) })).status).toBe(200);
  const after = await check(headers);
  expect(after.status).toBe(401);
  expect(after.headers['www-authenticate']).toContain('revoked');
});

test('a refused check about a gRPC call has an HTTP status, since 200 would allow the call', async () => {
  for (const type of [
    'application/grpc',
    'application/grpc+proto',
    'application/grpc-web',
    'application/grpc-web-text',
  ])
    for (const method of ['GET', 'POST']) {
      const fields: Headers = { 'content-type': type, 'x-original-method': 'POST', 'x-original-uri': '/files/a' };
      const { status, headers } = await check(fields, { method });
      expect([type, method, status, headers['grpc-status']]).toEqual([type, method, 401, undefined]);
      expect((await check({ ...fields, ...bearer() }, { path: '/authsvc/checked', method })).status).toBe(404);
    }
  const client = await frameClient(setUp.gateway.port, { ca: setUp.gateway.ca.pem });
  onTestFinished(() => client.destroy());
  for (const [path, status] of [
    [`${CHECK}/files.Service/Get`, 401],
    [`${CHECK}/../files.Service/Get`, 403],
    ['/authsvc/unknown.Service/Get', 404],
  ] as const) {
    const stream = client.post([...requestFields(path, 'POST'), ['content-type', 'application/grpc']], '');
    expect([path, await client.waitForOutcome(stream)]).toEqual([path, { status }]);
  }
});

test('two Authorization fields or two tokens are 403', async () => {
  expect(
    (await nginx('GET', '/health', { authorization: [`Bearer ${setUp.token}`, `Bearer ${setUp.token}`] })).status,
  ).toBe(403);
  expect(
    (await nginx('GET', '/files/a', { authorization: `Bearer ${setUp.token}, Bearer ${setUp.token}` })).status,
  ).toBe(403);
});

test('a check request with a malformed head is 403, and its connection is closed', async () => {
  const reply = await nginx('GET', '/health', { host: ['localhost', 'localhost'] });
  expect(reply.status).toBe(403);
  expect(reply.headers.connection).toBe('close');
});

describe('the body of a check request', () => {
  const headers = (): Headers => ({ ...bearer(), 'x-original-method': 'GET', 'x-original-uri': '/files/a' });

  test('is not needed for the response, and the connection serves the next check', async () => {
    for (let attempt = 0; attempt < 3; attempt += 1) {
      const reply = await check(headers(), { method: 'POST', body: 'x'.repeat(100_000) });
      expect(reply.status).toBe(200);
      expect(reply.headers.connection).not.toBe('close');
      const refused = await check({ ...headers(), authorization: 'Bearer no' }, { method: 'POST', body: 'x' });
      expect(refused.status).toBe(401);
    }
  });

  test('does not delay the response, and an endless body is cut off', async () => {
    const { sent, reply } = beginRequest({
      port: setUp.gateway.port,
      ca: setUp.gateway.ca.pem,
      path: CHECK,
      method: 'POST',
      headers: { ...headers(), 'content-length': '1000000000' },
    });
    const closed = new Promise<void>((resolve) => {
      sent.on('error', () => resolve()).on('close', () => resolve());
    });
    sent.write('the beginning');
    expect((await reply).status).toBe(200);
    await closed;
  });

  test('with Expect: 100-continue does not delay the decision', async () => {
    const reply = await check(
      { ...headers(), expect: '100-continue', 'content-length': '5' },
      { method: 'POST' },
    ).catch((error: unknown) => error);
    expect(reply).toMatchObject({ status: 200, headers: { connection: 'close' } });
  });
});

test('a peer that is not listed always gets the same 403, and the log names the setting', async () => {
  await setUp.gateway.reload(() => ({ ...setUp.defaultSettings, trustedProxies: ['192.0.2.0/24'] }));
  try {
    const before = setUp.gateway.log.length;
    const headers = { ...bearer(), 'x-original-method': 'GET', 'x-original-uri': '/health' };
    for (const path of [CHECK, `${CHECK}/health`, `${CHECK}/../x`, '/AUTHSVC/check']) {
      const reply = await check(headers, { path });
      expect(reply.status, path).toBe(403);
      expect(reply.json['error']).toBe('access_denied');
    }
    expect(
      setUp.gateway.log.slice(before).find(({ event }) => event === 'forward_auth_peer_not_trusted'),
    ).toMatchObject({
      level: 'warn',
      peer: '127.0.0.1',
      setting: 'trustedProxies',
    });
  } finally {
    await setUp.gateway.reload(() => setUp.defaultSettings);
  }
});

describe('a token bound to a certificate', () => {
  const ORIGINAL_REQUEST = { 'x-original-method': 'GET', 'x-original-uri': '/files/a' };
  let bound: Headers;
  beforeAll(async () => {
    bound = bearer((await setUp.gateway.grant({ clientId: 'bound-app' })).access_token);
  });

  test('does not work with the certificate of the connection, which is that of the gateway', async () => {
    const send = (as?: 'alice' | 'bob') =>
      setUp.gateway.request({
        path: CHECK,
        headers: { ...bound, ...ORIGINAL_REQUEST },
        ...(as && { as: setUp.gateway.users[as] }),
      });
    expect((await send('alice')).status).toBe(401);
    expect((await send('bob')).status).toBe(401);
    const none = await send();
    expect(none.status).toBe(401);
    expect(none.headers['www-authenticate']).toContain('bound to a certificate');
  });

  test('works with a certificate header in each supported format, from listed peers only', async () => {
    const certificateHeaders = forwardedCertificateHeaders(Buffer.from(setUp.gateway.users.alice.der));
    for (const [name, value] of certificateHeaders)
      expect((await check({ ...bound, ...ORIGINAL_REQUEST, [name]: value })).status, name).toBe(401);
    for (const [name, value] of certificateHeaders)
      await withSettings(setUp.gateway, withForwardedCertificates(name.toLowerCase() as 'client-cert'), async () =>
        expect((await check({ ...bound, ...ORIGINAL_REQUEST, [name]: value })).status, name).toBe(200),
      );
    await withSettings(setUp.gateway, withForwardedCertificates(), async () => {
      const [[name, value] = ['', '']] = certificateHeaders;
      expect((await check({ ...bound, ...ORIGINAL_REQUEST, [name]: [value, value] })).status).toBe(403);
      expect((await check({ ...bound, ...ORIGINAL_REQUEST, Client_Cert: value })).status).toBe(403);
      expect((await check({ ...bound, ...ORIGINAL_REQUEST, 'Client.Cert': value, [name]: value })).status).toBe(403);
      // The certificate of the gateway does not identify its client.
      const reply = await setUp.gateway.request({
        path: CHECK,
        headers: { ...bound, ...ORIGINAL_REQUEST },
        as: setUp.gateway.users.alice,
      });
      expect(reply.status).toBe(401);
    });
  });
});

test('the identity headers have the configured names', async () => {
  await setUp.gateway.reload(() => ({
    ...setUp.defaultSettings,
    headers: { user: 'Remote-User', clientId: 'Remote-Client', scope: 'Remote-Scope' },
  }));
  try {
    const { headers } = await nginx('GET', '/files/a', bearer());
    expect(headers).toMatchObject({
      'remote-user': ALICE,
      'remote-client': 'report-runner',
      'remote-scope': 'files:read',
    });
    expect(headers['x-forwarded-user']).toBeUndefined();
    expect((await nginx('GET', '/health', {})).headers).toMatchObject({ 'remote-user': '' });
  } finally {
    await setUp.gateway.reload(() => setUp.defaultSettings);
  }
});

test('an internal error is 503 and never 200', async () => {
  const failing = vi.spyOn(setUp.gateway.server.store.revocations, 'isRevoked').mockImplementation(() => {
    throw new Error('the map is gone');
  });
  try {
    const reply = await nginx('GET', '/files/a', bearer());
    expect(reply.status).toBe(503);
    expect(reply.headers['retry-after']).toBe('1');
    expect(reply.headers['x-forwarded-user']).toBeUndefined();
  } finally {
    failing.mockRestore();
  }
});
