import { describe, expect, test } from 'vitest';
import { ISSUER, readResponse } from '../support/code-client.ts';
import { createOAuthClient, refusal } from '../support/oauth-client.ts';
import { startGateway } from '../support/test-gateway.ts';
import { useCodeGateway } from './code-gateway.ts';

const at = useCodeGateway();

describe('metadata', () => {
  test('has the endpoints, and the iss of a response is the issuer whose metadata names the endpoint', async () => {
    const read = async (path: string) =>
      (await at.gateway.request({ path: `/.well-known/oauth-authorization-server${path}` })).json;
    expect(await read('')).toMatchObject({
      issuer: ISSUER,
      authorization_endpoint: `${ISSUER}/authsvc/oauth2/authorize`,
      pushed_authorization_request_endpoint: `${ISSUER}/authsvc/oauth2/par`,
      response_types_supported: ['code'],
      response_modes_supported: ['query'],
      code_challenge_methods_supported: ['S256'],
      authorization_response_iss_parameter_supported: true,
      grant_types_supported: expect.arrayContaining(['authorization_code']),
    });
    const { issuer, authorization_endpoint: endpoint } = await read('/authsvc');
    const flow = at.start();
    const url = new URL(String(endpoint));
    for (const [name, value] of Object.entries(flow.parameters({ prompt: 'none' }))) url.searchParams.set(name, value);
    const response = readResponse(await flow.browser.get(url.href));
    expect(response.searchParams.get('iss')).toBe(issuer);
    const other = await flow.authorize({ prompt: 'none', issuer_path: '.evil.example.test' });
    expect(readResponse(other).searchParams.get('iss')).toBe(ISSUER);
  });

  test('has none of them where no integration allows authorization codes, and the endpoint is not found', async () => {
    await using plain = { gateway: await startGateway(), [Symbol.asyncDispose]: () => plain.gateway.close() };
    const { json } = await plain.gateway.request({ path: '/.well-known/oauth-authorization-server' });
    expect(json).toMatchObject({ response_types_supported: [] });
    expect(json).not.toHaveProperty('authorization_endpoint');
    expect((await plain.gateway.request({ path: '/authsvc/oauth2/authorize?client_id=app' })).status).toBe(404);
    const reply = await createOAuthClient(plain.gateway).post('token', {
      grant_type: 'authorization_code',
      code: 'x',
    });
    expect(reply).toMatchObject(refusal('unsupported_grant_type'));
  });
});

describe('apps in browsers', () => {
  const preflight = (path: string, origin: string) =>
    at.gateway.request({
      path,
      method: 'OPTIONS',
      headers: { origin, 'access-control-request-method': 'POST', 'access-control-request-headers': 'dpop' },
    });

  test.each(['/authsvc/oauth2/token', '/authsvc/oauth2/par', '/authsvc/oauth2/revoke'])(
    'may call %s from the origin of a redirect URI, and from no other',
    async (path) => {
      for (const origin of ['https://app.example.test', 'http://127.0.0.1:5173']) {
        const reply = await preflight(path, origin);
        expect([reply.status, reply.headers['access-control-allow-origin']]).toEqual([204, origin]);
        expect(reply.headers['access-control-allow-credentials']).toBeUndefined();
        const posted = await at.gateway.request({ path, method: 'POST', headers: { origin } });
        expect(posted.headers).toMatchObject({ 'access-control-allow-origin': origin, vary: 'Origin' });
      }
      for (const origin of [
        'https://evil.example.test',
        'https://app.example.test.evil.test',
        'null',
        'http://localhost:5173',
      ])
        expect((await preflight(path, origin)).headers['access-control-allow-origin']).toBeUndefined();
    },
  );

  test('may read metadata, and not the pages', async () => {
    const origin = 'https://app.example.test';
    for (const path of [
      '/.well-known/oauth-authorization-server',
      '/.well-known/oauth-protected-resource',
      '/authsvc/oauth2/jwks',
    ]) {
      const reply = await at.gateway.request({ path, headers: { origin } });
      expect([reply.status, reply.headers['access-control-allow-origin']]).toEqual([200, origin]);
    }
    for (const path of ['/authsvc/device', '/authsvc/oauth2/authorize', '/authsvc/oauth2/introspect'])
      expect(
        (await at.gateway.request({ path, headers: { origin } })).headers['access-control-allow-origin'],
      ).toBeUndefined();
  });
});
