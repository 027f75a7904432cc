import { createHash } from 'node:crypto';
import type { Socket } from 'node:net';
import { describe, expect, test } from 'vitest';
import { isCompleteResponse, parseRawResponse, type RawClient } from '../support/raw-client.ts';
import { headerValues, respondOk } from '../support/recording-upstream.ts';
import { until } from '../support/serve-process.ts';
import { ALICE } from '../support/test-gateway.ts';
import { useAttackGateway } from './attack-gateway.ts';
import {
  BODIED_METHODS,
  BROKEN_CHUNKS,
  CHUNKED,
  chunk,
  END,
  type Message,
  REFUSED_HEADS,
  SMUGGLED,
} from './framing-cases.ts';

/** Rows H01–H26 and H30–H32 through a complete gateway. H27 and H28 are HTTP/2 tests, H33 is an upstream test. */
const attack = useAttackGateway();

const POST: Message = { line: 'POST /files/1 HTTP/1.1' };
const GET: Message = { line: 'GET /files/1 HTTP/1.1' };
const CONTINUE = 'HTTP/1.1 100 Continue\r\n\r\n';

async function withClient<T>(run: (client: RawClient) => Promise<T>): Promise<T> {
  const client = await attack.client();
  try {
    return await run(client);
  } finally {
    client.destroy();
  }
}

describe('an ambiguous head is refused', () => {
  for (const [name, { statuses, inputs }] of Object.entries(REFUSED_HEADS))
    test(name, async () => {
      // All at once: some connections linger for 2 s after the response (RFC 9112 §9.6).
      attack.upstream.reset();
      await Promise.all(
        inputs(attack.token).flatMap((input) =>
          [1, 9].map(async (pieces) => {
            const { status } = await attack.send(input, { pieces, untilClosed: true });
            expect([input, pieces, statuses.includes(status) || status]).toEqual([input, pieces, true]);
          }),
        ),
      );
      expect(attack.upstream.bytes()).toBe('');
      await attack.expectHealthy();
    });

  test('H03 a transfer coding that is not served, on a path of the token service: 501 without any effect', async () => {
    const { access_token: token } = await attack.gateway.grant();
    const revoke = 'GET /authsvc/Revoke/Token HTTP/1.1';
    for (const coding of ['identity', 'gzip, chunked']) {
      const headers = [`Transfer-Encoding: ${coding}`];
      const sent = attack.write({ line: revoke, headers, body: END, token });
      const { status, body } = await attack.send(sent, { untilClosed: true });
      expect([coding, status, JSON.parse(body).error]).toEqual([coding, 501, 'not_implemented']);
    }
    expect((await attack.gateway.api('/files/1', token)).status).toBe(200);
    await attack.expectHealthy(token);
  });

  test('H03 an unsupported transfer coding pipelined after a request in progress: both get responses, in order', async () => {
    attack.upstream.reset();
    let respond = (): void => {};
    attack.upstream.respondWith((socket, request) => {
      respond = () => respondOk(socket, request);
    });
    await withClient(async (client) => {
      client.send(attack.write(GET) + attack.write({ ...POST, headers: ['Transfer-Encoding: identity'], body: END }));
      await until('the upstream has the first request', () => attack.upstream.requests.length === 1);
      respond();
      const text = await client.closed();
      expect(text.match(/HTTP\/1\.1 \d+/g)).toEqual(['HTTP/1.1 200', 'HTTP/1.1 501']);
    });
    await attack.expectHealthy();
  });

  test('H22 CONNECT opens no tunnel', () =>
    attack.expectRejected([405], attack.write({ line: 'CONNECT a:443 HTTP/1.1' })));
});

describe('a malformed chunked body', () => {
  for (const [what, body] of Object.entries(BROKEN_CHUNKS))
    test(`H14 ${what}: refused, and the upstream connection is not reused`, async () => {
      const head = attack.write({ ...POST, headers: [CHUNKED] });
      // In one write with its head, and after the upstream has received the head.
      for (const isOneWrite of [true, false])
        await withClient(async (client) => {
          attack.upstream.reset();
          client.send(head + chunk('good') + (isOneWrite ? body + END : ''));
          if (!isOneWrite) {
            await until('the upstream has received the beginning of the body', () =>
              attack.upstream.bytes().includes('good'),
            );
            client.send(body + END);
          }
          const text = await client.closed();
          expect([isOneWrite, parseRawResponse(text).status]).toEqual([isOneWrite, 400]);
          expect(attack.upstream.requests).toEqual([]);
          // If the connection were reused, the upstream would read the next request as the rest of the chunk.
          await attack.expectHealthy();
        });
    });

  test('H14 in the same read as a head that is rejected at once: the response arrives, then the connection is closed', async () => {
    const headers = [CHUNKED];
    const body = `${chunk('good')}+2\r\nab\r\n`;
    const sent = attack.write({ line: `POST /files/${'a'.repeat(9_000)} HTTP/1.1`, headers, body });
    const { status } = await attack.send(sent + attack.write(GET), { untilClosed: true });
    expect([status, attack.upstream.bytes()]).toEqual([414, '']);
    await attack.expectHealthy();
  });

  test('H15 a chunk extension is accepted, and not forwarded', async () => {
    const body = `2;a=b\r\nab\r\n0;c="d"\r\n\r\n`;
    attack.upstream.reset();
    expect((await attack.request({ ...POST, headers: [CHUNKED], body })).status).toBe(200);
    expect(attack.upstream.requests.map(({ body: got }) => got)).toEqual(['ab']);
    expect(attack.upstream.bytes()).not.toMatch(/a=b|c="d"/);
    await attack.expectHealthy();
  });

  test('H16 a chunk extension of 20 KB', async () => {
    attack.upstream.reset();
    const body = `2;${'a'.repeat(20_000)}\r\nab\r\n${END}`;
    const { status } = await attack.send(attack.write({ ...POST, headers: [CHUNKED], body }), {
      untilClosed: true,
    });
    expect([400, 413]).toContain(status);
    expect(attack.upstream.requests).toEqual([]);
    await attack.expectHealthy();
  });

  test('H17 an identity header in a trailer does not reach the upstream', async () => {
    attack.upstream.reset();
    const trailers = 'X-Gatehouse-Identity: evil\r\nX-Forwarded-User: evil\r\n';
    const headers = [CHUNKED, 'Trailer: X-Gatehouse-Identity'];
    const body = `${chunk('abc')}0\r\n${trailers}\r\n`;
    expect((await attack.request({ ...POST, headers, body })).status).toBe(200);
    const [seen] = attack.upstream.requests;
    expect([seen?.body, seen?.trailers, headerValues(seen, 'x-forwarded-user')]).toEqual(['abc', [], [ALICE]]);
    expect(attack.upstream.bytes()).not.toMatch(/evil|trailer/i);
    await attack.expectHealthy();
  });
});

describe('several requests on one connection', () => {
  const statuses = (text: string): string[] => text.match(/HTTP\/1\.1 \d+/g) ?? [];

  test('H18 a request without a token is refused after one with a token on the same connection', async () => {
    attack.upstream.reset();
    await withClient(async (client) => {
      client.send(attack.write(GET) + attack.write({ line: 'GET /files/2 HTTP/1.1', token: null }));
      const text = await client.until((all) => all.includes('"request_id"'));
      expect(statuses(text)).toEqual(['HTTP/1.1 200', 'HTTP/1.1 401']);
    });
    expect(attack.upstream.requests.map(({ target }) => target)).toEqual(['/files/1']);
    await attack.expectHealthy();
  });

  test('H19 nothing after a request that is refused as malformed is processed', async () => {
    const good = attack.write({ line: 'GET /files/2 HTTP/1.1' });
    const malformed = Object.values(REFUSED_HEADS)
      .flatMap(({ inputs }) => inputs(attack.token))
      .concat(attack.write({ line: 'GET /a/../b HTTP/1.1' }));
    attack.upstream.reset();
    await Promise.all(
      malformed.map(async (first) => {
        const { head, body } = await attack.send(first + good, { untilClosed: true });
        expect([first, statuses(head + body).length]).toEqual([first, 1]);
      }),
    );
    expect(attack.upstream.bytes()).toBe('');
    await attack.expectHealthy();
  });

  test('H26 a GET with a body is framed correctly, and so is the request after it', async () => {
    attack.upstream.reset();
    await withClient(async (client) => {
      client.send(attack.write({ ...GET, headers: ['Content-Length: 3'], body: 'abc' }));
      const first = await client.until((text) => isCompleteResponse(text));
      client.send(attack.write({ line: 'GET /files/2 HTTP/1.1' }));
      await client.until((text) => isCompleteResponse(text.slice(first.length)));
    });
    expect(attack.upstream.requests.map(({ target, body }) => [target, body])).toEqual([
      ['/files/1', 'abc'],
      ['/files/2', ''],
    ]);
    await attack.expectHealthy();
  });
});

describe('expectations and upgrades', () => {
  test('H20 100 Continue is sent only after authorisation', async () => {
    attack.upstream.reset();
    const waiting = { ...POST, headers: ['Expect: 100-continue', 'Content-Length: 5'] };
    await withClient(async (client) => {
      client.send(attack.write(waiting));
      expect(await client.until((text) => text.includes('\r\n\r\n'))).toBe(CONTINUE);
      client.send('hello');
      const text = await client.until((all) => isCompleteResponse(all.slice(CONTINUE.length)));
      expect(parseRawResponse(text.slice(CONTINUE.length)).status).toBe(200);
    });
    expect(attack.upstream.requests.map(({ body }) => body)).toEqual(['hello']);
    await attack.expectHealthy();
    for (const token of ['forged', null]) await attack.expectRejected([401], attack.write({ ...waiting, token }));
  });

  test('H32 an expectation does not change the identity headers', async () => {
    attack.upstream.reset();
    const spoofed = ['X-Gatehouse-Identity: evil', 'X-Forwarded-User: evil', 'X_Forwarded_User: evil'];
    const headers = ['Expect: 100-continue', 'Content-Length: 2', ...spoofed];
    await withClient(async (client) => {
      client.send(attack.write({ ...POST, headers, body: 'ok' }));
      await client.until((text) => isCompleteResponse(text.slice(CONTINUE.length)));
    });
    expect(headerValues(attack.upstream.requests[0], 'x-forwarded-user')).toEqual([ALICE]);
    expect(attack.upstream.bytes()).not.toMatch(/evil|expect/i);
    await attack.expectHealthy();
  });

  test('H23 an upgrade to h2c is not forwarded', async () => {
    attack.upstream.reset();
    const headers = ['Connection: Upgrade, HTTP2-Settings', 'Upgrade: h2c', 'HTTP2-Settings: AAMAAABk'];
    expect((await attack.request({ ...GET, headers })).status).toBe(200);
    expect(attack.upstream.requests).toHaveLength(1);
    expect(attack.upstream.bytes()).not.toMatch(/upgrade|: h2c|http2-settings/i);
    await attack.expectHealthy();
  });

  const KEY = 'dGhlIHNhbXBsZSBub25jZQ==';
  const handshake: Message = {
    line: 'GET /socket HTTP/1.1',
    headers: ['Connection: Upgrade', 'Upgrade: websocket', `Sec-WebSocket-Key: ${KEY}`, 'Sec-WebSocket-Version: 13'],
  };

  test('H24 a handshake where no WebSocket is allowed, or without a token, is refused', async () => {
    await attack.expectRejected([403], attack.write({ ...handshake, line: 'GET /files/1 HTTP/1.1' }));
    await attack.expectRejected([401], attack.write({ ...handshake, token: null }));
  });

  test('H25 bytes after a handshake reach the upstream only after its 101', async () => {
    attack.upstream.reset();
    const received = Promise.withResolvers<Socket>();
    attack.upstream.respondWith((socket, request) => {
      if (request.target === '/socket') received.resolve(socket);
      else respondOk(socket, request);
    });
    await withClient(async (client) => {
      client.send(`${attack.write(handshake)}EARLY${SMUGGLED}`);
      const upstream = await received.promise;
      // A later request has been forwarded, the earlier bytes have not.
      expect((await attack.request(GET)).status).toBe(200);
      expect(attack.upstream.bytes()).not.toMatch(/EARLY|admin/);
      const accept = createHash('sha1').update(`${KEY}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`).digest('base64');
      upstream.write(
        `HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: ${accept}\r\n\r\n`,
      );
      await until('the upstream has the bytes', () => attack.upstream.bytes().includes(`EARLY${SMUGGLED}`));
    });
    await attack.expectHealthy();
  });

  test('H25 bytes after a handshake that the upstream declines are discarded', async () => {
    attack.upstream.reset();
    attack.upstream.respondWith(respondOk);
    const { status } = await attack.send(attack.write(handshake) + SMUGGLED, { untilClosed: true });
    expect(status).toBe(200);
    expect(attack.upstream.requests.map(({ target }) => target)).toEqual(['/socket']);
    expect(attack.upstream.bytes()).not.toContain('/admin');
    await attack.expectHealthy();
  });
});

describe('a request with a request in its body is one request', () => {
  for (const [id, method] of BODIED_METHODS)
    test(`${id} ${method}`, async () => {
      for (const { headers, body } of [
        { headers: [CHUNKED], body: `${chunk(SMUGGLED)}${END}` },
        { headers: [`Content-Length: ${SMUGGLED.length}`], body: SMUGGLED },
      ]) {
        attack.upstream.reset();
        const { status } = await attack.request({ line: `${method} /files/1 HTTP/1.1`, headers, body });
        expect(status).toBe(200);
        expect(attack.upstream.requests.map(({ target, body: got }) => [target, got])).toEqual([
          ['/files/1', SMUGGLED],
        ]);
        await attack.expectHealthy();
      }
    });
});
