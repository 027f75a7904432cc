import { setImmediate } from 'node:timers/promises';
import { connect as tlsConnect } from 'node:tls';
import { afterEach, describe, expect, test, vi } from 'vitest';
import { HANDSHAKE_SECONDS } from '../../src/listener/listener-options.ts';
import { fragmentClientHello } from '../support/fragmented-client-hello.ts';
import { createCa, issue, issueServer } from '../support/pki.ts';
import { GET, readUntil, useListeners } from './open-listeners.ts';

const listeners = useListeners();
const { call, connectPlain, connectTls, listen, withAlice } = listeners;
// Before the listeners are closed: hooks after a test run in reverse order.
afterEach(() => void vi.useRealTimers());

describe('the certificate of a connection', () => {
  test('C01 is the one whose key the client has proved to possess', async () => {
    const { port } = await listen();
    expect((await call(port, withAlice())).body.certificate).toBe('alice');
  });

  test('C01 is accepted from any issuer; it is verified for each request', async () => {
    const { port } = await listen();
    const outsider = await issue(await createCa({ name: 'CN=Stranger' }));
    expect((await call(port, { cert: outsider.pem, key: outsider.keyPem })).body.certificate).toBe('other');
  });

  test.each(['TLSv1.2', 'TLSv1.3'] as const)(
    'C02 is absent if the client has none, also on a resumed %s session; a resumed session keeps its certificate',
    async (version) => {
      const { port } = await listen();
      for (const [presented, expected] of [
        [{}, undefined],
        [withAlice(), 'alice'],
      ] as const) {
        const options = { ...presented, minVersion: version, maxVersion: version };
        const first = await connectTls(port, options);
        first.write(GET);
        const reply = await readUntil(first, /\}$/);
        const resumed = await connectTls(port, {
          minVersion: version,
          maxVersion: version,
          session: first.sessions.at(-1),
        });
        resumed.write(GET);
        const resumedReply = await readUntil(resumed, /\}$/);
        expect(resumed.isSessionReused()).toBe(true);
        for (const response of [reply, resumedReply])
          expect(JSON.parse(response.slice(response.indexOf('{')))['certificate']).toBe(expected);
      }
    },
  );

  test('C02 is not requested when disabled', async () => {
    const { port } = await listen({ ask: 'never' });
    expect((await call(port, withAlice())).body.certificate).toBeUndefined();
  });
});

describe('C18 a certificate is requested for some names', () => {
  const strict = ['strict.example.test'];
  const withNames = (servername: string, host: string) => ({ ...withAlice(), servername, headers: { host } });

  test('C18 it is requested for these names and not for others', async () => {
    const { port } = await listen({ ask: strict });
    const request = await call(port, withNames('STRICT.example.test', 'strict.example.test'));
    const withoutRequest = await call(port, withNames('open.example.test', 'open.example.test'));
    expect(request.body.certificate).toBe('alice');
    expect(withoutRequest.status).toBe(200);
    expect(withoutRequest.body.certificate).toBeUndefined();
  });

  test.each(['strict.example.test', 'Strict.Example.Test.', 'strict.example.test:8443'])(
    'C18 a connection opened for another name is misdirected for %s',
    async (host) => {
      const { port } = await listen({ ask: strict });
      const reply = await call(port, withNames('open.example.test', host));
      expect(reply.status).toBe(421);
      expect(reply.body.error).toBe('misdirected_request');
    },
  );

  test('C18 the strict name hidden in a second Host or in the target is found too', async () => {
    const { port } = await listen({ ask: strict });
    for (const head of [
      'GET / HTTP/1.1\r\nHost: open.example.test\r\nHost: strict.example.test\r\n\r\n',
      'GET https://strict.example.test/ HTTP/1.1\r\nHost: open.example.test\r\n\r\n',
    ]) {
      const socket = await connectTls(port, { servername: 'open.example.test' });
      socket.write(head);
      expect(await readUntil(socket)).toMatch(/^HTTP\/1\.1 421 /);
    }
  });

  test('C18 a client without SNI is asked for a certificate', async () => {
    const { port } = await listen({ ask: strict });
    const reply = await call(port, { ...withAlice(), servername: '' });
    expect(reply.body.certificate).toBe('alice');
  });

  test('C18 a ClientHello in one-byte records is parsed like any other', async () => {
    const { port } = await listen({ ask: strict });
    for (const [servername, expected] of [
      ['strict.example.test', 'alice'],
      ['open.example.test', undefined],
    ] as const) {
      const wire = await connectPlain(port);
      const socket = await connectTls(port, {
        ...withAlice(),
        socket: fragmentClientHello(wire),
        servername,
      });
      socket.write(GET.replace('localhost', servername));
      const response = await readUntil(socket, /\}$/);
      expect(JSON.parse(response.slice(response.indexOf('{')))['certificate']).toBe(expected);
    }
  });

  test('C18 a connection that does not start with a ClientHello is closed', async () => {
    const { port } = await listen({ ask: strict });
    const socket = await connectPlain(port);
    socket.write(GET);
    expect(await readUntil(socket)).not.toContain('200');
  });

  test('C18 a connection whose ClientHello does not arrive in time is closed', async () => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    const listener = await listen({ ask: strict });
    const slow = await connectPlain(listener.port);
    slow.write(Buffer.from([22, 3, 1]));
    while (listener.countConnections() === 0) await setImmediate();
    vi.advanceTimersByTime(HANDSHAKE_SECONDS * 1_000 - 1);
    await call(listener.port);
    expect(slow.readableEnded).toBe(false);
    vi.advanceTimersByTime(1);
    await readUntil(slow);
  });
});

describe('C19 abusive handshakes', () => {
  test('C19 a chain of four hundred certificates closes only its connection', async () => {
    const { port } = await listen();
    const chain = Array.from({ length: 400 }, () => listeners.alice.pem).join('');
    const socket = tlsConnect({
      host: '127.0.0.1',
      port,
      ca: listeners.ca.pem,
      servername: 'localhost',
      cert: chain,
      key: listeners.alice.keyPem,
    });
    listeners.sockets.push(socket);
    socket.on('error', () => {}).write(GET);
    expect(await readUntil(socket)).not.toContain('200 OK');
    expect((await call(port, withAlice())).body.certificate).toBe('alice');
  });

  test('C19 renegotiation is refused', async () => {
    const { port } = await listen();
    const socket = await connectTls(port, { maxVersion: 'TLSv1.2', ...withAlice() });
    const refused = await new Promise<boolean>((resolve) => {
      socket.on('close', () => resolve(true)).on('error', () => resolve(true));
      socket.renegotiate({ rejectUnauthorized: false }, (error) => resolve(error !== null));
    });
    expect(refused).toBe(true);
  });
});

describe('the server certificate', () => {
  test('changes for new connections without closing the port, with the new minimum TLS version', async () => {
    const listener = await listen();
    const next = await issueServer(listeners.ca, { commonName: 'next' });
    const before = await connectTls(listener.port);
    listener.setSecureContext({ ...listeners.createTlsMaterial(next), minVersion: 'TLSv1.3' });
    const after = await connectTls(listener.port);
    expect(before.getPeerX509Certificate()?.serialNumber.toLowerCase()).toBe(listeners.server.serial);
    expect(after.getPeerX509Certificate()?.serialNumber.toLowerCase()).toBe(next.serial);
    await expect(call(listener.port, { maxVersion: 'TLSv1.2' })).rejects.toThrow();
    before.write(GET);
    expect(await readUntil(before, /\}$/)).toContain('200 OK');
  });

  test('is kept if the new one cannot be used', async () => {
    const listener = await listen({ ask: ['strict.example.test'] });
    expect(() =>
      listener.setSecureContext({ ...listeners.createTlsMaterial(), key: listeners.alice.keyPem }),
    ).toThrow();
    expect((await call(listener.port)).status).toBe(200);
  });
});

describe.each([
  ['TLS', {}],
  ['TLS with parsed ClientHello', { ask: ['strict.example.test'] }],
] as const)('plain HTTP on a listener with %s', (_, options) => {
  test('gets a response that says what to do, and the connection is closed', async () => {
    const rejected: string[] = [];
    const requests: string[] = [];
    const { port } = await listen({
      ...options,
      onRejected: (kind) => void rejected.push(kind),
      onRequest({ request }) {
        requests.push(request.url);
        return { status: 200, headers: {} };
      },
    });
    for (const line of ['GET / HTTP/1.1', 'POST /authsvc/Authorize/Token HTTP/1.1', 'HEAD /x HTTP/1.1']) {
      const socket = await connectPlain(port);
      socket.write(`${line}\r\nHost: localhost\r\n\r\n`);
      const response = await readUntil(socket);
      expect(response).toMatch(
        /^HTTP\/1\.1 400 Bad Request\r\n.*\r\n\r\nThis port expects TLS: use https:\/\/ in the URL\.\n$/s,
      );
    }
    expect([rejected, requests]).toEqual([['handshake', 'handshake', 'handshake'], []]);
  });

  test('other bytes get no response', async () => {
    const { port } = await listen(options);
    for (const bytes of ['SSH-2.0-OpenSSH_9.6\r\n', '\0\0\0\0\0\0\0\0\0\0\0', 'GETTING STARTED\r\n\r\n']) {
      const socket = await connectPlain(port);
      socket.write(bytes);
      expect(await readUntil(socket)).not.toContain('HTTP');
    }
    expect((await call(port)).status).toBe(200);
  });
});
