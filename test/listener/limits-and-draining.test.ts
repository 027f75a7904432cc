import { connect, type Socket } from 'node:net';
import { describe, expect, test } from 'vitest';
import type { Reply } from '../../src/http/reply.ts';
import type { RequestOutcome } from '../../src/http/request-context.ts';
import { until } from '../support/serve-process.ts';
import { createPeerList, GET, readUntil, useListeners } from './open-listeners.ts';

const { call, connectPlain, connectTls, describeRequest, listen, sockets, withAlice } = useListeners();

describe('limits', () => {
  const limits = { headers: 16_384, headerTimeout: 10, connections: 3 };
  const variants = [
    ['directly', {}],
    ['behind the PROXY protocol', { proxyProtocol: createPeerList(['10.0.0.0', 8]) }],
  ] as const;

  test.each(variants)('%s: a malformed request gets an error, and its connection is closed', async (_name, variant) => {
    const { port } = await listen({ plain: true, limits, ...variant });
    for (const [bytes, status] of [
      ['GET / HTTP/1.1\r\nBad Header: x\r\n\r\n', 400],
      [`GET / HTTP/1.1\r\nHost: a\r\nX: ${'x'.repeat(17_000)}\r\n\r\n`, 431],
      ['GET / HTTP/1.1\r\nHost: a\r\nExpect: y 100-continue\r\n\r\n', 417],
      ['GET / HTTP/1.1\r\nHost: a\r\nExpect: foo\r\n\r\n', 417],
      ['CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n', 405],
    ] as const) {
      const socket = await connectPlain(port);
      socket.write(bytes);
      expect(await readUntil(socket)).toMatch(new RegExp(`^HTTP/1\\.1 ${status} `));
    }
  });

  test('a head that does not arrive in time is 408, directly and behind the PROXY protocol', async () => {
    await Promise.all(
      variants.map(async ([, variant]) => {
        const { port } = await listen({ plain: true, limits: { ...limits, headerTimeout: 0.1 }, ...variant });
        const socket = await connectPlain(port);
        socket.write('GET / HTTP/1.1\r\nHost:');
        expect(await readUntil(socket)).toMatch(/^HTTP\/1\.1 408 /);
      }),
    );
  });

  test.each(variants)('%s: beyond the limit, a new connection replaces the oldest idle one', async (_name, variant) => {
    const listener = await listen({ plain: true, limits, ...variant });
    const openSockets: Socket[] = [];
    for (let count = 0; count < 3; count += 1) {
      const socket = await connectPlain(listener.port);
      socket.write(GET);
      await readUntil(socket, /\}$/);
      openSockets.push(socket);
    }
    expect(listener.countConnections()).toBe(3);
    const late = await connectPlain(listener.port);
    expect(await readUntil(openSockets[0] as Socket)).toBe('');
    for (const socket of [late, ...openSockets.slice(1)]) {
      socket.write(GET);
      expect(await readUntil(socket, /\}$/)).toContain('200 OK');
    }
    expect(listener.countConnections()).toBe(3);
  });

  test.each(['h2c', 'websocket'])('an upgrade to %s is an ordinary request for a handler', async (protocol) => {
    const { port } = await listen({ plain: true });
    const socket = await connectPlain(port);
    socket.write(`GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, close\r\nUpgrade: ${protocol}\r\n\r\n`);
    expect(await readUntil(socket)).toContain('200 OK');
  });

  test('100 Continue is sent when the body is read, and not if the response does not read it', async () => {
    let readsBody = true;
    const { port } = await listen({
      plain: true,
      async onRequest(context) {
        if (!readsBody) return { status: 401, headers: {} };
        await context.readBody(100, 30);
        return { status: 200, headers: {}, body: 'done', close: true };
      },
    });
    const request = 'POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n';
    const first = await connectPlain(port);
    first.write(request);
    expect(await readUntil(first, /\r\n\r\n/)).toBe('HTTP/1.1 100 Continue\r\n\r\n');
    first.write('ok');
    expect(await readUntil(first)).toMatch(/^HTTP\/1\.1 200 OK/);
    readsBody = false;
    const second = await connectPlain(port);
    second.write(request);
    expect(await readUntil(second)).toMatch(/^HTTP\/1\.1 401 /);
  });
});

describe('stopping', () => {
  const variants = [
    ['plain', { plain: true }],
    ['TLS', {}],
    ['TLS with parsed ClientHello', { ask: ['strict.example.test'] }],
  ] as const;

  test.each(variants)(
    '%s: a drain lets requests in progress end with `Connection: close`, and closes idle connections',
    async (_name, variant) => {
      const running: ((reply: Reply) => void)[] = [];
      const outcomes: RequestOutcome[] = [];
      const listener = await listen({
        ...variant,
        onRequest: (context) =>
          context.request.url === '/slow'
            ? new Promise<Reply>((resolve) => running.push(resolve))
            : describeRequest(context),
        onRequestEnd: (_call, end) => outcomes.push(end),
      });
      const connectTo = (): Promise<Socket> =>
        'plain' in variant ? connectPlain(listener.port) : connectTls(listener.port, withAlice());
      const idle = await connectTo();
      idle.write(GET);
      await readUntil(idle, /\}$/);
      const busy = await connectTo();
      busy.write(GET.replace('/', '/slow'));
      await until('the request has arrived', () => running.length === 1);
      expect(listener.countConnections()).toBe(2);

      const idleEnded = readUntil(idle);
      const drained = listener.drain(60);
      await idleEnded;
      const response = readUntil(busy);
      running[0]?.({ status: 200, headers: {}, body: 'at last' });
      expect(await response).toMatch(/connection: close.*at last/is);
      expect(await drained).toBe(true);
      expect(listener.countConnections()).toBe(0);
      expect(outcomes).toHaveLength(2);
      expect(outcomes[1]).toMatchObject({ status: 200, aborted: false });
      await expect(call(listener.port, { plain: 'plain' in variant })).rejects.toThrow();
    },
  );

  test.each(variants)(
    '%s: a request that does not end in time is cut off, and the drain reports it',
    async (_name, variant) => {
      let running = 0;
      const listener = await listen({
        ...variant,
        onRequest() {
          running += 1;
          return new Promise(() => {});
        },
      });
      const socket = 'plain' in variant ? await connectPlain(listener.port) : await connectTls(listener.port);
      socket.write(GET);
      await until('the request has arrived', () => running === 1);
      const closed = readUntil(socket);
      expect(await listener.drain(0.2)).toBe(false);
      await closed;
      await until('no connection is open', () => listener.countConnections() === 0);
    },
  );
});

describe('a request without a length and without chunks', () => {
  const sendRaw = async (port: number, text: string, end: RegExp): Promise<string> => {
    const socket = connect(port, '127.0.0.1');
    sockets.push(socket);
    let received = '';
    await new Promise<void>((resolve, reject) => {
      socket.on('error', reject).on('close', () => resolve());
      socket.setEncoding('latin1').on('data', (part: string) => {
        received += part;
        if (end.test(received)) resolve();
      });
      socket.write(text);
    });
    return received;
  };

  test('has an empty body, and the connection stays open', async () => {
    const listener = await listen({
      plain: true,
      async onRequest(context) {
        const body = await context.readBody(100, 30);
        const text = body.kind === 'complete' ? body.bytes.toString() : body.kind;
        return { status: 200, headers: {}, body: `<${text}>` };
      },
    });
    const head = 'POST / HTTP/1.1\r\nHost: a\r\n';
    const text = await sendRaw(
      listener.port,
      `${head}\r\n${head}Content-Length: 2\r\n\r\nab${head}\r\n`,
      /<>[^]*<ab>[^]*<>/,
    );
    expect(text.match(/<[^>]*>/g)).toEqual(['<>', '<ab>', '<>']);
  });
});
