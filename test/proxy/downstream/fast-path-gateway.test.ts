import { afterEach, expect, test } from 'vitest';
import { connectRawTls, isCompleteResponse, parseRawResponse } from '../../support/raw-client.ts';
import { type SettingsChange, startGateway, type TestGateway } from '../../support/test-gateway.ts';

/** The fast path in a complete gateway. */
const gateways: TestGateway[] = [];
afterEach(async () => {
  while (gateways.length > 0) await gateways.pop()?.close();
});

async function startFastPathGateway(change: SettingsChange = (settings) => settings): Promise<TestGateway> {
  const gateway = await startGateway((settings) =>
    change({ ...settings, listen: { ...settings.listen, fastPath: true } }),
  );
  gateways.push(gateway);
  return gateway;
}

/** Requests by path and reason, as reported in `/metrics`. */
async function countByPath({ server }: TestGateway): Promise<Record<string, number>> {
  const { gatehouse_data_path_requests_total: rows = [] } = await server.metrics.snapshot();
  return Object.fromEntries(rows.map(([labels, value]) => [labels, value] as [string, number]));
}
const FAST = 'path="fast",reason="none"';
const full = (reason: string): string => `path="full",reason="${reason}"`;

test('the path of each request is counted, with the reason', async () => {
  const proxy = await startFastPathGateway();
  const { access_token: token } = await proxy.grant();
  const client = await connectRawTls(proxy.port, proxy.ca.pem);
  const get = (path: string, more = ''): string =>
    `GET ${path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${token}\r\n${more}\r\n`;
  client.send(get('/files/1') + get('/files/2'));
  await client.until((text) => text.includes('/files/2'));
  const before = await countByPath(proxy);
  expect(before[FAST]).toBe(2);
  client.send(get('/authsvc/Verify/Token'));
  await client.until((text) => /HTTP\/1\.1 \d+[^]*HTTP\/1\.1 \d+[^]*HTTP\/1\.1 \d+/.test(text));
  client.send(get('/files/3'));
  await client.until((text) => text.includes('/files/3'));
  client.destroy();
  const after = await countByPath(proxy);
  expect(after[full('service')]).toBe((before[full('service')] ?? 0) + 2);
  expect(after[FAST]).toBe(2);
  const lines = proxy.log.filter(
    ({ event, path }) => event === 'request' && String(path).startsWith('/files/'),
  );
  expect(lines.map(({ path, status, decision, upstream }) => [path, status, decision, upstream])).toEqual(
    ['/files/1', '/files/2', '/files/3'].map((path) => [path, 200, 'forwarded', 'default']),
  );
});

test('a reload disables and enables the fast path', async () => {
  const proxy = await startFastPathGateway();
  const { access_token: token } = await proxy.grant();
  const sendRequest = async (): Promise<string> => {
    const client = await connectRawTls(proxy.port, proxy.ca.pem);
    client.send(`GET /files/1 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${token}\r\n\r\n`);
    const text = await client.until((all) => isCompleteResponse(all));
    client.destroy();
    return String(parseRawResponse(text).status);
  };
  expect(await sendRequest()).toBe('200');
  const setFastPath = (fastPath: boolean) =>
    proxy.reload((settings) => ({ ...settings, listen: { ...settings.listen, fastPath } }));
  await setFastPath(false);
  expect(await sendRequest()).toBe('200');
  expect(await countByPath(proxy)).toMatchObject({ [FAST]: 1, [full('disabled')]: 1 });
  await setFastPath(true);
  expect(await sendRequest()).toBe('200');
  expect(await countByPath(proxy)).toMatchObject({ [FAST]: 2, [full('disabled')]: 1 });
});

/** Nothing listens on this address. */
const COLLECTOR = 'http://127.0.0.1:1/v1/traces';
const sendOneRequest = async (proxy: TestGateway): Promise<void> => {
  const { access_token: token } = await proxy.grant();
  const client = await connectRawTls(proxy.port, proxy.ca.pem);
  client.send(`GET /files/1 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${token}\r\n\r\n`);
  expect(parseRawResponse(await client.until((all) => isCompleteResponse(all))).status).toBe(200);
  client.destroy();
};

test('an unreachable trace collector does not move requests off the fast path', async () => {
  const proxy = await startFastPathGateway((settings) => ({
    ...settings,
    tracing: { otlp: COLLECTOR, ratio: 0 },
  }));
  await sendOneRequest(proxy);
  expect((await countByPath(proxy))[FAST]).toBe(1);
});

test('requests recorded as spans take the fast path', async () => {
  const proxy = await startFastPathGateway((settings) => ({
    ...settings,
    tracing: { otlp: COLLECTOR, ratio: 1 },
  }));
  await sendOneRequest(proxy);
  expect((await countByPath(proxy))[FAST]).toBe(1);
});

test('X01 a connection without a request within headerTimeout gets 408 and is closed', async () => {
  const proxy = await startFastPathGateway((settings) => ({
    ...settings,
    limits: { ...settings.limits, headerTimeout: '1s' },
  }));
  const client = await connectRawTls(proxy.port, proxy.ca.pem);
  expect(await client.closed(20_000)).toMatch(/^HTTP\/1\.1 408 /);
});

test('X01 a request head that is not complete within headerTimeout gets 408, however steadily it arrives', async () => {
  const proxy = await startFastPathGateway((settings) => ({
    ...settings,
    limits: { ...settings.limits, headerTimeout: '1s' },
  }));
  const client = await connectRawTls(proxy.port, proxy.ca.pem);
  client.send('GET /files/1 HTTP/1.1\r\nX-A: ');
  const timer = setInterval(() => client.send('a'), 100);
  try {
    expect(await client.closed(20_000)).toMatch(/^HTTP\/1\.1 408 /);
  } finally {
    clearInterval(timer);
    client.destroy();
  }
});

test('a revoked token is refused with the next request on the same connection', async () => {
  const proxy = await startFastPathGateway();
  const { access_token: token } = await proxy.grant();
  const client = await connectRawTls(proxy.port, proxy.ca.pem);
  const get = `GET /files/1 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${token}\r\n\r\n`;
  client.send(get);
  await client.until((text) => isCompleteResponse(text));
  const seen = client.text().length;
  expect(
    (await proxy.request({ path: '/authsvc/Revoke/Token', headers: { authorization: `Bearer ${token}` } }))
      .status,
  ).toBe(200);
  client.send(get);
  expect((await client.until((text) => isCompleteResponse(text.slice(seen)))).slice(seen)).toMatch(
    /^HTTP\/1\.1 401 /,
  );
  expect((await countByPath(proxy))[FAST]).toBe(2);
  client.destroy();
});
