import { once } from 'node:events';
import { request as httpRequest, type IncomingMessage } from 'node:http';
import { type AddressInfo, createServer, type Socket } from 'node:net';
import { describe, expect, onTestFinished, test } from 'vitest';
import {
  createFrameReader,
  dataFrame,
  type Field,
  FLAG,
  FRAME,
  frame,
  headerBlock,
  headersFrame,
  PREFACE,
  pingFrame,
  repeat,
  resetFrame,
  settingsFrame,
  uint32,
  windowUpdateFrame,
} from '../../../support/http2-frames.ts';
import { startProxyHarness } from '../../../support/proxy-harness.ts';
import { until } from '../../../support/until.ts';

type Answer = (socket: Socket, stream: number) => void;

const OK: readonly Field[] = [[':status', '200']];
const respondOk: Answer = (socket, stream) =>
  socket.write(Buffer.concat([headersFrame(stream, OK, { end: false }), dataFrame(stream, 'good', { end: true })]));

/** An upstream that answers requests for `/files/bad` in its own way. */
async function setUp(answer: Answer, onSettings: (socket: Socket) => void = () => {}) {
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on('error', () => {});
    let isPrefaceRead = false;
    let hasSettings = false;
    let requests = 0;
    const read = createFrameReader(({ type, stream, flags }) => {
      if (type === FRAME.settings && (flags & FLAG.ack) === 0 && !hasSettings) {
        hasSettings = true;
        socket.write(settingsFrame());
        onSettings(socket);
      }
      if (type !== FRAME.headers) return;
      requests += 1;
      if (requests === 1 && isFirstBad) answer(socket, stream);
      else respondOk(socket, stream);
    });
    socket.on('data', (part: Buffer) => {
      if (isPrefaceRead) return read(part);
      isPrefaceRead = true;
      expect(part.subarray(0, PREFACE.length)).toEqual(PREFACE);
      read(part.subarray(PREFACE.length));
    });
  });
  let isFirstBad = true;
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as AddressInfo;
  const proxy = await startProxyHarness({
    upstream: `http://127.0.0.1:${port}`,
    upstreamSettings: { protocol: 'http2', timeouts: { headers: 3, idle: 3 } },
  });
  onTestFinished(async () => {
    await proxy.close();
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return {
    proxy,
    log: () => proxy.log.join(''),
    get: async (path: string): Promise<string> => {
      const request = httpRequest({ port: proxy.port, path, headers: { authorization: 'Bearer A' }, agent: false });
      const [response] = (await once(request.end(), 'response')) as [IncomingMessage];
      let text = `${response.statusCode} `;
      try {
        for await (const part of response) text += String(part);
        return text + JSON.stringify(response.trailers);
      } catch {
        return `${text}aborted`;
      }
    },
    beGood: (): void => {
      isFirstBad = false;
    },
  };
}

const continuation = (stream: number, size: number): Buffer =>
  frame(FRAME.continuation, 0, stream, Buffer.alloc(size, 0));

const head = (stream: number, fields: readonly Field[] = OK): Buffer => headersFrame(stream, fields, { end: false });

const BEFORE_THE_RESPONSE: readonly (readonly [string, Answer, string])[] = [
  ['DATA before HEADERS', (socket, id) => socket.write(dataFrame(id, 'x')), 'DATA before the header section'],
  [
    'a header section without a status',
    (socket, id) => socket.write(head(id, [['a', 'b']])),
    'a header section without a status',
  ],
  ['two statuses', (socket, id) => socket.write(head(id, [...OK, ...OK])), 'malformed header fields'],
  ['a status of 600', (socket, id) => socket.write(head(id, [[':status', '600']])), 'malformed header fields'],
  ['a status of 101', (socket, id) => socket.write(head(id, [[':status', '101']])), 'an invalid interim response'],
  ['a name in upper case', (socket, id) => socket.write(head(id, [...OK, ['Upper', 'x']])), 'malformed header fields'],
  [
    'a connection-specific field',
    (socket, id) => socket.write(head(id, [...OK, ['connection', 'close']])),
    'malformed header fields',
  ],
  [
    'a line break in a value',
    (socket, id) => socket.write(head(id, [...OK, ['a', 'b\r\nset-cookie: c']])),
    'malformed header fields',
  ],
  [
    'two lengths',
    (socket, id) => socket.write(head(id, [...OK, ['content-length', '1'], ['content-length', '2']])),
    'malformed header fields',
  ],
  [
    'too many interim responses',
    (socket, id) => socket.write(repeat(head(id, [[':status', '103']]), 30)),
    'too many interim responses',
  ],
  [
    'an endless header block',
    (socket, id) =>
      socket.write(Buffer.concat([frame(FRAME.headers, 0, id, headerBlock(OK)), repeat(continuation(id, 16_000), 20)])),
    'a header section that is too large',
  ],
  [
    'many empty CONTINUATION frames',
    (socket, id) =>
      socket.write(Buffer.concat([frame(FRAME.headers, 0, id, headerBlock(OK)), repeat(continuation(id, 0), 20)])),
    'a header section that is too large',
  ],
  [
    'another frame within a header section',
    (socket, id) => socket.write(Buffer.concat([frame(FRAME.headers, 0, id, headerBlock(OK)), pingFrame()])),
    'an incomplete header section',
  ],
  [
    'a malformed header block',
    (socket, id) =>
      socket.write(frame(FRAME.headers, FLAG.endHeaders, id, Buffer.from([0xff, 0xff, 0xff, 0xff, 0xff]))),
    'a malformed header block',
  ],
  [
    'a frame that is too large',
    (socket, id) => socket.write(frame(FRAME.data, 0, id, Buffer.alloc(16_385))),
    'error code 6',
  ],
  ['a SETTINGS flood', (socket) => socket.write(repeat(settingsFrame([[3, 10]]), 100)), 'too many settings'],
  ['a PING flood', (socket) => socket.write(repeat(pingFrame(), 1_000)), 'too many PING frames'],
  ['a flood of unknown frames', (socket) => socket.write(repeat(frame(0x55, 0, 0), 3_000)), 'without a purpose'],
  [
    'PUSH_PROMISE',
    (socket, id) => socket.write(frame(FRAME.push, FLAG.endHeaders, id, Buffer.concat([uint32(2), headerBlock(OK)]))),
    'PUSH_PROMISE',
  ],
  ['HEADERS on a stream that was not begun', (socket, id) => socket.write(head(id + 100)), 'not begun'],
  [
    'a window of more than 2^31-1',
    (socket) => socket.write(repeat(windowUpdateFrame(0, 0x7fffffff), 2)),
    'WINDOW_UPDATE',
  ],
  ['an invalid setting', (socket) => socket.write(settingsFrame([[4, 0xffffffff]])), 'an invalid setting'],
  ['RST_STREAM', (socket, id) => socket.write(resetFrame(id, 2)), 'reset the stream'],
  ['the end of the connection', (socket) => socket.end(), 'closed the connection'],
];

describe('the client gets 502, the log says why, and the next request is served, after', () => {
  test.each(BEFORE_THE_RESPONSE)('%s', async (_, answer, message) => {
    const { get, log, beGood } = await setUp(answer);
    expect(await get('/files/bad')).toMatch(/^502 /);
    expect(log()).toContain(message);
    beGood();
    expect(await get('/files/good')).toBe('200 good{}');
  });
});

const WITHIN_THE_RESPONSE: readonly (readonly [string, Answer, string])[] = [
  ['RST_STREAM', (socket, id) => socket.write(resetFrame(id, 2)), 'reset the stream'],
  ['the end of the connection', (socket) => socket.end(), 'closed the connection'],
  [
    'a second header section that does not end the response',
    (socket, id) => socket.write(head(id, [['a', 'b']])),
    'a second header section',
  ],
  [
    'trailers with a status',
    (socket, id) => socket.write(headersFrame(id, OK, { end: true })),
    'a second header section',
  ],
  [
    'trailers with a line break',
    (socket, id) => socket.write(headersFrame(id, [['a', 'b\r\nc: d']], { end: true })),
    'malformed header fields',
  ],
  [
    'more than its length',
    (socket, id) => socket.write(dataFrame(id, 'x'.repeat(100))),
    'longer than its Content-Length',
  ],
  ['less than its length', (socket, id) => socket.write(dataFrame(id, '', { end: true })), 'before its Content-Length'],
];

describe('a response is aborted, and the next request is served, after', () => {
  test.each(WITHIN_THE_RESPONSE)('%s', async (_, answer, message) => {
    const { get, log, beGood } = await setUp((socket, id) => {
      socket.write(Buffer.concat([head(id, [...OK, ['content-length', '50']]), dataFrame(id, 'part')]));
      setTimeout(() => answer(socket, id), 100);
    });
    expect(await get('/files/bad')).toBe('200 partaborted');
    expect(log()).toContain(message);
    beGood();
    expect(await get('/files/good')).toBe('200 good{}');
  });
});

test('DATA beyond the window of a stream whose client does not read ends its exchange', async () => {
  const { proxy, get, log, beGood } = await setUp((socket, id) => {
    socket.write(Buffer.concat([head(id), repeat(dataFrame(id, Buffer.alloc(16_384)), 2_000)]));
  });
  const request = httpRequest({
    port: proxy.port,
    path: '/files/bad',
    headers: { authorization: 'Bearer A' },
    agent: false,
  });
  request.on('error', () => {});
  const [response] = (await once(request.end(), 'response')) as [IncomingMessage];
  response.pause().on('error', () => {});
  await until('the exchange has ended', () => log().includes('more DATA than the window'));
  beGood();
  // The rest of what the upstream sent ends its connection.
  await until('other requests are served', async () => (await get('/files/good')) === '200 good{}');
  request.destroy();
});

test('frames after the end of a response are ignored', async () => {
  const { get } = await setUp((socket, id) => {
    respondOk(socket, id);
    socket.write(Buffer.concat([dataFrame(id, 'more'), resetFrame(id, 0), windowUpdateFrame(id, 5)]));
  });
  expect(await get('/files/1')).toBe('200 good{}');
  expect(await get('/files/2')).toBe('200 good{}');
});

test('a connection on which nothing arrives is not used again after a request that got no response', async () => {
  const { get, beGood } = await setUp((socket) => socket.pause());
  expect(await get('/files/bad')).toMatch(/^504 /);
  beGood();
  expect(await get('/files/a')).toBe('200 good{}');
});
