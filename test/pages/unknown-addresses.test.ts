import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { withSettings } from '../support/reconfigure.ts';
import { startGateway, type TestGateway } from '../support/test-gateway.ts';

const ACCEPT = 'text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8';
/** As browsers send it when a person opens an address. */
const BROWSER = {
  accept: ACCEPT,
  'accept-language': 'en-GB,en;q=0.9',
  'sec-fetch-site': 'none',
  'sec-fetch-mode': 'navigate',
  'sec-fetch-dest': 'document',
};

const AUTHORIZE = '/authsvc/oauth2/authorize?response_type=code&client_id=report-runner';
const NO_ENDPOINT = 'No such endpoint of the token service.';
const TOKEN_API_ERROR = `{"Error":"not_found","Error_description":"${NO_ENDPOINT}"}`;
const OAUTH_ERROR = `{"error":"not_found","error_description":"${NO_ENDPOINT}"}`;
const ADDRESSES = [
  ['/authsvc', TOKEN_API_ERROR],
  ['/authsvc/nope', TOKEN_API_ERROR],
  // Pages, but only below /authsvc/device.
  ['/authsvc/grants', TOKEN_API_ERROR],
  ['/authsvc/oauth2/nope', OAUTH_ERROR],
] as const;

let gateway: TestGateway;
beforeAll(async () => {
  gateway = await startGateway();
});
afterAll(() => gateway?.close());

describe.each(ADDRESSES)('%s', (path, error) => {
  test('a person who opens it in a browser gets a page', async () => {
    const page = await gateway.request({ path, headers: BROWSER });
    expect([page.status, page.headers['content-type']]).toEqual([404, 'text/html; charset=utf-8']);
    expect(page.headers['cache-control']).toBe('no-store');
    expect(page.headers['content-security-policy']).toMatch(/^default-src 'none'; style-src 'sha256-/);
    expect(page.headers['set-cookie']).toBeUndefined();
    expect(page.text).toContain('<h1>Page not found</h1>');
    const german = await gateway.request({ path, headers: { ...BROWSER, 'accept-language': 'de' } });
    expect(german.text).toContain('<h1>Seite nicht gefunden</h1>');
  });

  test.each([
    ['no Accept', 'GET', {}],
    ['curl', 'GET', { accept: '*/*' }],
    ['a JSON client', 'GET', { accept: 'application/json' }],
    ['a client that prefers JSON', 'GET', { accept: 'application/json, text/html;q=0.9' }],
    ['a script of a page', 'GET', { ...BROWSER, 'sec-fetch-mode': 'cors', 'sec-fetch-dest': 'empty' }],
    ['a form', 'POST', { ...BROWSER, 'content-type': 'application/x-www-form-urlencoded' }],
  ])('other clients get JSON: %s', async (_what, method, headers) => {
    const reply = await gateway.request({ method, path, headers });
    expect([reply.status, reply.headers['content-type']]).toEqual([404, 'application/json; charset=utf-8']);
    expect(reply.text).toBe(error);
  });
});

test('the endpoints of the token API respond to browsers as to other clients', async () => {
  for (const path of ['/authsvc/Authorize/Token', '/authsvc/Revoke/Token', '/authsvc/oauth2/jwks']) {
    const [browser, other] = await Promise.all([
      gateway.request({ path, headers: BROWSER }),
      gateway.request({ path }),
    ]);
    expect(browser.headers['content-type']).toMatch(/^application\/(?:jwk-set\+)?json/);
    expect([browser.status, browser.text]).toEqual([other.status, other.text]);
  }
});

describe('an authorization link where no integration has the code grant', () => {
  test('a person gets a page that says whom to contact', async () => {
    const page = await gateway.request({ path: AUTHORIZE, headers: BROWSER });
    expect([page.status, page.headers['content-type']]).toEqual([400, 'text/html; charset=utf-8']);
    expect(page.text).toContain('This app isn’t registered with this service');
    expect(page.text).toMatch(/Request ID: \S+/);
  });

  test('other clients get JSON', async () => {
    const reply = await gateway.request({ path: AUTHORIZE });
    expect([reply.status, reply.text]).toEqual([404, OAUTH_ERROR]);
  });
});

test('the same applies to a separate host of the pages', async () => {
  const withPagesHost = {
    publicUrl: 'https://api.example.test',
    pages: { url: 'https://login.example.test' },
  };
  await withSettings(
    gateway,
    (settings) => ({ ...settings, ...withPagesHost }),
    async () => {
      const open = (path: string, host: string) =>
        gateway.request({ path, headers: { ...BROWSER, host: `${host}.example.test` } });
      for (const host of ['api', 'login']) {
        const page = await open('/authsvc/nope', host);
        expect([host, page.status, page.text.includes('<h1>Page not found</h1>')]).toEqual([host, 404, true]);
      }
      const redirected = await open(AUTHORIZE, 'api');
      expect(redirected.headers['location']).toBe(`https://login.example.test${AUTHORIZE}`);
      expect((await open(AUTHORIZE, 'login')).text).toContain('This app isn’t registered with this service');
      const json = await gateway.request({ path: '/authsvc/nope', headers: { host: 'login.example.test' } });
      expect([json.status, json.json['error']]).toEqual([421, 'misdirected_request']);
    },
  );
});
