import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import {
  BODIED_METHODS,
  CHUNKED,
  chunk,
  type Message,
  REFUSED_HEADS,
  SMUGGLED,
  writeMessage,
} from '../attack/framing-cases.ts';
import { type ProxyHarness, startProxyHarness } from '../support/proxy-harness.ts';
import {
  connectRaw,
  isCompleteResponse,
  parseRawResponse,
  type RawResponse,
  rawRequest,
} from '../support/raw-client.ts';
import { headerValues, type RecordingUpstream, startRecordingUpstream } from '../support/recording-upstream.ts';

let upstream: RecordingUpstream;
let proxy: ProxyHarness;
const LIMIT = 100_000;

beforeAll(async () => {
  upstream = await startRecordingUpstream();
  proxy = await startProxyHarness({ upstream: upstream.url, maxBodyBytes: LIMIT });
});
afterAll(async () => {
  await proxy.close();
  await upstream.close();
});
beforeEach(() => upstream.reset());

const send = (message: Message): Promise<RawResponse> => rawRequest(proxy.port, writeMessage(message));

/** Expects one of these statuses, nothing upstream, and a successful next request. */
async function expectRefused(statuses: readonly number[], message: string): Promise<void> {
  upstream.reset();
  const { status } = await rawRequest(proxy.port, message);
  expect([message, statuses.includes(status) || status]).toEqual([message, true]);
  expect(upstream.bytes()).toBe('');
  expect((await send({ line: 'GET /files/next HTTP/1.1' })).status).toBe(200);
}

describe('an ambiguous request head is rejected', () => {
  for (const [name, { statuses, inputs }] of Object.entries(REFUSED_HEADS))
    test(name, async () => {
      for (const input of inputs('A')) await expectRefused(statuses, input);
    });
});

describe('a request gets new framing and remains a single request', () => {
  test('H17 an identity header in a trailer does not reach the upstream', async () => {
    const body = `${chunk('abc')}0\r\nX-Forwarded-User: evil\r\nX-Gatehouse-Identity: evil\r\n\r\n`;
    expect(
      (await send({ line: 'POST /files/1 HTTP/1.1', headers: [CHUNKED, 'Trailer: X-Forwarded-User'], body })).status,
    ).toBe(200);
    const [seen] = upstream.requests;
    expect([seen?.body, seen?.trailers]).toEqual(['abc', []]);
    expect(upstream.bytes()).not.toContain('evil');
  });

  test('H20 100 Continue is sent only after authorization', async () => {
    const client = await connectRaw(proxy.port);
    try {
      const head = { line: 'POST /files/1 HTTP/1.1', headers: ['Expect: 100-continue', 'Content-Length: 5'] };
      client.send(writeMessage(head));
      await client.until((text) => text.includes('\r\n\r\n'));
      expect(client.text()).toBe('HTTP/1.1 100 Continue\r\n\r\n');
      client.send('hello');
      const text = await client.until((all) => isCompleteResponse(all.slice(25)));
      expect(parseRawResponse(text.slice(25)).status).toBe(200);
      expect(upstream.requests[0]?.body).toBe('hello');
      expect(headerValues(upstream.requests[0], 'expect')).toEqual([]);
      upstream.reset();
      const refusal = await send({ ...head, token: 'forged' });
      expect(refusal.status).toBe(401);
      expect(refusal.head).toMatch(/connection: close/i);
      expect(upstream.bytes()).toBe('');
    } finally {
      client.destroy();
    }
  });

  test('H23 an upgrade to h2c is not forwarded', async () => {
    const headers = ['Connection: Upgrade, HTTP2-Settings', 'Upgrade: h2c', 'HTTP2-Settings: AAMAAABk'];
    expect((await send({ line: 'GET /files/1 HTTP/1.1', headers })).status).toBe(200);
    expect(upstream.bytes()).not.toMatch(/upgrade|h2c|http2-settings/i);
  });

  test('H26 a GET with a body is framed correctly, and so is the request after it', async () => {
    const client = await connectRaw(proxy.port);
    try {
      client.send(writeMessage({ line: 'GET /files/1 HTTP/1.1', headers: ['Content-Length: 3'], body: 'abc' }));
      const first = await client.until((text) => isCompleteResponse(text));
      client.send(writeMessage({ line: 'GET /files/2 HTTP/1.1' }));
      await client.until((text) => isCompleteResponse(text.slice(first.length)));
    } finally {
      client.destroy();
    }
    expect(upstream.requests.map(({ target, body }) => [target, body])).toEqual([
      ['/files/1', 'abc'],
      ['/files/2', ''],
    ]);
    expect(headerValues(upstream.requests[0], 'content-length')).toEqual(['3']);
  });

  for (const [id, method] of BODIED_METHODS)
    test(`${id} a chunked ${method} with a request in its body is one request`, async () => {
      const body = `${chunk(SMUGGLED)}0\r\n\r\n`;
      const { status } = await send({ line: `${method} /files/1 HTTP/1.1`, headers: [CHUNKED], body });
      expect(status).toBe(200);
      expect(upstream.requests.map(({ target, body: got }) => [target, got])).toEqual([['/files/1', SMUGGLED]]);
    });

  test('H32 Expect does not let a forged identity header through', async () => {
    const headers = [
      'Expect: 100-continue',
      'X-Forwarded-User: evil',
      'X-Gatehouse-Identity: evil',
      'Content-Length: 2',
    ];
    const client = await connectRaw(proxy.port);
    try {
      client.send(writeMessage({ line: 'POST /files/1 HTTP/1.1', headers, body: 'ok' }));
      await client.until((text) => isCompleteResponse(text.slice(25)));
    } finally {
      client.destroy();
    }
    expect(headerValues(upstream.requests[0], 'x-forwarded-user')).toEqual([expect.stringMatching(/^local:/)]);
    expect(upstream.bytes()).not.toContain('evil');
  });

  test('bodies with a length and chunked bodies arrive completely', async () => {
    const text = 'x'.repeat(90_000);
    const headers = [`Content-Length: ${text.length}`];
    expect((await send({ line: 'POST /files/1 HTTP/1.1', headers, body: text })).status).toBe(200);
    const body = `${chunk(text.slice(0, 50_000))}${chunk(text.slice(50_000))}0\r\n\r\n`;
    expect((await send({ line: 'PUT /files/2 HTTP/1.1', headers: [CHUNKED], body })).status).toBe(200);
    const empty = await send({ line: 'POST /files/3 HTTP/1.1', headers: ['Content-Length: 0'] });
    expect(empty.status).toBe(200);
    const [withLength, chunked, emptyRequest] = upstream.requests;
    expect([withLength?.body === text, headerValues(withLength, 'content-length')]).toEqual([true, ['90000']]);
    // A chunked body that arrived completely before it is forwarded gets a length.
    const framing = [...headerValues(chunked, 'transfer-encoding'), ...headerValues(chunked, 'content-length')];
    expect([chunked?.body === text, framing]).toEqual([true, [expect.stringMatching(/^(?:chunked|90000)$/)]]);
    expect([emptyRequest?.body, headerValues(emptyRequest, 'content-length')]).toEqual(['', ['0']]);
  });

  test('one connection serves many requests in order, with rejected ones between them', async () => {
    const client = await connectRaw(proxy.port);
    try {
      client.send(
        writeMessage({ line: 'GET /files/1 HTTP/1.1' }) +
          writeMessage({
            line: 'POST /files/2 HTTP/1.1',
            token: 'forged',
            headers: ['Content-Length: 4'],
            body: 'body',
          }) +
          writeMessage({ line: 'GET /files/3 HTTP/1.1' }),
      );
      const text = await client.until((all) => all.includes('GET /files/3'));
      expect(text.match(/HTTP\/1\.1 \d+/g)).toEqual(['HTTP/1.1 200', 'HTTP/1.1 401', 'HTTP/1.1 200']);
    } finally {
      client.destroy();
    }
  });
});

describe('the body limit', () => {
  test('X04 a length over the limit is refused before an upstream connection is opened', async () => {
    const headers = [`Content-Length: ${LIMIT + 1}`];
    const client = await connectRaw(proxy.port);
    client.send(writeMessage({ line: 'POST /files/1 HTTP/1.1', headers, body: 'x'.repeat(1_000) }));
    const { status, body } = parseRawResponse(await client.until((text) => isCompleteResponse(text)));
    client.destroy();
    expect(status).toBe(413);
    expect(JSON.parse(body)).toMatchObject({ error: 'content_too_large' });
    expect(upstream.connectionCount()).toBe(0);
  });

  test('X04 a chunked body is counted, and the upstream never gets its end', async () => {
    const client = await connectRaw(proxy.port);
    client.send(writeMessage({ line: 'POST /files/1 HTTP/1.1', headers: [CHUNKED] }));
    for (let sent = 0; sent <= LIMIT; sent += 10_000) client.send(chunk('x'.repeat(10_000)));
    const text = await client.until((all) => isCompleteResponse(all));
    expect(parseRawResponse(text).status).toBe(413);
    client.send('0\r\n\r\n');
    await client.closed();
    expect(upstream.requests).toEqual([]);
    expect(upstream.bytes().length).toBeLessThan(LIMIT + 5_000);
  });

  test('a body at the limit is forwarded', async () => {
    const body = `${chunk('x'.repeat(LIMIT))}0\r\n\r\n`;
    expect((await send({ line: 'POST /files/1 HTTP/1.1', headers: [CHUNKED], body })).status).toBe(200);
  });
});
