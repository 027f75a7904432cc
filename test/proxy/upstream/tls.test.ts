import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createServer, type TLSSocket, type TlsOptions } from 'node:tls';
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { createCa, EKU, type IssuedCertificate, issue, issueServer } from '../../support/pki.ts';
import { rule, startProxyHarness, type TestUpstreamSettings } from '../../support/proxy-harness.ts';
import { type RawResponse, rawRequest } from '../../support/raw-client.ts';
import { startGateway } from '../../support/test-gateway.ts';
import { startWebSocketUpstream } from '../../support/websocket.ts';

let ca: IssuedCertificate;
let other: IssuedCertificate;
let folder: string;
const cleanups: (() => unknown)[] = [];

beforeAll(async () => {
  [ca, other] = await Promise.all([createCa(), createCa({ name: 'CN=Another CA' })]);
  folder = mkdtempSync(join(tmpdir(), 'gatehouse-upstream-'));
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));
afterEach(async () => {
  while (cleanups.length > 0) await cleanups.pop()?.();
});

function writePem(name: string, text: string): string {
  const path = join(folder, name);
  writeFileSync(path, text, { mode: 0o600 });
  return path;
}

/** Starts a TLS server that responds with the subject of the client certificate. */
async function startTlsUpstream(certificate: IssuedCertificate, options: TlsOptions = {}) {
  const names: (string | false | null)[] = [];
  const sockets = new Set<TLSSocket>();
  let connections = 0;
  const server = createServer({ cert: certificate.pem, key: certificate.keyPem, ...options }, (socket) => {
    connections += 1;
    sockets.add(socket);
    names.push(socket.servername);
    socket.on('error', () => {}).on('close', () => sockets.delete(socket));
    socket.on('data', (part: Buffer) => {
      if (!part.includes('\r\n\r\n')) return;
      const seen = socket.getPeerX509Certificate()?.subject ?? 'nobody';
      socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${seen.length}\r\n\r\n${seen}`);
    });
  });
  await new Promise<void>((resolve) => {
    server.listen(0, '127.0.0.1', resolve);
  });
  cleanups.push(
    () =>
      new Promise((resolve) => {
        for (const socket of sockets) socket.destroy();
        server.close(resolve);
      }),
  );
  const { port } = server.address() as AddressInfo;
  return { port, names, connections: () => connections, server };
}

async function requestThrough(upstream: string, settings: TestUpstreamSettings = {}): Promise<RawResponse> {
  const proxy = await startProxyHarness({ upstream, upstreamSettings: settings });
  try {
    return await rawRequest(proxy.port, 'GET /files/1 HTTP/1.1\r\nHost: gate.test\r\nAuthorization: Bearer A\r\n\r\n');
  } finally {
    await proxy.close();
  }
}

const LOCALHOST = { commonName: 'localhost', dnsNames: ['localhost'], extendedKeyUsage: [EKU.serverAuth] };

describe('U12 an https upstream is trusted only with a valid certificate', () => {
  test('one of the configured CA, for the name in its URL', async () => {
    const { port } = await startTlsUpstream(await issue(ca, LOCALHOST));
    const trusted = writePem('ca.pem', ca.pem);
    expect((await requestThrough(`https://localhost:${port}`, { ca: trusted })).body).toBe('nobody');
  });

  const wrong: readonly (readonly [string, () => Promise<IssuedCertificate>, () => TestUpstreamSettings, string])[] = [
    ['of an unknown CA', () => issue(ca, LOCALHOST), () => ({}), 'localhost'],
    [
      'of a CA other than the configured one',
      () => issue(other, LOCALHOST),
      () => ({ ca: writePem('ca.pem', ca.pem) }),
      'localhost',
    ],
    [
      'that has expired',
      () =>
        issue(ca, {
          ...LOCALHOST,
          notBefore: new Date(Date.now() - 10 * 86_400_000),
          notAfter: new Date(Date.now() - 86_400_000),
        }),
      () => ({ ca: writePem('ca.pem', ca.pem) }),
      'localhost',
    ],
    ['for another name', () => issue(ca, LOCALHOST), () => ({ ca: writePem('ca.pem', ca.pem) }), '127.0.0.1'],
    [
      'for a name other than serverName',
      () => issue(ca, LOCALHOST),
      () => ({ ca: writePem('ca.pem', ca.pem), serverName: 'api.internal' }),
      'localhost',
    ],
    [
      'for client authentication',
      () => issue(ca, { ...LOCALHOST, extendedKeyUsage: [EKU.clientAuth] }),
      () => ({ ca: writePem('ca.pem', ca.pem) }),
      'localhost',
    ],
  ];
  test.each(wrong)(
    'a certificate %s is 502, and the response reveals nothing about it',
    async (_, certificate, settings, host) => {
      const { port } = await startTlsUpstream(await certificate());
      const { status, body } = await requestThrough(`https://${host}:${port}`, settings());
      expect(status).toBe(502);
      expect(JSON.parse(body)).toMatchObject({ error: 'bad_gateway' });
      expect(body).not.toMatch(/certificate|localhost|127\.0\.0\.1|expired|self|issuer|ERR_|altname/i);
    },
  );

  test('no environment variable disables the verification', async () => {
    const { port } = await startTlsUpstream(await issue(ca, LOCALHOST));
    const before = process.env['NODE_TLS_REJECT_UNAUTHORIZED'];
    process.env['NODE_TLS_REJECT_UNAUTHORIZED'] = '0';
    try {
      expect((await requestThrough(`https://localhost:${port}`)).status).toBe(502);
    } finally {
      if (before === undefined) delete process.env['NODE_TLS_REJECT_UNAUTHORIZED'];
      else process.env['NODE_TLS_REJECT_UNAUTHORIZED'] = before;
    }
  });

  test('serverName is sent as SNI and verified', async () => {
    const certificate = await issue(ca, { ...LOCALHOST, dnsNames: ['api.internal'] });
    const { port, names } = await startTlsUpstream(certificate);
    const settings = { ca: writePem('ca.pem', ca.pem), serverName: 'api.internal' };
    expect((await requestThrough(`https://127.0.0.1:${port}`, settings)).status).toBe(200);
    expect(names).toEqual(['api.internal']);
  });

  test('the same applies to WebSockets', async () => {
    const certificate = await issue(ca, { ...LOCALHOST, dnsNames: ['api.internal'] });
    const upstream = await startWebSocketUpstream({
      tls: { cert: certificate.pem, key: certificate.keyPem },
    });
    cleanups.push(() => upstream.close());
    const getHandshakeStatus = async (settings: TestUpstreamSettings): Promise<number> => {
      const proxy = await startProxyHarness({
        rules: [rule('/ws/**', 'files:read', { websocket: true })],
        upstream: `https://127.0.0.1:${upstream.port}`,
        upstreamSettings: settings,
      });
      cleanups.push(() => proxy.close());
      const handshake = [
        'GET /ws/a HTTP/1.1',
        'Host: gate.test',
        'Authorization: Bearer A',
        'Connection: Upgrade',
        'Upgrade: websocket',
        'Sec-WebSocket-Version: 13',
        'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==',
      ];
      return (await rawRequest(proxy.port, `${handshake.join('\r\n')}\r\n\r\n`)).status;
    };
    const trusted = writePem('ca.pem', ca.pem);
    expect(await getHandshakeStatus({ ca: trusted, serverName: 'api.internal' })).toBe(101);
    expect(await getHandshakeStatus({ ca: trusted })).toBe(502);
    expect(await getHandshakeStatus({ serverName: 'api.internal' })).toBe(502);
  });
});

describe('the client certificate of gatehouse', () => {
  test('is presented, and an upstream that requires one gets no requests without it', async () => {
    const upstream = await startTlsUpstream(await issueServer(ca), {
      requestCert: true,
      rejectUnauthorized: true,
      ca: [ca.pem],
    });
    const clientCertificate = await issue(ca, { commonName: 'gatehouse' });
    const url = `https://127.0.0.1:${upstream.port}`;
    const trusted = writePem('ca.pem', ca.pem);
    const settings = {
      ca: trusted,
      certificate: writePem('our.pem', clientCertificate.pem),
      key: writePem('our-key.pem', clientCertificate.keyPem),
    };
    expect((await requestThrough(url, settings)).body).toBe('CN=gatehouse');
    expect((await requestThrough(url, { ca: trusted })).status).toBe(502);
  });

  test('mismatched or invalid files are reported at start with the name of the setting', async () => {
    const clientCertificate = await issue(ca, { commonName: 'gatehouse' });
    const wrongKey = await issue(ca, { commonName: 'somebody' });
    const url = 'https://127.0.0.1:9';
    const certificate = writePem('our.pem', clientCertificate.pem);
    const startProxy = (settings: TestUpstreamSettings) =>
      startProxyHarness({ upstream: url, upstreamSettings: settings });
    await expect(startProxy({ certificate, key: writePem('wrong.pem', wrongKey.keyPem) })).rejects.toThrow(
      'upstreams.default.key',
    );
    await expect(startProxy({ ca: writePem('empty.pem', '') })).rejects.toThrow('upstreams.default.ca');
    await expect(
      startProxy({
        ca: writePem('broken.pem', '-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n'),
      }),
    ).rejects.toThrow('upstreams.default.ca');
    await expect(startProxy({ ca: join(folder, 'missing.pem') })).rejects.toThrow('does not exist');
  });
});

describe('a reload', () => {
  test('loads another CA, keeps connections of an unchanged upstream, and rejects an invalid file', async () => {
    const upstream = await startTlsUpstream(await issueServer(ca));
    const trusted = writePem('reload-ca.pem', ca.pem);
    const gateway = await startGateway((settings) => ({
      ...settings,
      upstreams: { default: { url: `https://127.0.0.1:${upstream.port}`, ca: trusted } },
    }));
    cleanups.push(() => gateway.close());
    const getStatus = async (): Promise<number> => (await gateway.api('/health')).status;
    expect(await getStatus()).toBe(200);
    expect(upstream.connections()).toBe(1);

    await gateway.reload((settings) => ({ ...settings, limits: { ...settings.limits, body: '1MiB' } }));
    expect(await getStatus()).toBe(200);
    expect(upstream.connections()).toBe(1);

    writePem('reload-ca.pem', other.pem);
    await gateway.reload((settings) => settings);
    expect(await getStatus()).toBe(502);

    writePem('reload-ca.pem', 'half a file');
    await expect(gateway.reload((settings) => settings)).rejects.toMatchObject({
      problems: [expect.stringContaining('upstreams.default.ca')],
    });
    writePem('reload-ca.pem', ca.pem);
    await gateway.reload((settings) => settings);
    expect(await getStatus()).toBe(200);
  });

  test('keeps the state of targets', async () => {
    const upstream = await startTlsUpstream(await issueServer(ca));
    const stopped = await startTlsUpstream(await issueServer(ca));
    await new Promise((resolve) => stopped.server.close(resolve));
    const trusted = writePem('known-ca.pem', ca.pem);
    const gateway = await startGateway((settings) => ({
      ...settings,
      upstreams: {
        default: {
          urls: [`https://127.0.0.1:${stopped.port}`, `https://127.0.0.1:${upstream.port}`],
          ca: trusted,
        },
      },
    }));
    cleanups.push(() => gateway.close());
    const retryCount = (): number => gateway.log.filter(({ event }) => event === 'upstream_retried').length;
    for (let count = 0; count < 10; count += 1) expect((await gateway.api('/health')).status).toBe(200);
    expect(retryCount()).toBe(3);
    await gateway.reload((settings) => ({ ...settings, limits: { ...settings.limits, body: '1MiB' } }));
    for (let count = 0; count < 10; count += 1) expect((await gateway.api('/health')).status).toBe(200);
    expect(retryCount()).toBe(3);
  });
});
