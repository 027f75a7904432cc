import { connect } from 'node:net';
import { connect as connectTls, type TLSSocket } from 'node:tls';
import { expect, test } from 'vitest';
import { fragmentClientHello } from '../../support/fragmented-client-hello.ts';
import type { IssuedCertificate } from '../../support/pki.ts';
import { isCompleteResponse, parseRawResponse } from '../../support/raw-client.ts';
import { headerValues } from '../../support/recording-upstream.ts';
import { ALICE } from '../../support/test-gateway.ts';
import { useAttackGateway } from '../attack-gateway.ts';

/** Attacks on Traefik and Fabio. A client certificate is requested only for the name `localhost`. */
const attack = useAttackGateway((settings) => ({
  ...settings,
  listen: {
    port: 0,
    tls: { certificate: 'server.pem', key: 'server-key.pem', askCertificate: ['localhost'] },
  },
}));

test('GHSA-5m6w-wvh7-57vm Traefik: identity headers with underscores are not forwarded', async () => {
  attack.upstream.reset();
  const headers = ['X_Forwarded_User: root', 'X_Forwarded_For: 6.6.6.6', 'x_gatehouse_identity: root'];
  expect((await attack.request({ line: 'GET /files/1 HTTP/1.1', headers })).status).toBe(200);
  expect(attack.upstream.bytes()).not.toMatch(/root|6\.6\.6\.6/);
  await attack.expectHealthy();
});

test('GHSA-6jwx-7vp4-9847 Traefik: routing and forwarding use the same parsed path', async () => {
  attack.upstream.reset();
  for (const target of [
    '/public/%2e%2e/admin/x',
    '/public%2f..%2fadmin',
    '/public/..%2fadmin',
    '/packages/..%2Fadmin',
    '/public/%2e%2e%2fadmin',
  ])
    expect([target, (await attack.request({ line: `GET ${target} HTTP/1.1` })).status]).toEqual([target, 400]);
  expect(attack.upstream.bytes()).toBe('');
  expect((await attack.request({ line: 'GET /%70ublic/%61 HTTP/1.1', token: null })).status).toBe(200);
  expect(attack.upstream.requests.map(({ target }) => target)).toEqual(['/public/a']);
  await attack.expectHealthy();
});

test('GHSA-6384-m2mw-rf54 Traefik: X-Forwarded-Prefix of a client is not forwarded', async () => {
  attack.upstream.reset();
  const headers = [
    'X-Forwarded-Prefix: //evil.test',
    'X_Forwarded_Prefix: //evil.test',
    'Connection: X-Forwarded-Prefix',
  ];
  expect((await attack.request({ line: 'GET /public/a HTTP/1.1', headers, token: null })).status).toBe(200);
  expect(attack.upstream.bytes()).not.toMatch(/prefix|evil/i);
  await attack.expectHealthy();
});

interface Handshake {
  readonly servername: string;
  readonly as?: IssuedCertificate;
  /** The ClientHello is sent in records of one byte. */
  readonly fragmented?: boolean;
}

/** Calls Authorize/Certificate with this Host on a connection with this handshake. */
async function authorize(host: string, { servername, as, fragmented = false }: Handshake): Promise<number> {
  const { port, ca } = attack.gateway;
  const wire = connect(port, '127.0.0.1');
  const socket: TLSSocket = connectTls({
    socket: fragmented ? fragmentClientHello(wire) : wire,
    servername,
    ca: ca.pem,
    checkServerIdentity: () => undefined,
    ...(as !== undefined && { cert: as.pem, key: as.keyPem }),
  });
  const body = JSON.stringify({ client_id: 'report-runner', scope: 'files:read' });
  const head = `POST /authsvc/Authorize/Certificate HTTP/1.1\r\nHost: ${host}\r\nContent-Type: application/json\r\nContent-Length: ${body.length}`;
  try {
    return await new Promise((resolve, reject) => {
      let text = '';
      socket.setTimeout(30_000, () => reject(new Error('no response in 30 s')));
      socket.on('error', reject).on('data', (part: Buffer) => {
        text += part.toString('latin1');
        if (isCompleteResponse(text)) resolve(parseRawResponse(text).status);
      });
      socket.write(`${head}\r\n\r\n${body}`);
    });
  } finally {
    socket.destroy();
    wire.destroy();
  }
}

test('CVE-2026-32305 Traefik: a fragmented ClientHello is subject to the same policy as a whole one', async () => {
  const { alice } = attack.gateway.users;
  for (const fragmented of [false, true]) {
    expect([fragmented, await authorize('localhost', { servername: 'localhost', as: alice, fragmented })]).toEqual([
      fragmented,
      200,
    ]);
    expect([fragmented, await authorize('localhost', { servername: 'localhost', fragmented })]).toEqual([
      fragmented,
      401,
    ]);
  }
  await attack.expectHealthy();
});

test('CVE-2026-48491 Traefik: a connection opened for a name without client certificates is refused for a name that requires them', async () => {
  const { alice } = attack.gateway.users;
  for (const fragmented of [false, true])
    for (const host of ['localhost', 'LOCALHOST:8443', 'localhost.'])
      expect([host, await authorize(host, { servername: 'lax.example.test', as: alice, fragmented })]).toEqual([
        host,
        421,
      ]);
  await attack.expectHealthy();
});

test('CVE-2025-48865 Fabio: Connection cannot remove the forwarded headers', async () => {
  attack.upstream.reset();
  const named = [
    'X-Forwarded-User',
    'X-Forwarded-Client-Id',
    'X-Forwarded-Scope',
    'X-Forwarded-For',
    'X-Forwarded-Host',
    'X-Forwarded-Proto',
    'X-Request-Id',
    'traceparent',
  ];
  for (const headers of [
    [`Connection: keep-alive, ${named.join(', ')}`],
    named.map((name) => `Connection: ${name.toLowerCase()}`),
  ]) {
    attack.upstream.reset();
    expect((await attack.request({ line: 'GET /files/1 HTTP/1.1', headers })).status).toBe(200);
    const [seen] = attack.upstream.requests;
    for (const name of named) expect([name, headerValues(seen, name.toLowerCase()).length]).toEqual([name, 1]);
    expect(headerValues(seen, 'x-forwarded-user')).toEqual([ALICE]);
  }
  await attack.expectHealthy();
});
