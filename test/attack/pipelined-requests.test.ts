import { expect, test } from 'vitest';
import { until } from '../support/serve-process.ts';
import { useAttackGateway } from './attack-gateway.ts';

/** Found by the fuzzer: messages that follow a request in progress on the same connection. */
const attack = useAttackGateway();

const HANDSHAKE =
  'Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13';

for (const [what, last, status] of [
  ['CONNECT', 'CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n', 405],
  ['a WebSocket handshake', `GET /socket HTTP/1.1\r\nHost: a\r\n${HANDSHAKE}\r\n\r\n`, 401],
] as const)
  test(`${what} pipelined after requests in progress gets its own response, after theirs`, async () => {
    attack.upstream.reset();
    let respond = (): void => {};
    attack.upstream.respondWith((socket, { target }) => {
      respond = () => void socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${target.length}\r\n\r\n${target}`);
      if (target === '/files/2') respond();
    });
    const client = await attack.client();
    client.send(attack.write({ line: 'GET /files/1 HTTP/1.1' }) + attack.write({ line: 'GET /files/2 HTTP/1.1' }));
    await until('the upstream has the first request', () => attack.upstream.requests.length === 1);
    client.send(last);
    expect(client.text()).toBe('');
    respond();
    const text = await client.closed();
    client.destroy();
    expect(text.match(/HTTP\/1\.1 \d+|\/files\/\d/g)).toEqual([
      'HTTP/1.1 200',
      '/files/1',
      'HTTP/1.1 200',
      '/files/2',
      `HTTP/1.1 ${status}`,
    ]);
    await attack.expectHealthy();
  });

for (const validCount of [1, 3])
  test(`H19 a malformed request after ${validCount} valid: the valid ones get their responses, then 400, then close`, async () => {
    attack.upstream.reset();
    attack.upstream.respondWith((socket, { target }) => {
      const body = `response to ${target}`;
      socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${body.length}\r\n\r\n${body}`);
    });
    const client = await attack.client();
    const paths = Array.from({ length: validCount }, (_, at) => `/files/${at}`);
    client.send(paths.map((path) => attack.write({ line: `GET ${path} HTTP/1.1` })).join(''));
    client.send('GET /files/9 HTTP/1.1\r\nBroken Name: x\r\n\r\n');
    client.send(attack.write({ line: 'GET /files/10 HTTP/1.1' }));
    const text = await client.closed();
    client.destroy();
    expect(text.match(/HTTP\/1\.1 \d+|response to \/files\/\d/g)).toEqual([
      ...paths.flatMap((path) => ['HTTP/1.1 200', `response to ${path}`]),
      'HTTP/1.1 400',
    ]);
    expect(attack.upstream.requests.map(({ target }) => target)).toEqual(paths);
    await attack.expectHealthy();
  });

for (const [what, truncated] of [
  ['before its end', 'HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nhalf'],
  ['between two chunks', 'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n'],
] as const)
  test(`U01 a response truncated ${what} after another on the connection: that one is delivered, then close`, async () => {
    attack.upstream.reset();
    attack.upstream.respondWith((socket, { target }) => {
      if (target === '/files/2') socket.end(truncated);
      else socket.write('HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst');
    });
    const client = await attack.client();
    client.send(
      attack.write({ line: 'GET /files/1 HTTP/1.1' }) +
        attack.write({ line: 'GET /files/2 HTTP/1.1' }) +
        attack.write({ line: 'GET /files/3 HTTP/1.1' }),
    );
    const text = await client.closed(15_000);
    client.destroy();
    expect(text).toContain('\r\n\r\nfirst');
    expect(text).not.toMatch(/0\r\n\r\n$/);
    expect(attack.upstream.requests.map(({ target }) => target)).toEqual(['/files/1', '/files/2']);
    attack.upstream.reset();
    await attack.expectHealthy();
  });

test('H19 a malformed request after one whose client disconnects: neither leaves anything behind', async () => {
  attack.upstream.reset();
  attack.upstream.respondWith(() => {});
  const seen = attack.gateway.log.length;
  const client = await attack.client();
  client.send(`${attack.write({ line: 'GET /files/1 HTTP/1.1' })}GARBAGE\r\n\r\n`);
  await until('the upstream has the request', () => attack.upstream.requests.length === 1);
  client.destroy();
  await until('the request is logged', () =>
    attack.gateway.log.slice(seen).some((line) => line.event === 'request' && line['path'] === '/files/1'),
  );
  await attack.expectHealthy();
});

for (const method of ['GET', 'HEAD', 'DELETE', 'OPTIONS'])
  test(`H26 a ${method} with a body is one request, and so is the next`, async () => {
    attack.upstream.reset();
    const smuggled = 'GET /admin/smuggled HTTP/1.1\r\nHost: a\r\n\r\n';
    for (const framing of [
      { headers: [`Content-Length: ${smuggled.length}`], body: smuggled },
      {
        headers: ['Transfer-Encoding: chunked'],
        body: `${smuggled.length.toString(16)}\r\n${smuggled}\r\n0\r\n\r\n`,
      },
    ]) {
      const client = await attack.client();
      client.send(attack.write({ line: `${method} /files/with-body HTTP/1.1`, ...framing }));
      await until('the upstream has the request', () =>
        attack.upstream.requests.some(({ target }) => target === '/files/with-body'),
      );
      client.send(attack.write({ line: 'GET /files/next HTTP/1.1' }));
      await client.until((all) => all.includes('GET /files/next'));
      client.destroy();
      expect(attack.upstream.requests.map(({ target }) => target)).toEqual(['/files/with-body', '/files/next']);
      expect(attack.upstream.requests[0]?.body).toBe(smuggled);
      await attack.expectHealthy();
    }
  });

test.each([
  ['GET', [] as string[], ''],
  ['POST', ['Content-Length: 2'], 'ab'],
])(
  'H20 a request pipelined after a complete %s that expects 100 Continue gets a response',
  async (method, headers, body) => {
    attack.upstream.reset();
    const client = await attack.client();
    client.send(
      attack.write({
        line: `${method} /files/1 HTTP/1.1`,
        headers: ['Expect: 100-continue', ...headers],
        body,
      }) + attack.write({ line: 'GET /files/2 HTTP/1.1' }),
    );
    const text = await client.until((all) => all.includes('GET /files/2'));
    client.destroy();
    expect(text).toMatch(new RegExp(`${method} /files/1(?:.|\\r|\\n)*GET /files/2$`));
    expect(attack.upstream.requests.map(({ target }) => target).toSorted()).toEqual(['/files/1', '/files/2']);
    await attack.expectHealthy();
  },
);
