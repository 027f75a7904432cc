import { afterEach, expect, test } from 'vitest';
import { eventLoopTurns } from '../../support/event-loop-turns.ts';
import { bearer, type HarnessOptions, startProxyHarness } from '../../support/proxy-harness.ts';
import { connectRaw, type RawClient } from '../../support/raw-client.ts';
import { type RecordingUpstream, startRecordingUpstream } from '../../support/recording-upstream.ts';

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  while (cleanups.length > 0) await cleanups.pop()?.();
});

async function setUp(
  options: Partial<HarnessOptions> = {},
): Promise<{ upstream: RecordingUpstream; client: RawClient }> {
  const upstream = await startRecordingUpstream();
  cleanups.push(() => upstream.close());
  const proxy = await startProxyHarness({ upstream: upstream.url, ...options });
  cleanups.push(() => proxy.close());
  const client = await connectRaw(proxy.port);
  cleanups.push(() => client.destroy());
  return { upstream, client };
}

const get = (path: string, token = 'A', fields = ''): string =>
  `GET ${path} HTTP/1.1\r\nHost: gate.test\r\nAuthorization: Bearer ${token}\r\n${fields}\r\n`;

test('a refusal because of a missing token, scope or route keeps the connection open', async () => {
  const { client } = await setUp();
  client.send('GET /files/1 HTTP/1.1\r\nHost: a\r\n\r\n');
  client.send(get('/admin/x') + get('/nowhere') + get('/files/2'));
  const text = await client.until((all) => all.includes('GET /files/2'));
  expect(text.match(/HTTP\/1\.1 \d+/g)).toEqual(['HTTP/1.1 401', 'HTTP/1.1 403', 'HTTP/1.1 404', 'HTTP/1.1 200']);
});

test('requests with and without bodies are forwarded in their order', async () => {
  const { upstream, client } = await setUp();
  const body = 'Host: gate.test\r\nAuthorization: Bearer A\r\n';
  client.send(
    `${get('/files/1')}POST /files/2 HTTP/1.1\r\n${body}Content-Length: 5\r\n\r\nhello${get('/files/3', 'A', 'TE: trailers\r\n')}POST /files/4 HTTP/1.1\r\n${body}Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n${get('/files/5')}`,
  );
  const text = await client.until((all) => all.includes('GET /files/5'));
  expect(text.match(/(?:GET|POST) \/files\/\d/g)).toEqual([
    'GET /files/1',
    'POST /files/2',
    'GET /files/3',
    'POST /files/4',
    'GET /files/5',
  ]);
  expect(upstream.requests.map((request) => request.body)).toEqual(['', 'hello', '', 'ab', '']);
});

test('while a token is verified, later requests wait and keep their order', async () => {
  const received = Promise.withResolvers<void>();
  const verified = Promise.withResolvers<void>();
  const { client } = await setUp({
    async readAccessToken(token) {
      received.resolve();
      await verified.promise;
      return token === 'A' ? bearer() : undefined;
    },
  });
  client.send(get('/files/1'));
  await received.promise;
  client.send(get('/files/2') + get('/files/3', 'B'));
  await eventLoopTurns(4);
  verified.resolve();
  const text = await client.until((all) => all.includes('invalid_token'));
  expect(text.match(/GET \/files\/\d|HTTP\/1\.1 401/g)).toEqual(['GET /files/1', 'GET /files/2', 'HTTP/1.1 401']);
});
