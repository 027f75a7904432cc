import { afterEach, expect, test } from 'vitest';
import { type Change, type House, openHouse } from '../support/house.ts';
import { rawTlsClient, readAnswer, wholeAnswer } from '../support/raw-client.ts';

/** The fast lane in the whole gateway. */
const opened: House[] = [];
afterEach(async () => {
  while (opened.length > 0) await opened.pop()?.close();
});

async function house(change: Change = (settings) => settings): Promise<House> {
  const made = await openHouse((settings) =>
    change({ ...settings, listen: { ...settings.listen, fastLane: true } }),
  );
  opened.push(made);
  return made;
}

/** Requests by lane and reason, as `/metrics` has them. */
async function lanes({ gateway }: House): Promise<Record<string, number>> {
  const { gatehouse_lane_requests_total: rows = [] } = await gateway.metrics.snapshot();
  return Object.fromEntries(rows.map(([labels, value]) => [labels, value] as [string, number]));
}
const FAST = 'lane="fast",reason="ordinary"';
const full = (reason: string): string => `lane="full",reason="${reason}"`;

test('which lane a request took is counted, with the reason', async () => {
  const gate = await house();
  const { access_token: token } = await gate.grant();
  const client = await rawTlsClient(gate.port, gate.ca.pem);
  const get = (path: string, more = ''): string =>
    `GET ${path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${token}\r\n${more}\r\n`;
  client.send(get('/files/1') + get('/files/2'));
  await client.until((text) => text.includes('/files/2'));
  const before = await lanes(gate);
  expect(before[FAST]).toBe(2);
  client.send(get('/authsvc/Verify/Token'));
  await client.until((text) => /HTTP\/1\.1 \d+[^]*HTTP\/1\.1 \d+[^]*HTTP\/1\.1 \d+/.test(text));
  client.send(get('/files/3'));
  await client.until((text) => text.includes('/files/3'));
  client.destroy();
  const after = await lanes(gate);
  expect(after[full('service')]).toBe((before[full('service')] ?? 0) + 2);
  expect(after[FAST]).toBe(2);
  const lines = gate.log.filter(
    ({ event, path }) => event === 'request' && String(path).startsWith('/files/'),
  );
  expect(lines.map(({ path, status, decision, upstream }) => [path, status, decision, upstream])).toEqual(
    ['/files/1', '/files/2', '/files/3'].map((path) => [path, 200, 'forwarded', 'default']),
  );
});

test('a reload switches it off and on', async () => {
  const gate = await house();
  const { access_token: token } = await gate.grant();
  const ask = async (): Promise<string> => {
    const client = await rawTlsClient(gate.port, gate.ca.pem);
    client.send(`GET /files/1 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${token}\r\n\r\n`);
    const text = await client.until((all) => wholeAnswer(all));
    client.destroy();
    return String(readAnswer(text).status);
  };
  expect(await ask()).toBe('200');
  const set = (fastLane: boolean) =>
    gate.reload((settings) => ({ ...settings, listen: { ...settings.listen, fastLane } }));
  await set(false);
  expect(await ask()).toBe('200');
  expect(await lanes(gate)).toMatchObject({ [FAST]: 1, [full('off')]: 1 });
  await set(true);
  expect(await ask()).toBe('200');
  expect(await lanes(gate)).toMatchObject({ [FAST]: 2, [full('off')]: 1 });
});

/** A collector that is never asked in these tests: nothing listens there. */
const COLLECTOR = 'http://127.0.0.1:1/v1/traces';
const oneRequest = async (gate: House): Promise<void> => {
  const { access_token: token } = await gate.grant();
  const client = await rawTlsClient(gate.port, gate.ca.pem);
  client.send(`GET /files/1 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${token}\r\n\r\n`);
  expect(readAnswer(await client.until((all) => wholeAnswer(all))).status).toBe(200);
  client.destroy();
};

test('a collector that gets no spans takes nobody out of the lane', async () => {
  const gate = await house((settings) => ({ ...settings, tracing: { otlp: COLLECTOR, ratio: 0 } }));
  await oneRequest(gate);
  expect((await lanes(gate))[FAST]).toBe(1);
});

test('what is recorded as a span takes the full lane, until the restart that ends recording', async () => {
  const gate = await house((settings) => ({ ...settings, tracing: { otlp: COLLECTOR, ratio: 1 } }));
  await oneRequest(gate);
  await gate.reload((settings) => ({ ...settings, tracing: {} }));
  await oneRequest(gate);
  const counted = await lanes(gate);
  expect(counted[FAST]).toBe(0);
  // The two grants took it as well.
  expect(counted[full('off')]).toBe(4);
});

test('a collector that is named while it runs counts after a restart, and nobody leaves the lane before', async () => {
  const gate = await house();
  await gate.reload((settings) => ({ ...settings, tracing: { otlp: COLLECTOR, ratio: 1 } }));
  await oneRequest(gate);
  expect((await lanes(gate))[FAST]).toBe(1);
});

test('X01 a connection without a request within headerTimeout gets 408 and is closed', async () => {
  const gate = await house((settings) => ({
    ...settings,
    limits: { ...settings.limits, headerTimeout: '1s' },
  }));
  const client = await rawTlsClient(gate.port, gate.ca.pem);
  expect(await client.closed(20_000)).toMatch(/^HTTP\/1\.1 408 /);
});

test('X01 a request head that is not complete within headerTimeout gets 408, however steadily it arrives', async () => {
  const gate = await house((settings) => ({
    ...settings,
    limits: { ...settings.limits, headerTimeout: '1s' },
  }));
  const client = await rawTlsClient(gate.port, gate.ca.pem);
  client.send('GET /files/1 HTTP/1.1\r\nX-A: ');
  const drip = setInterval(() => client.send('a'), 100);
  try {
    expect(await client.closed(20_000)).toMatch(/^HTTP\/1\.1 408 /);
  } finally {
    clearInterval(drip);
    client.destroy();
  }
});

test('a revoked token is refused with the next request on the same connection', async () => {
  const gate = await house();
  const { access_token: token } = await gate.grant();
  const client = await rawTlsClient(gate.port, gate.ca.pem);
  const get = `GET /files/1 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${token}\r\n\r\n`;
  client.send(get);
  await client.until((text) => wholeAnswer(text));
  const seen = client.text().length;
  expect(
    (await gate.ask({ path: '/authsvc/Revoke/Token', headers: { authorization: `Bearer ${token}` } })).status,
  ).toBe(200);
  client.send(get);
  expect((await client.until((text) => wholeAnswer(text.slice(seen)))).slice(seen)).toMatch(
    /^HTTP\/1\.1 401 /,
  );
  expect((await lanes(gate))[FAST]).toBe(2);
  client.destroy();
});
