import { describe, expect, test } from 'vitest';
import {
  CODE,
  dataFrame,
  type Field,
  FLAG,
  FRAME,
  frame,
  headersFrame,
  priorityFrame,
  requestFields,
} from '../../support/http2-frames.ts';
import { GET, POST, useStreamGateways } from './http2-stream-gateway.ts';

const { openClient, setUp } = useStreamGateways();

describe('messages', () => {
  test('trailers of a request are forwarded, unless the client has declared the length of its body', async () => {
    const { gateway, upstream } = await setUp();
    const client = await openClient(gateway);
    for (const length of [undefined, '4'] as const) {
      const stream = client.request([...POST, ...(length === undefined ? [] : [['content-length', length] as const])], {
        end: false,
      });
      client.send(dataFrame(stream, 'body'), headersFrame(stream, [['x-checksum', '1234']]));
      expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
    }
    expect(upstream.requests.map(({ body, trailers }) => [body, trailers])).toEqual([
      ['body', ['x-checksum: 1234']],
      ['body', []],
    ]);
  });

  test('trailers that do not end the stream, have pseudo-fields, or come before the declared length, are a stream error', async () => {
    const { gateway, upstream } = await setUp();
    const client = await openClient(gateway);
    const cases: readonly (readonly [Field[], Field[], boolean])[] = [
      [[], [['x-checksum', '1']], false],
      [[], [[':path', '/admin/x']], true],
      [[['content-length', '9']], [['x-checksum', '1']], true],
      [[], [['connection', 'close']], true],
    ];
    for (const [fields, trailers, end] of cases) {
      const stream = client.request([...POST, ...fields], { end: false });
      client.send(dataFrame(stream, 'body'), headersFrame(stream, trailers, { end }));
      expect(await client.waitForEnd(stream)).toEqual({ reset: CODE.protocolError });
    }
    expect(upstream.requests).toEqual([]);
    expect(await client.waitForEnd(client.request(GET))).toEqual({ status: 200 });
  });

  test('a body that differs from its length is a stream error, and never a complete request upstream', async () => {
    const { gateway, upstream } = await setUp();
    const client = await openClient(gateway);
    for (const [length, ...parts] of [
      ['3', 'longer'],
      ['9', 'shorter'],
      ['4', 'in', ' parts'],
      ['1', ''],
    ] as const) {
      const stream = client.request([...POST, ['content-length', length]], { end: false });
      parts.forEach((part, index) => client.send(dataFrame(stream, part, { end: index === parts.length - 1 })));
      expect([length, await client.waitForEnd(stream)]).toEqual([length, { reset: CODE.protocolError }]);
    }
    const endsWithHead = client.request([...POST, ['content-length', '5']]);
    expect(await client.waitForEnd(endsWithHead)).toEqual({ reset: CODE.protocolError });
    expect(upstream.requests).toEqual([]);
    const exact = client.post([...POST, ['content-length', '5']], 'exact');
    expect(await client.waitForEnd(exact)).toEqual({ status: 200 });
    expect(upstream.requests.map(({ body }) => body)).toEqual(['exact']);
  });

  test('a scheme that is not one (RFC 3986 §3.1) is a stream error', async () => {
    const { gateway, upstream } = await setUp();
    const client = await openClient(gateway);
    for (const scheme of ['', 'h t', 'https://evil.test/', '1http', 'http:', 'ü']) {
      const fields = GET.map(([name, value]): Field => [name, name === ':scheme' ? scheme : value]);
      expect([scheme, await client.waitForEnd(client.request(fields))]).toEqual([
        scheme,
        { reset: CODE.protocolError },
      ]);
    }
    expect(upstream.requests).toEqual([]);
    expect(await client.waitForEnd(client.request(GET))).toEqual({ status: 200 });
  });

  test('RST_STREAM is not sent for a stream that the client has not opened (RFC 9113 §6.4)', async () => {
    const { gateway } = await setUp();
    for (const malformed of [frame(FRAME.priority, 0, 1, Buffer.alloc(3)), priorityFrame(1, 1)]) {
      const client = await openClient(gateway);
      client.send(malformed);
      await client.waitForPong();
      expect(client.resetCode(1)).toBeUndefined();
      if (!client.isOver()) expect(await client.waitForEnd(client.request(GET))).toEqual({ status: 200 });
    }
  });

  test('responses without a body end with their head', async () => {
    const { gateway, upstream } = await setUp();
    const client = await openClient(gateway);
    for (const [method, head, status, length] of [
      ['HEAD', '200 OK\r\nContent-Length: 5', 200, '5'],
      ['HEAD', '200 OK\r\nTransfer-Encoding: chunked', 200, undefined],
      ['GET', '204 No Content', 204, undefined],
      ['GET', '304 Not Modified\r\nETag: "x"\r\nContent-Length: 7', 304, '7'],
      ['GET', '200 OK\r\nContent-Length: 0', 200, '0'],
    ] as const) {
      upstream.respondWith((socket) => socket.write(`HTTP/1.1 ${head}\r\n\r\n`));
      const stream = client.request(requestFields('/public/1', method));
      expect(await client.waitForEnd(stream)).toEqual({ status });
      const fields = client.fields(stream);
      expect([head, fields.find(([name]) => name === 'content-length')?.[1]]).toEqual([head, length]);
      expect([head, client.bodyLength(stream), client.resetCode(stream)]).toEqual([head, 0, undefined]);
      const frames = client.frames.filter(({ stream: on }) => on === stream);
      expect(frames.filter(({ type }) => type === FRAME.headers).length).toBe(1);
    }
  });

  test('a large head of a response is sent in CONTINUATION frames', async () => {
    const { gateway, upstream } = await setUp();
    const head = Array.from({ length: 15 }, (_, index) => `X-${index}: ${'~'.repeat(1_000)}\r\n`).join('');
    upstream.respondWith((socket) => socket.write(`HTTP/1.1 200 OK\r\n${head}Content-Length: 2\r\n\r\nok`));
    const client = await openClient(gateway);
    const stream = client.request(GET);
    expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
    expect(client.fields(stream).filter(([, value]) => value === '~'.repeat(1_000)).length).toBe(15);
  });

  test('a head of the size that limits.headers allows is accepted, also above 16 KiB', async () => {
    const { gateway, upstream } = await setUp((settings) => ({
      ...settings,
      limits: { ...settings.limits, headers: '48KiB' },
    }));
    const client = await openClient(gateway);
    const large = 'x'.repeat(14_000);
    const first = headersFrame(1, [...GET, ['x-1', large]], { endHeaders: false });
    const more = headersFrame(1, [['x-2', large]]).subarray(9);
    client.send(first, frame(FRAME.continuation, FLAG.endHeaders, 1, more));
    expect(await client.waitForEnd(1)).toEqual({ status: 200 });
    expect(upstream.requests[0]?.headers.filter(([, value]) => value === large).length).toBe(2);
  });
});
