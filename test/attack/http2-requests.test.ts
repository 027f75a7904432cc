import { connect } from 'node:http2';
import { afterEach, describe, expect, test } from 'vitest';
import {
  type Field,
  FLAG,
  FRAME,
  type FrameClient,
  frame,
  frameClient,
  requestFields,
} from '../support/http2-frames.ts';
import { headerValues, respondOk } from '../support/recording-upstream.ts';
import { until } from '../support/serve-process.ts';
import { ALICE } from '../support/test-gateway.ts';
import { useAttackGateway } from './attack-gateway.ts';
import { waitUntilSettled } from './wait-until-settled.ts';

/** Rows H27 and H28, and the guarantees for HTTP/2 clients: requests as frames, compared with the upstream's bytes. */
const attack = useAttackGateway((settings) => ({
  ...settings,
  publicUrl: 'https://localhost:8443',
  limits: { ...settings.limits, headers: '8KiB', body: '1MiB', url: '2KiB' },
}));

const openClients: FrameClient[] = [];
afterEach(() => {
  for (const client of openClients.splice(0)) client.destroy();
});

async function openClient(settings?: readonly (readonly [number, number])[]): Promise<FrameClient> {
  const { gateway } = attack;
  const client = await frameClient(gateway.port, { ca: gateway.ca.pem, ...(settings && { settings }) });
  openClients.push(client);
  return client;
}

const withToken = (fields: readonly Field[]): Field[] => [...fields, ['authorization', `Bearer ${attack.token}`]];

/** Sends a request on a new connection. Without status and reset, the connection was closed. */
async function send(fields: readonly Field[], body?: string) {
  attack.upstream.reset();
  const client = await openClient();
  const stream = client.request(fields, { end: body === undefined });
  if (body !== undefined) client.send(frame(FRAME.data, FLAG.endStream, stream, Buffer.from(body, 'latin1')));
  await client.until(
    () => client.outcome(stream)?.reset !== undefined || client.endedCleanly(stream) || client.isOver(),
  );
  return { ...client.outcome(stream), body: client.body(stream), over: client.isOver() };
}

const goodFields = () => withToken(requestFields('/files/1'));

describe('H27 a malformed HTTP/2 request is never forwarded as an HTTP/1.1 request', () => {
  const without = (name: string): Field[] => requestFields('/files/1').filter(([given]) => given !== name);
  const cases: Readonly<Record<string, () => readonly Field[]>> = {
    'a connection field': () => [...goodFields(), ['connection', 'close']],
    'a keep-alive field': () => [...goodFields(), ['keep-alive', 'timeout=5']],
    'a proxy-connection field': () => [...goodFields(), ['proxy-connection', 'keep-alive']],
    'an upgrade field': () => [...goodFields(), ['upgrade', 'websocket']],
    'a transfer coding': () => [...goodFields(), ['transfer-encoding', 'chunked']],
    'te other than trailers': () => [...goodFields(), ['te', 'gzip']],
    'a name in capitals': () => [...goodFields(), ['X-Upper', '1']],
    'two paths': () => [...goodFields().slice(0, 4), [':path', '/admin/1'], ...goodFields().slice(4)],
    'two authorities': () => [...goodFields().slice(0, 4), [':authority', 'evil.test'], ...goodFields().slice(4)],
    'a pseudo-header after other fields': () => [...goodFields().slice(1), goodFields()[0] as Field],
    'an unknown pseudo-header': () => [[':evil', '1'], ...goodFields()],
    'no path': () => withToken(without(':path')),
    'no authority and no host': () => withToken(without(':authority')),
    'an empty path': () => withToken(requestFields('')),
    'a path without a slash': () => withToken(requestFields('files/1')),
    'a space in the path': () => withToken(requestFields('/files/1 HTTP/1.1')),
    'a line break in the path': () => withToken(requestFields('/files/1\r\nx: y')),
    'a fragment in the path': () => withToken(requestFields('/files/1#x')),
    'a method that is not a token': () => withToken(requestFields('/files/1', 'GET /admin HTTP/1.1\r\n')),
    CONNECT: () =>
      withToken([
        [':method', 'CONNECT'],
        [':authority', 'evil.test:443'],
      ]),
    'extended CONNECT, which is not offered': () => [
      [':protocol', 'websocket'],
      ...withToken(requestFields('/socket', 'CONNECT')),
    ],
    'a host that is not the authority': () => [...goodFields(), ['host', 'evil.test']],
    'the authority and two hosts': () => [...goodFields(), ['host', 'localhost:8443'], ['host', 'evil.test']],
    'an authority with a user': () => withToken(requestFields('/files/1', 'GET', 'a@localhost:8443')),
    'an authority with a path': () => withToken(requestFields('/files/1', 'GET', 'localhost:8443/x')),
    'two lengths': () => [...goodFields(), ['content-length', '1'], ['content-length', '2']],
    'a length that is a list': () => [...goodFields(), ['content-length', '1, 1']],
    'a negative length': () => [...goodFields(), ['content-length', '-1']],
  };
  for (const [name, fields] of Object.entries(cases))
    test(`H27 ${name}`, async () => {
      const { status, reset, over } = await send(fields());
      expect({
        refused: status === undefined ? reset !== undefined || over : status >= 400 && status < 500,
        status,
      }).toEqual({ refused: true, status });
      expect(attack.upstream.bytes()).toBe('');
      await attack.expectHealthy();
    });

  test('H27 a field whose value contains CR, LF or NUL is rejected or dropped, and never becomes a separate line', async () => {
    for (const value of ['a\r\nx-forwarded-user: root', 'a\nx-evil: 1', 'a\rb', 'a\0b']) {
      await send([...goodFields(), ['x-note', value]]);
      const bytes = attack.upstream.bytes();
      expect([value, /evil|root|\0/.test(bytes), attack.upstream.requests.length <= 1]).toEqual([value, false, true]);
      for (const request of attack.upstream.requests) expect(headerValues(request, 'x-note')).toEqual([]);
      await attack.expectHealthy();
    }
  });

  test('H27 a field whose name contains a colon, a space or a line break is rejected or dropped', async () => {
    for (const name of ['x-forwarded-user: root', 'x evil', 'x-evil\r\ny', '']) {
      await send([...goodFields(), [name, 'evil']]);
      expect([name, attack.upstream.bytes().includes('evil')]).toEqual([name, false]);
      await attack.expectHealthy();
    }
  });

  test('H22 a method that is not in upper-case letters, or is too long, is refused on every path', async () => {
    const methods = ['delete', 'Delete', 'gET', 'trace', 'X'.repeat(33), 'X'.repeat(5_000), 'GET1', 'M_X', '-A', '!'];
    for (const method of methods)
      for (const path of ['/files/1', '/public/a', '/authsvc/Authorize/Verify', '/authsvc/nowhere']) {
        const { status } = await send(withToken(requestFields(path, method)));
        expect([method, path, status]).toEqual([method, path, 400]);
        expect(attack.upstream.bytes()).toBe('');
      }
    const logged = attack.gateway.log.filter(({ event }) => event === 'request');
    expect(Math.max(...logged.map((line) => String(line['method']).length))).toBe(32);
    expect((await send(withToken(requestFields('/files/1', 'VERSION-CONTROL')))).status).toBe(200);
    expect(attack.upstream.requests[0]?.method).toBe('VERSION-CONTROL');
    await attack.expectHealthy();
  });

  test('H27 a body that is longer or shorter than its length never reaches the upstream as a complete request', async () => {
    for (const [length, body] of [
      ['3', 'longer'],
      ['30', 'shorter'],
      ['0', 'some'],
    ] as const) {
      const { status, over, reset } = await send(
        [...withToken(requestFields('/files/1', 'POST')), ['content-length', length]],
        body,
      );
      expect([length, status === 200, reset !== undefined || over || (status ?? 0) >= 400]).toEqual([
        length,
        false,
        true,
      ]);
      expect([length, attack.upstream.requests.length]).toEqual([length, 0]);
      await attack.expectHealthy();
    }
  });
});

describe('HTTP/2 requests are forwarded as HTTP/1.1', () => {
  test('H28 bytes from 0x80 to 0xff in a value arrive as they are, or the request is refused', async () => {
    const value = Array.from({ length: 128 }, (_, index) => String.fromCharCode(128 + index)).join('');
    const { status } = await send([...goodFields(), ['x-note', value]]);
    if (status === 200) expect(headerValues(attack.upstream.requests[0], 'x-note')).toEqual([value]);
    else expect(status).toBe(400);
    await attack.expectHealthy();
  });

  test('H28 the authority becomes the host, and an equal host field is not a second one', async () => {
    const { status } = await send([...goodFields(), ['host', 'localhost:8443']]);
    expect(status).toBe(200);
    const [request] = attack.upstream.requests;
    expect(headerValues(request, 'x-forwarded-host')).toEqual(['localhost:8443']);
    expect(headerValues(request, 'host')).toEqual([attack.upstream.url.slice('http://'.length)]);
    expect(request?.headers.filter(([name]) => name.startsWith(':'))).toEqual([]);
  });

  test('H28 without an authority the host field applies', async () => {
    const fields = goodFields().filter(([name]) => name !== ':authority');
    expect((await send([...fields, ['host', 'localhost:8443']])).status).toBe(200);
    expect(headerValues(attack.upstream.requests[0], 'x-forwarded-host')).toEqual(['localhost:8443']);
  });

  test('H28 cookies in several fields are forwarded as one, without the session cookie', async () => {
    const cookies: Field[] = [
      ['cookie', 'a=1'],
      ['cookie', '__Host-gatehouse=secret'],
      ['cookie', 'b=2'],
    ];
    expect((await send([...goodFields(), ...cookies])).status).toBe(200);
    expect(headerValues(attack.upstream.requests[0], 'cookie')).toEqual(['a=1; b=2']);
  });

  for (const method of ['GET', 'HEAD', 'DELETE', 'OPTIONS', 'POST', 'PATCH'])
    test(`H31 a ${method} with a body and no length is one request, with new framing`, async () => {
      const smuggled = 'GET /admin/x HTTP/1.1\r\nHost: a\r\n\r\n';
      const { status } = await send(withToken(requestFields('/files/1', method)), smuggled);
      expect(status).toBe(200);
      expect(attack.upstream.requests.map(({ method: got, target, body }) => [got, target, body])).toEqual([
        [method, '/files/1', smuggled],
      ]);
      expect(headerValues(attack.upstream.requests[0], 'transfer-encoding')).toEqual([]);
      expect(headerValues(attack.upstream.requests[0], 'content-length')).toEqual([String(smuggled.length)]);
      await attack.expectHealthy();
    });

  test('H31 a body with a length keeps it', async () => {
    const fields = [...withToken(requestFields('/files/1', 'PUT')), ['content-length', '5'] as const];
    expect((await send(fields, 'hello')).status).toBe(200);
    expect(attack.upstream.requests[0]?.body).toBe('hello');
    expect(headerValues(attack.upstream.requests[0], 'content-length')).toEqual(['5']);
  });

  test('I01 identity headers of the client are replaced', async () => {
    const forged: Field[] = [
      ['x-forwarded-user', 'root'],
      ['x_forwarded_user', 'root'],
      ['x+forwarded+user', 'root'],
      ['x~forwarded|scope', 'root'],
      ['x-gatehouse-identity', 'root'],
      ['x-forwarded-for', '6.6.6.6'],
    ];
    expect((await send([...goodFields(), ...forged])).status).toBe(200);
    expect(attack.upstream.bytes()).not.toContain('root');
    expect(headerValues(attack.upstream.requests[0], 'x-forwarded-user')).toEqual([ALICE]);
    expect(headerValues(attack.upstream.requests[0], 'x-forwarded-for')).toEqual(['127.0.0.1']);
    expect(headerValues(attack.upstream.requests[0], 'x-forwarded-proto')).toEqual(['https']);
  });

  test('H20 100 Continue is sent after the token was validated, and not for an invalid token', async () => {
    attack.upstream.reset();
    const expectation: Field = ['expect', '100-continue'];
    const good = await openClient();
    const stream = good.request([...withToken(requestFields('/files/1', 'POST')), expectation], {
      end: false,
    });
    await good.until(() => good.frames.some(({ type, stream: on }) => type === FRAME.headers && on === stream));
    expect(good.outcome(stream)).toBeUndefined();
    good.send(frame(FRAME.data, FLAG.endStream, stream, Buffer.from('hello')));
    await good.until(() => good.endedCleanly(stream));
    expect(good.outcome(stream)).toEqual({ status: 200 });
    expect(attack.upstream.requests[0]?.body).toBe('hello');

    const bad = await openClient();
    const refused = bad.request([...requestFields('/files/1', 'POST'), expectation], { end: false });
    await bad.until(() => bad.endedCleanly(refused));
    const heads = bad.frames.filter(({ type, stream: on }) => type === FRAME.headers && on === refused);
    expect([heads.length, bad.outcome(refused)]).toEqual([1, { status: 401 }]);
    const next = bad.request(goodFields());
    await bad.until(() => bad.endedCleanly(next));
    expect(bad.outcome(next)).toEqual({ status: 200 });
  });

  test('H21 an unsupported expectation is refused', async () => {
    expect((await send([...goodFields(), ['expect', 'y 100-continue']])).status).toBe(417);
    expect(attack.upstream.bytes()).toBe('');
  });

  test('X06 a target that is too long is 414, too many fields or too large a head are 431', async () => {
    expect((await send(withToken(requestFields(`/files/${'a'.repeat(2_100)}`)))).status).toBe(414);
    const many = Array.from({ length: 101 }, (_, index): Field => [`x-${index}`, '1']);
    expect((await send([...requestFields('/files/1'), ...many])).status).toBe(431);
    const large = await send([...goodFields(), ['x-large', 'a'.repeat(9_000)]]);
    expect(large.status).toBe(431);
    expect(attack.upstream.bytes()).toBe('');
    await attack.expectHealthy();
  });
});

describe('responses over HTTP/2', () => {
  test('U15 HEAD, 204 and 304 end with their head; no connection field of the upstream is forwarded', async () => {
    for (const [method, status, head] of [
      ['HEAD', 200, 'Content-Length: 5'],
      ['GET', 204, 'X-A: b'],
      ['GET', 304, 'ETag: "x"'],
    ] as const) {
      attack.upstream.reset();
      attack.upstream.respondWith((socket) =>
        socket.write(
          `HTTP/1.1 ${status} Whatever\r\n${head}\r\nConnection: x-hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=9\r\nUpgrade: h2c\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nContent-Type: a/b\r\nContent-Type: a/c\r\n\r\n`,
        ),
      );
      const client = await openClient();
      const stream = client.request(withToken(requestFields('/files/1', method)));
      await client.until(() => client.endedCleanly(stream));
      expect([method, client.outcome(stream), client.body(stream)]).toEqual([method, { status }, '']);
      const next = client.request(withToken(requestFields('/public/2')));
      attack.upstream.respondWith(respondOk);
      await client.until(() => client.endedCleanly(next));
      expect(client.outcome(next)).toEqual({ status: 200 });
    }
  });

  const truncatedResponses: Readonly<Record<string, string>> = {
    'U02 within a length': 'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf',
    'U03 between chunks': 'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n',
    'U04 in a broken chunk': 'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalfXX5\r\n',
  };
  for (const [name, bytes] of Object.entries(truncatedResponses))
    test(`${name} a truncated response is reset, never ended, and other streams continue`, async () => {
      attack.upstream.reset();
      attack.upstream.respondWith((socket, request) => {
        if (request.target === '/files/breaks') socket.end(bytes);
        else respondOk(socket, request);
      });
      const client = await openClient();
      const broken = client.request(withToken(requestFields('/files/breaks')));
      const complete = client.request(withToken(requestFields('/files/whole')));
      await client.until(() => client.frames.some(({ type, stream }) => type === FRAME.reset && stream === broken));
      await client.until(() => client.endedCleanly(complete));
      expect([client.endedCleanly(broken), client.endedCleanly(complete), client.isOver()]).toEqual([
        false,
        true,
        false,
      ]);
      await attack.expectHealthy();
    });

  test('X12 a stream reset by its client aborts the upstream request', async () => {
    attack.upstream.reset();
    attack.upstream.respondWith((socket) =>
      socket.write('HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n'),
    );
    const client = await openClient();
    const streams = Array.from({ length: 20 }, () => client.request(goodFields()));
    await client.until(() => streams.every((stream) => client.body(stream) === 'half'));
    expect(attack.upstream.openConnections()).toBeGreaterThanOrEqual(20);
    for (const stream of streams) client.send(frame(FRAME.reset, 0, stream, Buffer.from([0, 0, 0, 8])));
    await until('the upstream connections are closed', () => attack.upstream.openConnections() === 0);
    await attack.expectHealthy();
  });

  test('X03 a client that sends no WINDOW_UPDATE gets no more than the initial window, and the upstream is throttled', async () => {
    attack.upstream.reset();
    let written = 0;
    let isPaused = false;
    attack.upstream.respondWith((socket) => {
      const part = Buffer.alloc(65_536, 'x');
      socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${part.length * 4_096}\r\n\r\n`);
      const more = (): void => {
        while (written < part.length * 4_096) {
          written += part.length;
          if (!socket.write(part)) {
            isPaused = true;
            socket.once('drain', more);
            return;
          }
          isPaused = false;
        }
      };
      more();
    });
    const before = process.memoryUsage().rss;
    const client = await openClient();
    const stream = client.request(goodFields());
    await client.until(() => client.body(stream).length >= 65_535);
    await waitUntilSettled(() => written, attack.gateway, '/authsvc/Authorize/Verify');
    expect(isPaused).toBe(true);
    expect(client.body(stream).length).toBe(65_535);
    // Most of it is in socket buffers; both ends of each socket are in this process.
    expect(written).toBeLessThan(64 * 1_048_576);
    expect(process.memoryUsage().rss - before).toBeLessThan(100 * 1_048_576);
    client.destroy();
    await until('the upstream connections are closed', () => attack.upstream.openConnections() === 0);
    await attack.expectHealthy();
  });

  test('X03 fifty concurrent responses larger than their windows reach a slow client completely', async () => {
    attack.upstream.reset();
    const part = Buffer.alloc(200_000, 'x');
    attack.upstream.respondWith((socket) => {
      socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${part.length}\r\n\r\n`);
      socket.write(part);
    });
    const { gateway } = attack;
    const session = connect(`https://localhost:${gateway.port}`, { ca: gateway.ca.pem });
    try {
      const lengths = await Promise.all(
        Array.from({ length: 50 }, async () => {
          const stream = session.request({
            ':path': '/files/1',
            ':authority': 'localhost:8443',
            authorization: `Bearer ${attack.token}`,
          });
          let length = 0;
          for await (const bytes of stream) {
            length += (bytes as Buffer).length;
            await new Promise(setImmediate);
          }
          return length;
        }),
      );
      expect(lengths).toEqual(lengths.map(() => part.length));
    } finally {
      session.destroy();
    }
    await attack.expectHealthy();
  });

  test('the token service gives the same responses over HTTP/2 as over HTTP/1.1', async () => {
    const { status, body } = await send(
      [...requestFields('/authsvc/Authorize/Token', 'POST'), ['content-type', 'application/json']],
      '{"client_id":"report-runner","refresh_token":"gh_rt_x"}',
    );
    expect([status, JSON.parse(body)]).toEqual([400, expect.objectContaining({ Error: 'invalid_grant' })]);
    expect((await send(requestFields('/authsvc/device'))).status).toBe(200);
    const verified = await send(withToken(requestFields('/authsvc/Authorize/Verify')));
    expect(verified.status).toBe(200);
  });
});
