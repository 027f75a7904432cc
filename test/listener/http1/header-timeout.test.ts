import { afterAll, beforeAll, expect, test } from 'vitest';
import { connectRawTls, isCompleteResponse } from '../../support/raw-client.ts';
import { startGateway, type TestGateway } from '../../support/test-gateway.ts';

let gateway: TestGateway;
beforeAll(async () => {
  gateway = await startGateway((settings) => ({
    ...settings,
    limits: { ...settings.limits, headerTimeout: '1s' },
  }));
});
afterAll(() => gateway.close());

test('X01 a connection without a request within headerTimeout gets 408 and is closed', async () => {
  const client = await connectRawTls(gateway.port, gateway.ca.pem);
  expect(await client.closed(20_000)).toMatch(/^HTTP\/1\.1 408 /);
});

test.each([
  ['the first', ''],
  ['a later', 'GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n'],
])(
  'X01 the head of %s request that is not complete within headerTimeout gets 408, however steadily it arrives',
  async (_, before) => {
    const client = await connectRawTls(gateway.port, gateway.ca.pem);
    client.send(before);
    if (before !== '') await client.until((text) => isCompleteResponse(text));
    const seen = client.text().length;
    client.send('GET /files/1 HTTP/1.1\r\nX-A: ');
    const timer = setInterval(() => client.send('a'), 100);
    try {
      expect((await client.closed(20_000)).slice(seen)).toMatch(/^HTTP\/1\.1 408 /);
    } finally {
      clearInterval(timer);
      client.destroy();
    }
  },
);

test('a head that arrives in parts within headerTimeout is a request', async () => {
  const client = await connectRawTls(gateway.port, gateway.ca.pem);
  for (const part of ['GET /hea', 'lth HTTP/1.1\r', '\nHost: localho', 'st\r\n\r', '\n']) {
    client.send(part);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  expect(await client.until((text) => isCompleteResponse(text))).toMatch(/^HTTP\/1\.1 200 /);
  client.destroy();
});
