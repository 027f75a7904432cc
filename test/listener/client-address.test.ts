import { setImmediate } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { createPeerList, GET, LOCAL, readUntil, useListeners } from './open-listeners.ts';

const { call, connectPlain, connectTls, listen, withAlice } = useListeners();

describe('the client address and request id', () => {
  test('X-Forwarded-For and X-Request-Id of an untrusted client are ignored', async () => {
    const { port } = await listen({ plain: true });
    const { body } = await call(port, {
      plain: true,
      headers: { 'x-forwarded-for': '203.0.113.9', 'x-request-id': 'abcdefgh12345678' },
    });
    expect(body.client).toBe('127.0.0.1');
    expect(body.id).not.toBe('abcdefgh12345678');
  });

  test.each([
    ['203.0.113.9', '203.0.113.9'],
    ['198.51.100.7, 203.0.113.9', '203.0.113.9'],
    ['198.51.100.7, 203.0.113.9, 10.0.0.3', '203.0.113.9'],
    ['10.0.0.4, 10.0.0.3', '10.0.0.4'],
    ['evil, 10.0.0.3', '10.0.0.3'],
    ['evil', '127.0.0.1'],
    ['[2001:db8::1]:4711', '2001:db8::1'],
    ['203.0.113.9:80', '203.0.113.9'],
  ])('behind listed proxies X-Forwarded-For %j means %s', async (forwarded, client) => {
    const trustedProxies = createPeerList(['127.0.0.0', 8], ['10.0.0.0', 8]);
    const { port } = await listen({ plain: true, trustedProxies });
    const { body } = await call(port, { plain: true, headers: { 'x-forwarded-for': forwarded } });
    expect(body).toMatchObject({ peer: '127.0.0.1', client });
  });

  test('a listed proxy’s request id is kept if it is well-formed', async () => {
    const { port } = await listen({ plain: true, trustedProxies: LOCAL });
    const getIdFor = async (id: string) => (await call(port, { plain: true, headers: { 'x-request-id': id } })).body.id;
    expect(await getIdFor('abcdefgh12345678')).toBe('abcdefgh12345678');
    expect(await getIdFor('a"b{}<script>xx')).toMatch(/^[A-Za-z0-9_-]{16}$/);
  });
});

describe('the PROXY protocol', () => {
  const V2 = Buffer.from('0d0a0d0a000d0a515549540a', 'hex');
  const v2 = (command: number, family: number, rest: Buffer): Buffer => {
    const head = Buffer.from([command, family, 0, 0]);
    head.writeUInt16BE(rest.length, 2);
    return Buffer.concat([V2, head, rest]);
  };
  const ipv4 = Buffer.from([203, 0, 113, 9, 10, 0, 0, 1, 0x10, 0x00, 0x01, 0xbb]);
  const cases: readonly (readonly [string, Buffer, string])[] = [
    ['version 1', Buffer.from('PROXY TCP4 203.0.113.9 10.0.0.1 4096 443\r\n'), '203.0.113.9'],
    ['version 1, IPv6', Buffer.from('PROXY TCP6 2001:db8::1 ::1 4096 443\r\n'), '2001:db8::1'],
    ['version 1, unknown', Buffer.from('PROXY UNKNOWN\r\n'), '127.0.0.1'],
    ['version 2', v2(0x21, 0x11, ipv4), '203.0.113.9'],
    ['version 2 with extras', v2(0x21, 0x11, Buffer.concat([ipv4, Buffer.from([4, 0, 1, 0])])), '203.0.113.9'],
    [
      'version 2, IPv6',
      v2(0x21, 0x21, Buffer.from(`20010db8${'00'.repeat(11)}01${'00'.repeat(20)}`, 'hex')),
      '2001:db8::1',
    ],
    ['version 2, local', v2(0x20, 0x00, Buffer.alloc(0)), '127.0.0.1'],
  ];

  test.each(cases)(
    '%s from a listed peer provides the client address, over TLS and plain',
    async (_name, header, peer) => {
      const secure = await listen({ proxyProtocol: LOCAL });
      const rawSocket = await connectPlain(secure.port);
      rawSocket.write(header);
      const socket = await connectTls(secure.port, { socket: rawSocket, ...withAlice() });
      socket.write(GET);
      const response = await readUntil(socket, /\}$/);
      expect(JSON.parse(response.slice(response.indexOf('{')))).toMatchObject({ peer, certificate: 'alice' });

      const plain = await listen({ proxyProtocol: LOCAL, plain: true });
      const direct = await connectPlain(plain.port);
      // In two pieces, split inside the header.
      direct.write(header.subarray(0, 9));
      await setImmediate();
      direct.write(Buffer.concat([header.subarray(9), Buffer.from(GET)]));
      expect(await readUntil(direct, /\}$/)).toContain(`"peer":"${peer}"`);
    },
  );

  test.each([
    ['no header', Buffer.from(GET)],
    ['an invalid address', Buffer.from(`PROXY TCP4 999.0.113.9 10.0.0.1 4096 443\r\n${GET}`)],
    ['an endless header', Buffer.from(`PROXY TCP4 ${'1'.repeat(200)}`)],
    ['a version 2 header that is too long', Buffer.concat([V2, Buffer.from([0x21, 0x11, 0xff, 0xff])])],
    ['a version 2 header that is too short', Buffer.concat([V2, Buffer.from([0x21, 0x11, 0, 4, 1, 2, 3, 4])])],
  ])('the connection of a listed peer that sends %s is closed without a response', async (_name, bytes) => {
    const { port } = await listen({ proxyProtocol: LOCAL, plain: true });
    const socket = await connectPlain(port);
    socket.write(bytes);
    expect(await readUntil(socket)).toBe('');
  });

  test('from any other peer it is an invalid request', async () => {
    const { port } = await listen({ proxyProtocol: createPeerList(['10.0.0.0', 8]), plain: true });
    const socket = await connectPlain(port);
    socket.write(`PROXY TCP4 203.0.113.9 10.0.0.1 4096 443\r\n${GET}`);
    expect(await readUntil(socket)).toMatch(/^HTTP\/1\.1 400 /);
  });
});
