import { createServer as createHttpServer } from 'node:http';
import { createServer as createHttp2Server, createSecureServer } from 'node:http2';
import { type AddressInfo, createServer, type Server, type Socket } from 'node:net';
import { createServer as createTlsServer } from 'node:tls';
import { beforeAll, expect, onTestFinished, test } from 'vitest';
import { createCa, type IssuedCertificate, issueServer } from '../../support/pki.ts';
import { startProxyHarness } from '../../support/proxy-harness.ts';
import { rawRequest } from '../../support/raw-client.ts';
import { until } from '../../support/until.ts';

/** Upstreams that do not accept HTTP/1.1 at the configured port, or not with the configured scheme. */

let tls: { readonly cert: string; readonly key: string };
beforeAll(async () => {
  const { pem, keyPem }: IssuedCertificate = await issueServer(await createCa());
  tls = { cert: pem, key: keyPem };
});

const HTTP2 = 'set `protocol: http2` for the upstream';
const WRONG_PORT = 'correct host and port in its url';

/** The error that is logged about a request to this upstream. */
async function readLoggedError(url: string): Promise<string> {
  const proxy = await startProxyHarness({ upstream: url });
  onTestFinished(() => proxy.close());
  const { status } = await rawRequest(
    proxy.port,
    'GET /files/1 HTTP/1.1\r\nHost: gate.test\r\nAuthorization: Bearer A\r\n\r\n',
  );
  expect(status).toBe(502);
  const line = await until('it is logged', () => proxy.log.find((text) => text.includes('upstream_failed')));
  return String((JSON.parse(line) as { error: unknown }).error);
}

/** Sends this when a request arrives, and closes the connection. */
const respondWith = (bytes: Buffer | string): Server =>
  createServer((socket) => void socket.once('data', () => socket.end(bytes)));

test.each<[name: string, scheme: 'http' | 'https', create: () => Server, expected: string]>([
  [
    'HTTP/2 without TLS',
    'http',
    () => createHttp2Server(),
    `the upstream responded with HTTP/2 (a SETTINGS frame); ${HTTP2}`,
  ],
  [
    'HTTP/2 without TLS, and sends GOAWAY at once',
    'http',
    () => respondWith(Buffer.from('0000080700000000000000000000000001', 'hex')),
    `the upstream responded with HTTP/2 (a GOAWAY frame); ${HTTP2}`,
  ],
  [
    'HTTP/2 over TLS only',
    'https',
    () => createSecureServer({ ...tls, allowHTTP1: false }),
    `the upstream accepts no HTTP/1.1 over TLS (ALPN); ${HTTP2} (`,
  ],
  [
    'TLS, and sends an alert',
    'http',
    () => respondWith(Buffer.from('15030300020246', 'hex')),
    'the upstream responded with TLS; use https:// instead of http:// in its url',
  ],
  [
    'TLS, and sends no alert',
    'http',
    () => createTlsServer(tls),
    'the upstream closed the connection without a response; if it expects TLS, use https:// in its url',
  ],
  [
    'HTTP without TLS',
    'https',
    () => createHttpServer(),
    'the upstream did not respond with TLS; use http:// instead of https:// in its url (',
  ],
  ['SSH', 'http', () => respondWith('SSH-2.0-OpenSSH_10.0\r\n'), `the upstream is an SSH server; ${WRONG_PORT}`],
  [
    'SMTP',
    'http',
    () => respondWith('220 mail.example.test ESMTP\r\n'),
    `the upstream is a mail or FTP server; ${WRONG_PORT}`,
  ],
  [
    'the protocol of Redis',
    'http',
    () => respondWith("-ERR unknown command 'GET'\r\n"),
    `the upstream is a Redis server; ${WRONG_PORT}`,
  ],
])('if an upstream expects %s, the log says so and what to do', async (_, scheme, create, expected) => {
  const server = create();
  const sockets = new Set<Socket>();
  server.on('connection', (socket: Socket) => sockets.add(socket.on('error', () => {})));
  await new Promise<void>((resolve) => void server.listen(0, '127.0.0.1', resolve));
  onTestFinished(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  const { port } = server.address() as AddressInfo;
  expect(await readLoggedError(`${scheme}://127.0.0.1:${port}`)).toContain(expected);
});

test('if the host name of an upstream does not exist, the log says so and what to do', async () => {
  expect(await readLoggedError('http://nothing.invalid:3000')).toMatch(
    /^the host name of the upstream does not exist; correct its url, or the DNS settings of this machine \(getaddrinfo ENOTFOUND nothing\.invalid\)$|^the DNS server did not respond.*EAI_AGAIN/,
  );
});
