import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { createProtocolClients, PROTOCOLS, type ProtocolClients } from '../support/protocols.ts';
import { withSettings } from '../support/reconfigure.ts';
import { type SettingsChange, startGateway, type TestGateway } from '../support/test-gateway.ts';

/** As Chromium and Firefox send it when they navigate. */
const BROWSER = {
  accept: 'text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8',
  'accept-language': 'en-GB,en;q=0.9',
};

let gateway: TestGateway;
let clients: ProtocolClients;
beforeAll(async () => {
  gateway = await startGateway();
  clients = createProtocolClients(gateway);
});
afterAll(async () => {
  clients?.close();
  await gateway?.close();
});

const reconfigure = (change: Parameters<TestGateway['reload']>[0]): Promise<void> => gateway.reload(change);

describe.each(PROTOCOLS)('%s', (protocol) => {
  const get = (headers: Readonly<Record<string, string>> = BROWSER, target = '/') =>
    clients.send(protocol, { path: target, headers });
  /** What differs from request to request. */
  const comparable = ({ status, headers, text }: Awaited<ReturnType<typeof get>>) => {
    const { date: _date, 'x-request-id': id, ...rest } = headers;
    return { status, headers: rest, text: text.replaceAll(String(id), '…') };
  };

  test('a browser without a token gets a page that leads to the pages for people', async () => {
    const page = await get();
    expect(page.status).toBe(401);
    expect(page.headers['content-type']).toBe('text/html; charset=utf-8');
    expect(page.headers['content-length']).toBe(String(Buffer.byteLength(page.text)));
    expect(page.headers['vary']).toBe('Accept, Accept-Language');
    expect(page.headers['cache-control']).toBe('no-store');
    expect(page.headers['content-security-policy']).toMatch(/^default-src 'none'; style-src 'sha256-/);
    expect(page.headers['www-authenticate']).toMatch(/^Bearer realm="gatehouse"/);
    expect(page.headers['set-cookie']).toBeUndefined();
    expect(page.text).toContain('<h1>This is an API</h1>');
    expect(page.text).toContain('href="/authsvc/device"');
    expect(page.text).toContain('href="/authsvc/device/grants"');
    expect(page.text).not.toMatch(/\d+\.\d+\.\d+|node|upstream|files|reports/i);
  });

  test('the page is in the language of the browser, and the links keep a selected one', async () => {
    const french = await get({ ...BROWSER, 'accept-language': 'fr-CA, en;q=0.5' });
    expect(french.text).toContain('<html lang="fr">');
    expect(french.text).toContain('Ceci est une API');
    const selected = await get(BROWSER, '/?language=es');
    expect(selected.text).toContain('Esto es una API');
    expect(selected.text).toContain('href="/authsvc/device?language=es"');
    expect((await get(BROWSER, '/?language=__proto__')).text).toContain('This is an API');
  });

  test.each([
    ['no Accept', {}],
    ['curl', { accept: '*/*' }],
    ['a JSON client', { accept: 'application/json' }],
    ['a client that prefers JSON', { accept: 'text/html;q=0.8, application/json' }],
    ['a client that refuses HTML', { accept: 'text/html;q=0, */*' }],
    ['a malformed weight', { accept: 'text/html;q=x' }],
    ['a very long Accept', { accept: `text/html${',*/*'.repeat(200)}` }],
  ] as const)('clients of the API get JSON: %s', async (_what, headers) => {
    const reply = await get(headers);
    expect([reply.status, reply.headers['content-type']]).toEqual([401, 'application/json; charset=utf-8']);
    expect(JSON.parse(reply.text)).toMatchObject({ error: 'unauthorized' });
    expect(reply.headers['vary']).toBeUndefined();
  });

  test.each([
    ['POST', '/', BROWSER, 401],
    ['HEAD', '/', BROWSER, 401],
    ['GET', '/files/1', BROWSER, 401],
    ['GET', '/nothing', BROWSER, 401],
    ['GET', '/', { ...BROWSER, authorization: 'Bearer wrong' }, 401],
    ['GET', '/?access_token=x', BROWSER, 400],
  ] as const)('other requests get JSON: %s %s', async (method, target, headers, status) => {
    const reply = await clients.send(protocol, { method, path: target, headers });
    expect([reply.status, reply.headers['content-type']]).toEqual([status, 'application/json; charset=utf-8']);
  });

  test('a valid token gets 404 as JSON', async () => {
    const { access_token: token } = await gateway.grant();
    const reply = await get({ ...BROWSER, authorization: `Bearer ${token}` });
    expect([reply.status, JSON.parse(reply.text).error]).toEqual([404, 'not_found']);
  });

  describe('with a route for /', () => {
    beforeEach(() => reconfigure((settings) => settings));

    test('a public route is forwarded', async () => {
      await reconfigure((settings) => ({
        ...settings,
        routes: [{ path: '/', public: true }, ...(settings.routes ?? [])],
      }));
      const before = gateway.upstream.requests.length;
      const reply = await get();
      expect(reply.status).toBe(200);
      expect(reply.text).not.toContain('This is an API');
      expect(gateway.upstream.requests).toHaveLength(before + 1);
      await reconfigure((settings) => ({
        ...settings,
        routes: (settings.routes ?? []).filter((route) => route.path !== '/'),
      }));
    });

    test('a route that requires a token is not revealed, and is forwarded with one', async () => {
      const without = comparable(await get());
      await reconfigure((settings) => ({
        ...settings,
        routes: [
          { path: '/', requires: 'any-token', cors: { origins: ['https://app.example.test'] } },
          ...(settings.routes ?? []),
        ],
      }));
      expect(comparable(await get())).toEqual(without);
      const { access_token: token } = await gateway.grant();
      const allowed = await get({ ...BROWSER, authorization: `Bearer ${token}` });
      expect(allowed.status).toBe(200);
      await reconfigure((settings) => ({
        ...settings,
        routes: (settings.routes ?? []).filter((route) => route.path !== '/'),
      }));
    });
  });
});

test('pages that are disabled are not linked', async () => {
  const fetchRoot = async (): Promise<string> => (await clients.send('HTTP/1.1', { path: '/', headers: BROWSER })).text;
  await reconfigure((settings) => ({
    ...settings,
    pages: { myGrants: false },
    device: { enabled: false },
  }));
  const page = await fetchRoot();
  expect(page).toContain('This is an API');
  expect(page).not.toContain('/authsvc/device');
  await reconfigure(({ pages: _pages, device: _device, ...settings }) => settings);
  expect(await fetchRoot()).toContain('/authsvc/device/grants');
});

test('a device is not offered where no integration has the device grant', async () => {
  const withoutDevice: SettingsChange = (settings) => ({
    ...settings,
    integrations: (settings.integrations ?? []).map((integration) => ({
      ...integration,
      grants: ['certificate'],
    })),
  });
  const open = (path: string) => gateway.request({ path, headers: BROWSER });
  await withSettings(gateway, withoutDevice, async () => {
    const root = await open('/');
    expect(root.text).not.toContain('Connect a device');
    expect(root.text).not.toContain('href="/authsvc/device"');
    expect(root.text).toContain('href="/authsvc/device/grants"');
    const device = await open('/authsvc/device');
    expect([device.status, device.text.includes('<h1>Page not found</h1>')]).toEqual([404, true]);
    expect(device.text).toContain('<a class="button second" href="/authsvc/device/grants">Start again</a>');
  });
  const withoutPages: SettingsChange = (settings) => ({
    ...withoutDevice(settings),
    pages: { myGrants: false },
  });
  await withSettings(gateway, withoutPages, async () => {
    const device = await open('/authsvc/device');
    expect(device.status).toBe(404);
    expect(device.text).not.toContain('Start again');
  });
  expect((await open('/authsvc/device')).text).toContain('<h1>Connect a device</h1>');
});

test('on a separate host of the pages, the page says so, and that of the API links there', async () => {
  await reconfigure((settings) => ({
    ...settings,
    publicUrl: 'https://api.example.test',
    pages: { url: 'https://login.example.test' },
  }));
  const fetchRoot = (host: string) => gateway.request({ path: '/', headers: { ...BROWSER, host } });
  const pages = await fetchRoot('login.example.test');
  expect([pages.status, pages.headers['content-type']]).toEqual([421, 'text/html; charset=utf-8']);
  expect(pages.text).toContain('<h1>Devices and apps</h1>');
  expect(pages.text).toContain('href="https://login.example.test/authsvc/device"');
  const api = await fetchRoot('api.example.test');
  expect(api.text).toContain('<h1>This is an API</h1>');
  expect(api.text).toContain('href="https://login.example.test/authsvc/device/grants"');
  // An API client on the wrong host learns what it learned before.
  const json = await gateway.request({ path: '/', headers: { host: 'login.example.test' } });
  expect([json.status, json.json['error']]).toEqual([421, 'misdirected_request']);
});
