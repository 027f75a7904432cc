import { describe, expect, test } from 'vitest';
import { APP, WEB, withCodeClients } from '../support/code-client.ts';
import { createOAuthClient, refusal } from '../support/oauth-client.ts';
import { expectInvalidRequestPage, useCodeGateway } from './code-gateway.ts';

/** Attempts to have an authorization response sent to another site. */
const LOOPBACKS = ['http://127.0.0.1/callback', 'http://[::1]/callback', 'http://localhost/callback?a=1'];
const at = useCodeGateway((settings) => ({
  ...withCodeClients(settings),
  integrations: [
    ...(withCodeClients(settings).integrations ?? []),
    { ...APP, clientId: 'native', redirectUris: [...LOOPBACKS, 'com.example.app:/callback'] },
  ],
}));

describe('a redirect URI that is not registered is refused on a page', () => {
  test.each([
    // The port rule of loopback addresses (RFC 8252 §7.3).
    ['user information before a loopback address', 'http://127.0.0.1:80@evil.example.test/callback'],
    ['user information with a loopback address as name', 'http://127.0.0.1@evil.example.test/callback'],
    ['a port with user information', 'http://127.0.0.1:1@evil.example.test:80/callback'],
    ['a password', 'http://user:password@127.0.0.1/callback'],
    ['a port that is not a number', 'http://127.0.0.1:80.evil.example.test/callback'],
    ['port 0', 'http://127.0.0.1:0/callback'],
    ['a port beyond 65535', 'http://127.0.0.1:65536/callback'],
    ['a port with a leading zero', 'http://127.0.0.1:080/callback'],
    ['an empty port', 'http://127.0.0.1:/callback'],
    ['a negative port', 'http://127.0.0.1:-1/callback'],
    ['another loopback address', 'http://127.0.0.2/callback'],
    ['the short form of the address', 'http://127.1/callback'],
    ['the decimal form of the address', 'http://2130706433/callback'],
    ['the octal form of the address', 'http://0177.0.0.1/callback'],
    ['the mapped address', 'http://[::ffff:127.0.0.1]/callback'],
    ['the long form of ::1', 'http://[0:0:0:0:0:0:0:1]/callback'],
    ['an IPv6 zone', 'http://[::1%25eth0]/callback'],
    ['an IPv6 address without brackets', 'http://::1/callback'],
    ['localhost with a domain', 'http://localhost.evil.example.test/callback?a=1'],
    ['localhost with a final dot', 'http://localhost.:80/callback?a=1'],
    ['localhost in capitals', 'http://LOCALHOST/callback?a=1'],
    ['the query of another entry', 'http://127.0.0.1:1/callback?a=1'],
    ['a longer query', 'http://localhost:1/callback?a=1&b=2'],
    ['https with the loopback address', 'https://127.0.0.1/callback'],
    ['another path', 'http://127.0.0.1:1/callback/../evil'],
    ['an encoded path', 'http://127.0.0.1:1/%63allback'],
    ['a fragment', 'http://127.0.0.1:1/callback#x'],
    ['an empty fragment', 'http://127.0.0.1:1/callback#'],
    ['a backslash', 'http://127.0.0.1:1\\@evil.example.test/callback'],
    ['a tab', 'http://127.0.0.1:1\t/callback'],
    ['a line break', 'http://127.0.0.1:1/callback\r\nlocation: https://evil.example.test/'],
    ['a line feed before the end', 'http://127.0.0.1:1/callback\n'],
    ['a null character', 'http://127.0.0.1:1/callback\0'],
    ['a leading space', ' http://127.0.0.1:1/callback'],
    // Private-use schemes (§7.1).
    ['a scheme in capitals', 'COM.EXAMPLE.APP:/callback'],
    ['an authority after the scheme', 'com.example.app://evil.example.test/callback'],
    ['two slashes', 'com.example.app://callback'],
    ['a longer scheme', 'com.example.apps:/callback'],
    ['a script', 'javascript:alert(1)//com.example.app:/callback'],
    ['a data URL', 'data:text/html,com.example.app:/callback'],
    ['a relative URL', '/callback'],
    ['a URL without scheme', '//evil.example.test/callback'],
  ])('%s', async (what, redirect_uri) => {
    const flow = at.start();
    expectInvalidRequestPage(await flow.authorize({ client_id: 'native', redirect_uri }), what);
    expect(
      await createOAuthClient(at.gateway).post('par', flow.parameters({ client_id: 'native', redirect_uri })),
    ).toMatchObject(refusal('invalid_request'));
  });

  test.each(['http://127.0.0.1:1/callback', 'http://[::1]:65535/callback', 'http://localhost:8080/callback?a=1'])(
    '%s is accepted, and must be the same at the token endpoint, with its port',
    async (redirect_uri) => {
      const flow = at.start();
      const code = await flow.obtainCode({ client_id: 'native', redirect_uri });
      const exchange = (uri: string) => flow.exchange(code, { client_id: 'native', redirect_uri: uri });
      expect(await exchange(redirect_uri.replace(/:[0-9]+\/callback/, ':2/callback'))).toMatchObject(
        refusal('invalid_grant'),
      );
      expect((await exchange(redirect_uri)).status).toBe(200);
    },
  );
});

describe('before client and redirect URI are known to be valid, no parameter leads anywhere', () => {
  const evil = 'https://evil.example.test/callback';
  test.each<[string, (query: URLSearchParams) => void]>([
    ['an unknown client', (query) => query.set('client_id', 'nobody')],
    ['two clients', (query) => query.append('client_id', 'web')],
    ['two redirect URIs', (query) => query.append('redirect_uri', evil)],
    ['the redirect URI of another client', (query) => query.set('redirect_uri', WEB.redirectUris?.[0] ?? '')],
    [
      'an unknown client with a valid redirect URI and an error',
      (query) => {
        query.set('client_id', 'nobody');
        query.set('prompt', 'none');
      },
    ],
    ['a client in another letter case', (query) => query.set('client_id', 'APP')],
    ['a client with a null character', (query) => query.set('client_id', 'app\0')],
    ['a request_uri of another site', (query) => query.set('request_uri', `${evil}/request.jwt`)],
    [
      'two request URIs',
      (query) => {
        query.append('request_uri', 'urn:x');
        query.append('request_uri', 'urn:y');
      },
    ],
    ['a method of an object', (query) => query.set('client_id', '__proto__')],
  ])('%s', async (what, change) => {
    const flow = at.start();
    const query = new URLSearchParams(flow.parameters());
    change(query);
    for (const name of ['iss', 'error', 'error_uri', 'post_logout_redirect_uri', 'next', 'request'])
      query.set(name, evil);
    const page = await flow.authorize(query.toString());
    expectInvalidRequestPage(page, what);
    expect(page.text).not.toMatch(/href="(?:https?:)?\/\/evil/);
    expect(page.headers['set-cookie']).toBeUndefined();
  });

  test('a malformed query is refused on a page', async () => {
    const flow = at.start();
    for (const query of [
      'client_id=%zz',
      'client_id=%ff',
      '%',
      `${new URLSearchParams(flow.parameters()).toString()}&x=%e2%28`,
    ])
      expectInvalidRequestPage(await flow.authorize(query), query);
  });
});
