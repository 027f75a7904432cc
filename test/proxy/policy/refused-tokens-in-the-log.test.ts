import { connect as connectHttp2 } from 'node:http2';
import { text as readText } from 'node:stream/consumers';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { startGateway, type TestGateway } from '../../support/test-gateway.ts';
import { until } from '../../support/until.ts';

type Send = (gateway: TestGateway, path: string, token: string) => Promise<number>;

const overHttp1: Send = async (gateway, path, token) => (await gateway.api(path, token)).status;

const overHttp2: Send = async (gateway, path, token) => {
  const session = connectHttp2(`https://localhost:${gateway.port}`, { ca: gateway.ca.pem });
  try {
    const sent = session.request({ ':path': path, authorization: `Bearer ${token}` });
    const status = new Promise<number>((resolve) => sent.on('response', ({ ':status': code = 0 }) => resolve(code)));
    await readText(sent);
    return await status;
  } finally {
    session.destroy();
  }
};

const byForwardAuth: Send = async (gateway, path, token) => {
  const headers = {
    authorization: `Bearer ${token}`,
    'x-forwarded-method': 'GET',
    'x-forwarded-host': 'localhost',
    'x-forwarded-uri': path,
  };
  return (await gateway.request({ path: '/authsvc/check', headers })).status;
};

/** An operator looks up the grant of a refused token. */
describe.each([
  ['HTTP/1.1', overHttp1],
  ['HTTP/2', overHttp2],
  ['forward-auth', byForwardAuth],
] as const)('%s', (_name, send) => {
  let gateway: TestGateway;
  beforeAll(async () => {
    gateway = await startGateway((settings) => ({
      ...settings,
      trustedProxies: ['127.0.0.1'],
      routes: [
        ...(settings.routes ?? []),
        { path: '/other-api/**', requires: 'files:read', audience: 'https://other.example.test' },
        { path: '/report-only/**', requires: 'files:read', reportOnly: true },
      ],
    }));
  });
  afterAll(() => gateway?.close());

  test('the log line of a refused token has its grant and client, but not the token', async () => {
    const grant = await gateway.grant();
    const { access_token: token } = grant;
    expect(await send(gateway, '/files/1', token)).toBe(200);
    const findLine = (reason: string) =>
      until(`a line with ${reason}`, () =>
        gateway.log.find((line) => line.event === 'request' && line['reason'] === reason),
      );
    const forwarded = await until('the request is logged', () =>
      gateway.log.find((line) => line.event === 'request' && line['grant'] !== undefined),
    );
    const { grant: grantId, client } = forwarded;
    const expected = { grant: grantId, client };
    expect(expected).toEqual({ grant: expect.any(String), client: expect.any(String) });
    gateway.clearLog();

    expect(await send(gateway, '/other-api/1', token)).toBe(401);
    expect(await findLine('token_wrong_audience')).toMatchObject({ decision: 'refused', ...expected });
    expect((await gateway.api('/authsvc/Revoke/Token', token)).status).toBe(200);
    gateway.clearLog();
    expect(await send(gateway, '/files/1', token)).toBe(401);
    const revoked = await findLine('token_revoked');
    expect(revoked).toMatchObject({ decision: 'refused', ...expected });
    // Nothing was proved about the caller.
    expect(revoked).not.toHaveProperty('identity');
    gateway.clearLog();
    expect(await send(gateway, '/report-only/1', token)).toBe(200);
    expect(await findLine('token_revoked')).toMatchObject({ decision: 'would_refuse', ...expected });
    expect(gateway.logLines.join('')).not.toContain(token.slice(-20));
  });
});
