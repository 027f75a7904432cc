import { afterAll, beforeAll, expect, test } from 'vitest';
import { type ConsoleHarness, startConsole } from '../support/console-harness.ts';
import { connectRaw } from '../support/raw-client.ts';

let harness: ConsoleHarness;
beforeAll(async () => {
  harness = await startConsole();
});
afterAll(() => harness?.close());

test('a form that never ends, a head that never ends and a form of single bytes are closed', async () => {
  const host = `Host: 127.0.0.1:${harness.gateway.adminPort}`;
  const start = `POST /console/sign-in HTTP/1.1\r\n${host}\r\nOrigin: http://127.0.0.1:${harness.gateway.adminPort}\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\ntoken=`;
  const [form, head, trickle] = await Promise.all(
    [start, `GET /console HTTP/1.1\r\n${host}\r\nX-Slow: `, start].map(async (text) => {
      const client = await connectRaw(harness.gateway.adminPort);
      client.send(text);
      return client;
    }),
  );
  const timer = setInterval(() => trickle?.send('a'), 200);
  try {
    expect(await form?.closed()).toMatch(/^HTTP\/1.1 408/);
    expect(await head?.closed()).toMatch(/^HTTP\/1.1 408/);
    expect(await trickle?.closed()).toMatch(/^HTTP\/1.1 408/);
  } finally {
    clearInterval(timer);
  }
});
