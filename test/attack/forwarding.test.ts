import { describe, expect, onTestFinished, test } from 'vitest';
import { connectRawTls, isCompleteResponse, parseRawResponse } from '../support/raw-client.ts';
import { startRecordingUpstream } from '../support/recording-upstream.ts';
import { until } from '../support/serve-process.ts';
import { startGateway } from '../support/test-gateway.ts';
import { useAttackGateway } from './attack-gateway.ts';
import { writeMessage } from './framing-cases.ts';
import { matrixSettings } from './matrix-settings.ts';

/** Regressions in how requests and responses are forwarded. */
const attack = useAttackGateway((settings) => ({
  ...settings,
  tokens: { ...settings.tokens, endStreams: 'all' },
  upstreams: { default: { ...settings.upstreams?.['default'], bodyBuffer: 0 } },
  routes: [
    { path: '/pages/**', requires: 'files:read', cors: { origins: ['https://app.test'] } },
    ...(settings.routes ?? []),
  ],
}));

const countOccurrences = (text: string, part: string): number => text.split(part).length - 1;

describe('the rest of a request whose body was not read to its end', () => {
  test('is not read as a request when its token is revoked meanwhile', async () => {
    const { access_token: token } = await attack.gateway.grant();
    attack.upstream.reset();
    const client = await attack.client();
    onTestFinished(() => client.destroy());
    const rest = attack.write({ line: 'GET /public/smuggled HTTP/1.1', token: null });
    client.send(
      attack.write({
        line: 'POST /files/slow HTTP/1.1',
        headers: [`Content-Length: ${4 + rest.length}`],
        body: 'body',
        token,
      }),
    );
    await until('the upstream has received the beginning of the body', () => attack.upstream.bytes().includes('body'));
    const revoked = await attack.gateway.api('/authsvc/Revoke/Token', token);
    expect(revoked.status).toBe(200);
    await client.until((text) => isCompleteResponse(text));
    client.send(rest);
    client.send(attack.write({ line: 'GET /public/after HTTP/1.1', token: null }));
    const text = await client.until((all) => /public\/(?:after|smuggled)$/.test(all));
    expect(parseRawResponse(text).status).toBe(401);
    expect(text).not.toContain('smuggled');
    expect(attack.upstream.bytes()).not.toContain('smuggled');
  });
});

describe('a response whose Connection field names Content-Length', () => {
  test('keeps its framing, and the next response is separate', async () => {
    attack.upstream.reset();
    attack.upstream.respondWith((socket, { target }) =>
      socket.write(
        `HTTP/1.1 200 OK\r\nConnection: keep-alive, Content-Length\r\nContent-Length: ${target.length}\r\n\r\n${target}`,
      ),
    );
    const client = await attack.client();
    onTestFinished(() => client.destroy());
    for (const target of ['/public/one', '/public/two'])
      client.send(attack.write({ line: `GET ${target} HTTP/1.1`, token: null }));
    const text = await client.until(
      (all) => countOccurrences(all, 'HTTP/1.1 200') === 2 && all.includes('/public/two'),
    );
    const [, first = '', second = ''] = text.split('HTTP/1.1 200 OK\r\n');
    for (const [response, body] of [
      [first, '/public/one'],
      [second, '/public/two'],
    ] as const) {
      expect(response).toContain(body);
      expect(response).toMatch(/^(?:content-length: 11|transfer-encoding: chunked)\r$/im);
    }
    await attack.expectHealthy();
  });
});

describe('a response field whose value ends in a non-ASCII letter', () => {
  test('is forwarded to the last byte', async () => {
    attack.upstream.reset();
    const name = Buffer.from('voilà', 'utf8').toString('latin1');
    attack.upstream.respondWith((socket) =>
      socket.write(`HTTP/1.1 200 OK\r\nX-Name: \t ${name} \t\r\nContent-Length: 0\r\n\r\n`, 'latin1'),
    );
    const { head } = await attack.request({ line: 'GET /public/1 HTTP/1.1', token: null });
    const given = /^x-name:([^\r]*)\r$/im.exec(`${head}\r`)?.[1] ?? '';
    expect(
      Buffer.from(given, 'latin1')
        .toString('utf8')
        .replace(/^[\t ]+|[\t ]+$/g, ''),
    ).toBe('voilà');
    await attack.expectHealthy();
  });
});

describe('a response with a transfer coding other than chunked', () => {
  test.each([
    ['as well', ['Transfer-Encoding: gzip, chunked']],
    ['in two fields', ['Transfer-Encoding: gzip', 'Transfer-Encoding: chunked']],
    ['twice', ['Transfer-Encoding: chunked', 'Transfer-Encoding: chunked']],
  ])('is 502: %s', async (_, fields) => {
    attack.upstream.reset();
    attack.upstream.respondWith((socket) =>
      socket.write(`HTTP/1.1 200 OK\r\n${fields.join('\r\n')}\r\n\r\n5\r\nhello\r\n0\r\n\r\n`),
    );
    const response = await attack.request({ line: 'GET /public/1 HTTP/1.1', token: null });
    expect([response.status, response.body.includes('hello')]).toEqual([502, false]);
    await attack.expectHealthy();
  });
});

describe('a 401 for a page of another origin', () => {
  test.each([
    ['without a token', null, 401],
    ['with an invalid one', 'nonsense', 401],
  ])('can be read by the page, %s', async (_, token, status) => {
    const response = await attack.request({
      line: 'GET /pages/1 HTTP/1.1',
      headers: ['Origin: https://app.test'],
      token,
    });
    expect(response.status).toBe(status);
    expect(response.head).toMatch(/^access-control-allow-origin: https:\/\/app\.test\r$/im);
    await attack.expectHealthy();
  });
});

describe('names of forwarded fields used as values', () => {
  const TRACE = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';
  test.each([
    ['a host', ['Host: traceparent']],
    ['another host', ['Host: X-Request-Id']],
    ['a state', [`traceparent: ${TRACE}`, 'tracestate: traceparent']],
    ['another state', [`traceparent: ${TRACE}`, 'tracestate: X-Request-Id']],
    ['a plain field', ['X-Any: traceparent', 'X-Other: X-Request-Id']],
  ])('stay values: as %s', async (_, headers) => {
    attack.upstream.reset();
    const response = await attack.request({ line: 'GET /public/1 HTTP/1.1', headers, token: null });
    expect(response.status).toBe(200);
    expect(attack.upstream.requests).toHaveLength(1);
    const names = attack.upstream.requests[0]?.headers.map(([name]) => name) ?? [];
    for (const name of ['traceparent', 'x-request-id', 'x-forwarded-host'])
      expect([name, names.filter((other) => other === name).length]).toEqual([name, 1]);
    await attack.expectHealthy();
  });
});

describe('a reload while an opaque token is being read from the store', () => {
  test('keeps the previous configuration until the response is sent', async () => {
    const [before, after] = await Promise.all([startRecordingUpstream(), startRecordingUpstream()]);
    onTestFinished(async () => void (await Promise.all([before.close(), after.close()])));
    const gateway = await startGateway(
      matrixSettings(before.url, (settings) => ({
        ...settings,
        tokens: { ...settings.tokens, format: 'opaque' },
      })),
    );
    onTestFinished(() => gateway.close());
    const client = await connectRawTls(gateway.port, gateway.ca.pem);
    onTestFinished(() => client.destroy());
    const { access_token: token } = await gateway.grant();
    for (const upstream of [before, after])
      upstream.respondWith((socket, { target }) =>
        socket.write(`HTTP/1.1 200 OK\r\nKeep-Alive: timeout=60\r\nContent-Length: ${target.length}\r\n\r\n${target}`),
      );
    await gateway.api('/public/first');
    expect(before.openConnections()).toBe(1);
    const { grants } = gateway.server.store;
    const read = grants.read.bind(grants);
    const release = Promise.withResolvers<void>();
    const received = Promise.withResolvers<void>();
    Object.assign(grants, {
      read: async (id: string) => {
        received.resolve();
        await release.promise;
        return read(id);
      },
    });
    client.send(writeMessage({ line: 'GET /files/looked-up HTTP/1.1', token }));
    await received.promise;
    await gateway.reload((settings) => ({ ...settings, upstreams: { default: { url: after.url } } }));
    const { text } = await gateway.api('/public/second');
    expect([text, after.requests.length, before.openConnections()]).toEqual(['/public/second', 1, 1]);
    release.resolve();
    const response = await client.until((all) => isCompleteResponse(all));
    expect(parseRawResponse(response)).toMatchObject({ status: 200, body: '/files/looked-up' });
    expect(before.requests.map(({ target }) => target)).toEqual(['/public/first', '/files/looked-up']);
    await until('the connections of the previous configuration are closed', () => before.openConnections() === 0);
  });
});
