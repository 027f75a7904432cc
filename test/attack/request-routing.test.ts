import { connect } from 'node:http2';
import { expect, test } from 'vitest';
import { parseRawResponse } from '../support/raw-client.ts';
import { useAttackGateway } from './attack-gateway.ts';

const attack = useAttackGateway((settings) => ({
  ...settings,
  routes: [
    { path: '/admin/**', requires: 'reports:write' },
    { path: '/**', host: 'api.test', public: true },
    { path: '/**', public: true, encodedSlash: true },
  ],
}));

/** Sends the bytes on a new connection and returns everything received until the gateway closes it. */
async function sendUntilClosed(bytes: string): Promise<string> {
  const client = await attack.client();
  try {
    client.send(bytes);
    return await client.closed();
  } finally {
    client.destroy();
  }
}

test('a request to the token service is never forwarded, not even in absolute form with another served host', async () => {
  const response = await sendUntilClosed(
    'GET http://api.test/authsvc/Authorize/Verify HTTP/1.1\r\nHost: api.test\r\nConnection: close\r\n\r\n',
  );
  expect(parseRawResponse(response).status).toBe(401);
  expect(attack.upstream.bytes()).toBe('');
  await attack.expectHealthy();
});

test.each(['/other', '/authsvc/oauth2/jwks'])(
  'an authority whose port is not from 1 to 65535 is refused for %s, on every protocol and in absolute form',
  async (path) => {
    const statuses: Record<string, number> = {};
    const session = connect(`https://localhost:${attack.gateway.port}`, { ca: attack.gateway.ca.pem });
    const requestOverHttp2 = async (authority: string): Promise<number> => {
      const { promise, resolve, reject } = Promise.withResolvers<number>();
      const stream = session.request({ ':path': path, ':authority': authority });
      stream.once('response', (headers) => resolve(Number(headers[':status'])));
      stream.once('error', reject);
      return promise.finally(() => stream.close());
    };
    for (const port of ['99999', '65536', '70000', '0', '00', '65535']) {
      const authority = `api.test:${port}`;
      for (const target of [path, `http://${authority}${path}`, `https://${authority}${path}`]) {
        const response = await sendUntilClosed(
          `GET ${target} HTTP/1.1\r\nHost: ${authority}\r\nConnection: close\r\n\r\n`,
        );
        statuses[`${target} ${port}`] = parseRawResponse(response).status;
      }
      statuses[`HTTP/2 ${port}`] = await requestOverHttp2(authority);
    }
    session.close();
    for (const [request, status] of Object.entries(statuses))
      expect([request, status]).toEqual([request, request.endsWith(' 65535') ? 200 : 400]);
    expect(attack.upstream.bytes()).not.toMatch(/:(?:99999|65536|70000|0+)\b/);
    await attack.expectHealthy();
  },
);

test('P04 a request with %2F does not bypass the rule of its path by matching a laxer rule after it', async () => {
  for (const path of ['/admin/x%2Fy', '/admin%2Fx', '/admin/%2F'])
    expect([path, (await attack.gateway.api(path)).status]).toEqual([path, 400]);
  expect(attack.upstream.bytes()).toBe('');
  expect((await attack.gateway.api('/other/x%2Fy')).status).toBe(200);
  await attack.expectHealthy();
});

test('H19 a request pipelined after one that closes the connection is not processed', async () => {
  const second = 'GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n';
  for (const first of [
    'GET /a/../b HTTP/1.1\r\nHost: localhost\r\n\r\n',
    'POST /a/../b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nok',
    'GET /health HTTP/1.1\r\nHost: localhost\r\nExpect: the-unexpected\r\n\r\n',
  ]) {
    const response = await sendUntilClosed(first + second);
    expect(response).toMatch(/^HTTP\/1\.1 4(?:00|17) /);
    expect(response.match(/HTTP\/1\.1/g)).toHaveLength(1);
  }
  expect(attack.upstream.bytes()).toBe('');
  await attack.expectHealthy();
});

test('an upstream cannot set the session cookie of gatehouse in any spelling', async () => {
  attack.upstream.respondWith((socket) => {
    const cookies = [
      '__Host-gatehouse=a',
      ' __Host-gatehouse =a; Path=/',
      '=__Host-gatehouse=a',
      '__Host-gatehouse',
      'other=__Host-gatehouse',
    ];
    socket.write(
      `HTTP/1.1 200 OK\r\n${cookies.map((cookie) => `Set-Cookie: ${cookie}\r\n`).join('')}Content-Length: 0\r\n\r\n`,
    );
  });
  const { head } = await attack.request({ line: 'GET /public/a HTTP/1.1', token: null });
  expect(head.match(/set-cookie:[^\r]*/gi)).toEqual(['Set-Cookie: other=__Host-gatehouse']);
  await attack.expectHealthy();
});
