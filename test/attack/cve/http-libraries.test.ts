import { once } from 'node:events';
import { connect, createServer, type Socket } from 'node:net';
import { connect as connectTls } from 'node:tls';
import { describe, expect, onTestFinished, test } from 'vitest';
import { mutations } from '../../fuzz/mutations.ts';
import { FRAME, frame, frameClient, uint32 } from '../../support/http2-frames.ts';
import { issue } from '../../support/pki.ts';
import { until } from '../../support/serve-process.ts';
import { useAttackGateway } from '../attack-gateway.ts';
import { BODIED_METHODS, CHUNKED, chunk, END, SMUGGLED } from '../framing-cases.ts';

/** Attacks on the HTTP libraries that gatehouse uses or could have used. */
const attack = useAttackGateway((settings) => ({
  ...settings,
  // With a list of server names, gatehouse parses the ClientHello itself.
  listen: {
    port: 0,
    tls: { certificate: 'server.pem', key: 'server-key.pem', askCertificate: ['localhost'] },
  },
}));

describe('node http-proxy and its successors', () => {
  test('CVE-2026-29057 (http-proxy #1720, #1721; httpxy #158): a chunked DELETE or OPTIONS smuggles nothing', async () => {
    for (const [, method] of BODIED_METHODS) {
      attack.upstream.reset();
      const body = `${chunk(SMUGGLED)}${END}`;
      await attack.request({ line: `${method} /files/1 HTTP/1.1`, headers: [CHUNKED], body });
      expect([method, attack.upstream.requests.map(({ target }) => target)]).toEqual([method, ['/files/1']]);
    }
    await attack.expectHealthy();
  });

  test('http-proxy #527, #898: an upstream that resets the connection, at any point, fails one request only', async () => {
    const truncated = 'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc';
    for (const sent of ['', 'HTTP/1.1 2', truncated]) {
      attack.upstream.reset();
      attack.upstream.respondWith((socket) => {
        if (sent === '') socket.resetAndDestroy();
        else socket.write(sent, () => socket.resetAndDestroy());
      });
      const client = await attack.client();
      onTestFinished(() => client.destroy());
      client.send(attack.write({ line: 'POST /files/1 HTTP/1.1', headers: ['Content-Length: 2'], body: 'ok' }));
      const text = await client.until((all) => all.includes('502') || all.includes('abc'));
      expect(text).toMatch(sent === truncated ? /^HTTP\/1\.1 200 / : /^HTTP\/1\.1 502 /);
      // A truncated response must not look complete.
      if (sent === truncated) expect((await client.closed()).endsWith('abc')).toBe(true);
      attack.upstream.reset();
      await attack.expectHealthy();
    }
  });

  test('http-proxy-3 #5: a client that resets its WebSocket, at any point, affects no other client', async () => {
    const handshake = attack.write({
      line: 'GET /socket HTTP/1.1',
      headers: [
        'Connection: Upgrade',
        'Upgrade: websocket',
        'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==',
        'Sec-WebSocket-Version: 13',
      ],
    });
    const accepted =
      'HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n';
    for (const isAccepted of [false, true]) {
      attack.upstream.reset();
      attack.upstream.respondWith((socket) => void (isAccepted && socket.write(accepted)));
      const { port, ca } = attack.gateway;
      const rawSocket = connect(port, '127.0.0.1');
      onTestFinished(() => void rawSocket.destroy());
      const client = connectTls({ socket: rawSocket, ca: ca.pem, servername: 'localhost' });
      client.on('error', () => {}).write(handshake);
      await until('the upstream has received the request', () => attack.upstream.requests.length === 1);
      if (isAccepted) expect(String(await once(client, 'data'))).toMatch(/^HTTP\/1\.1 101 /);
      rawSocket.resetAndDestroy();
      await until('the upstream connection is closed', () =>
        attack.upstream.connectionStreams().some(({ bytes, closed }) => bytes.includes('/socket') && closed),
      );
      await attack.expectHealthy();
    }
  });
});

test('CVE-2026-1525 undici: two Content-Length fields that differ in case are refused', async () => {
  for (const names of [
    ['Content-Length', 'content-length'],
    ['CONTENT-LENGTH', 'Content-Length'],
    ['content-length', 'content-length'],
  ])
    for (const second of ['5', '0'])
      await attack.expectRejected(
        [400],
        attack.write({
          line: 'POST /files/1 HTTP/1.1',
          headers: [`${names[0]}: 5`, `${names[1]}: ${second}`],
          body: 'hello',
        }),
      );
});

/** Records the ClientHello of a real client. */
async function recordClientHello(): Promise<Buffer> {
  const server = createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const address = server.address();
  if (address === null || typeof address === 'string') throw new Error('expected a TCP address');
  const client = connectTls({
    host: '127.0.0.1',
    port: address.port,
    servername: 'localhost',
    ALPNProtocols: ['h2', 'http/1.1'],
  });
  client.on('error', () => {});
  try {
    const [accepted] = (await once(server, 'connection')) as [Socket];
    const [hello] = (await once(accepted, 'data')) as [Buffer];
    accepted.destroy();
    return hello;
  } finally {
    client.destroy();
    server.close();
  }
}

describe('Node', () => {
  test('CVE-2026-21637: no ClientHello, with any names and protocols, ends the process', async () => {
    const hello = await recordClientHello();
    const name = hello.indexOf('localhost');
    const renamed = ['local\0ost', '\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8\xf7', '........."', '*.*.*.*.*'].map((text) => {
      const changed = Buffer.from(hello);
      changed.write(text.slice(0, 9), name, 'latin1');
      return changed;
    });
    const inputs = [...renamed, ...mutations(hello, 300, 21_637)];
    while (inputs.length > 0)
      await Promise.all(
        inputs.splice(0, 38).map(async (bytes) => {
          const socket = connect(attack.gateway.port, '127.0.0.1');
          socket.on('error', () => {}).resume();
          socket.end(bytes);
          await once(socket, 'close');
        }),
      );
    await attack.expectHealthy();
  });

  const malformedBlocks: readonly (readonly [string, Buffer])[] = [
    ['an index beyond every table', frame(FRAME.headers, 5, 1, Buffer.from([0xff, 0xff, 0xff, 0x0f]))],
    ['a length beyond the block', frame(FRAME.headers, 5, 1, Buffer.from([0x40, 0x7f, 0x80, 0x80, 0x01]))],
    ['a table size beyond SETTINGS', frame(FRAME.headers, 5, 1, Buffer.from([0x3f, 0xe1, 0xff, 0xff, 0x7f]))],
    ['broken Huffman code', frame(FRAME.headers, 5, 1, Buffer.from([0x00, 0x82, 0xff, 0xff, 0x00]))],
  ];
  test('CVE-2025-59465: a malformed header block ends its connection, and nothing else', async () => {
    for (const [what, bytes] of malformedBlocks) {
      const client = await frameClient(attack.gateway.port, { ca: attack.gateway.ca.pem });
      onTestFinished(() => client.destroy());
      client.send(bytes);
      await client.until(() => client.isOver());
      expect([what, client.isOver()]).toEqual([what, true]);
      await attack.expectHealthy();
    }
  });

  test('CVE-2026-21714: connections whose window overflows are closed', async () => {
    for (let count = 0; count < 20; count += 1) {
      const client = await frameClient(attack.gateway.port, { ca: attack.gateway.ca.pem });
      client.send(
        frame(FRAME.windowUpdate, 0, 0, uint32(0x7fff_ffff)),
        frame(FRAME.windowUpdate, 0, 0, uint32(0x7fff_ffff)),
      );
      onTestFinished(() => client.destroy());
      await client.until(() => client.closed());
    }
    await attack.expectHealthy();
  });

  test('CVE-2026-21717: the number of colliding names is limited by the size limits of JSON bodies and heads', async () => {
    const keys = (count: number): string =>
      JSON.stringify(
        Object.fromEntries(Array.from({ length: count }, (_, at) => [String(at * 65_536 + 4_294_967_296), 1])),
      );
    const post = (body: string) =>
      attack.gateway.request({
        path: '/authsvc/Authorize/Token',
        method: 'POST',
        body,
        headers: { 'content-type': 'application/json' },
      });
    expect(await post(keys(900))).toMatchObject({ status: 400, json: { Error: 'invalid_request' } });
    expect((await post(keys(2_000))).status).toBe(413);
    const many = Array.from({ length: 101 }, (_, at) => `${at * 65_536}: 1`);
    await attack.expectRejected([431], attack.write({ line: 'GET /files/1 HTTP/1.1', headers: many }));
  });

  test('CVE-2021-44532: a subject alternative name with another name after a comma is a single name and matches no user', async () => {
    const injected = 'evil.test, email:alice@example.test, othername:UPN:alice@corp.example.test';
    const { gateway } = attack;
    for (const identityFrom of ['email', 'userPrincipalName', 'commonName'] as const) {
      await gateway.reload((settings) => ({
        ...settings,
        certificates: { ...settings.certificates, identityFrom },
      }));
      for (const options of [
        { commonName: 'mallory', dnsNames: [injected] },
        { commonName: `mallory, CN=alice`, emails: [`"x, email:alice@example.test"@evil.test`] },
      ]) {
        const as = await issue(gateway.ca, options);
        const reply = await gateway.post(
          '/Authorize/Certificate',
          { client_id: 'report-runner', scope: 'files:read' },
          { as },
        );
        expect([identityFrom, reply.status]).toEqual([identityFrom, 401]);
      }
    }
    await gateway.reload((settings) => ({
      ...settings,
      certificates: { ...settings.certificates, identityFrom: 'commonName' },
    }));
    await attack.expectHealthy();
  });
});
