import { expect, onTestFinished, test } from 'vitest';
import { bearer, NOW, rule, startProxyHarness } from '../../support/proxy-harness.ts';
import { connectRaw, isCompleteResponse, type RawClient } from '../../support/raw-client.ts';
import { startRecordingUpstream } from '../../support/recording-upstream.ts';

/** A chunked body that is refused as soon as enough of it has arrived, and the request after it. */
const HEAD =
  'POST /files/1 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer A\r\nTransfer-Encoding: chunked\r\n\r\n';
const NEXT = 'GET /public/2 HTTP/1.1\r\nHost: localhost\r\n\r\n';
const BODY_BUFFER = 1_000;

const createChunk = (size: number): string => `${size.toString(16)}\r\n${'x'.repeat(size)}\r\n`;

/** The access token of each request expires while its body arrives. */
async function openClient(): Promise<RawClient> {
  const upstream = await startRecordingUpstream();
  let time = NOW;
  const proxy = await startProxyHarness({
    upstream: upstream.url,
    rules: [rule('/public/**', 'public'), rule('/files/**', 'files:read')],
    upstreamSettings: { bodyBuffer: BODY_BUFFER },
    now: () => time,
    readAccessToken() {
      time += 7_200;
      return bearer({ expires: time - 3_600 });
    },
  });
  const client = await connectRaw(proxy.port);
  onTestFinished(async () => {
    client.destroy();
    await proxy.close();
    await upstream.close();
  });
  return client;
}

test('a request is served after one that was refused within the last part of its body', async () => {
  const client = await openClient();
  client.send(HEAD + createChunk(10));
  await new Promise((resolve) => setTimeout(resolve, 50));
  client.send(`${createChunk(BODY_BUFFER)}0\r\n\r\n`);
  expect(await client.until((text) => isCompleteResponse(text))).toMatch(/^HTTP\/1\.1 401 /);
  const seen = client.text().length;
  client.send(NEXT);
  const second = (await client.until((text) => isCompleteResponse(text.slice(seen)))).slice(seen);
  expect(second).toMatch(/^HTTP\/1\.1 200 /);
});

test('no request is served after one that was refused before its malformed body was noticed', async () => {
  const client = await openClient();
  client.send(`${HEAD}${createChunk(BODY_BUFFER)}zz\r\n0\r\n\r\n${NEXT}`);
  const text = await client.closed();
  expect(text.match(/^HTTP\/1\.1 \d+/gm)).toEqual(['HTTP/1.1 401']);
});

test('the rest of a head is read after a refused request whose body was complete', async () => {
  const client = await openClient();
  const request =
    'GET /files/1 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer A\r\nContent-Length: 5\r\n\r\nhello';
  client.send(request + NEXT.slice(0, 20));
  await client.until((text) => isCompleteResponse(text));
  const seen = client.text().length;
  client.send(NEXT.slice(20));
  const second = (await client.until((text) => isCompleteResponse(text.slice(seen)))).slice(seen);
  expect(second).toMatch(/^HTTP\/1\.1 200 /);
});
