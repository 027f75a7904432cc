import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { createWriteStream, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { connect as connectHttp2 } from 'node:http2';
import { request as httpsRequest } from 'node:https';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { afterEach, describe, expect, test } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { createLogger } from '../../src/observability/logger.ts';
import { Reloader } from '../../src/server/reloader.ts';
import { runCommand } from '../support/command-in-process.ts';
import { createCa, createCrl, type IssuedCertificate, issue } from '../support/pki.ts';
import { withBoundApp, withForwardedCertificates } from '../support/reconfigure.ts';
import { type Reply, type SettingsChange, startGateway, type TestGateway } from '../support/test-gateway.ts';
import { until } from '../support/until.ts';
import { openWebSocket, startWebSocketUpstream } from '../support/websocket.ts';

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  while (cleanups.length > 0) await cleanups.pop()?.();
});

async function setUp(change: SettingsChange = (settings) => settings): Promise<TestGateway> {
  const gateway = await startGateway((settings) => change(withBoundApp(settings)));
  cleanups.push(() => gateway.close());
  return gateway;
}

const withCrls =
  (...crls: string[]): SettingsChange =>
  (settings) => ({ ...settings, certificates: { ...settings.certificates, crls } });

const daysFromNow = (count: number): Date => new Date(Date.now() + count * 86_400_000);

async function writeCrl(gateway: TestGateway, name: string, ...revoked: IssuedCertificate[]): Promise<void> {
  // A long validity, since tests advance the clock.
  const { pem } = await createCrl(gateway.ca, { revoked, nextUpdate: daysFromNow(999) });
  writeFileSync(join(gateway.folder, name), pem);
}

const getBoundToken = async (gateway: TestGateway, as: IssuedCertificate, headers = {}): Promise<string> => {
  const body = { client_id: 'bound-app', scope: 'files:read' };
  const { status, json } = await gateway.post('/Authorize/Certificate', body, { as, headers });
  expect(status).toBe(200);
  return String(json['access_token']);
};

const forwardedHeader = (certificate: IssuedCertificate) => ({
  'client-cert': `:${certificate.der.toString('base64')}:`,
});

describe('a certificate-bound token', () => {
  test('stops working on the API once its certificate is revoked', async () => {
    const gateway = await setUp();
    const formerUser = await issue(gateway.ca, { commonName: 'alice' });
    const [token, other] = [
      await getBoundToken(gateway, formerUser),
      await getBoundToken(gateway, gateway.users.alice),
    ];
    const unbound = (await gateway.grant()).access_token;
    const call = (bearer = token, as = formerUser): Promise<Reply> => gateway.api('/files/a', bearer, { as });
    const verify = async (): Promise<number> =>
      (await gateway.api('/authsvc/Authorize/Verify', token, { as: formerUser })).status;
    expect([(await call()).status, await verify()]).toEqual([200, 200]);

    await writeCrl(gateway, 'ca.crl', formerUser);
    await gateway.reload(withCrls('ca.crl'));
    // On the open connection, whose handshake preceded the revocation.
    const refused = await call();
    expect(refused).toMatchObject({ status: 401, json: { error: 'invalid_token' } });
    expect(refused.headers['www-authenticate']).toContain('no longer accepted');
    expect(await verify()).toBe(401);
    expect((await call(other, gateway.users.alice)).status).toBe(200);
    // A token that is not bound does not depend on the certificate of the connection.
    expect((await call(unbound)).status).toBe(200);
    const line = await until('the request is logged', () =>
      gateway.log.find(({ reason }) => reason === 'token_certificate_rejected'),
    );
    expect(line).toMatchObject({ status: 401, decision: 'refused' });
  });

  test('stops working over HTTP/2, with a forwarded certificate and in forward-auth', async () => {
    const gateway = await setUp((settings) =>
      withForwardedCertificates()({ ...settings, trustedProxies: ['127.0.0.1'] }),
    );
    const { alice } = gateway.users;
    const token = await getBoundToken(gateway, alice, forwardedHeader(alice));
    const bearer = { authorization: `Bearer ${token}`, ...forwardedHeader(alice) };
    const session = connectHttp2(`https://localhost:${gateway.port}`, { ca: gateway.ca.pem });
    cleanups.push(() => session.destroy());
    const sendOverHttp2 = (): Promise<number> =>
      new Promise((resolve, reject) => {
        const stream = session.request({ ':path': '/files/a', ...bearer });
        stream.on('response', (head) => resolve(Number(head[':status']))).on('error', reject);
        stream.resume();
      });
    const checkHeaders = { ...bearer, 'x-original-method': 'GET', 'x-original-uri': '/files/a' };
    const statuses = async (): Promise<number[]> => [
      (await gateway.request({ path: '/files/a', headers: bearer })).status,
      await sendOverHttp2(),
      (await gateway.request({ path: '/authsvc/check', headers: checkHeaders })).status,
    ];
    expect(await statuses()).toEqual([200, 200, 200]);
    await writeCrl(gateway, 'ca.crl', alice);
    await gateway.reload(withCrls('ca.crl'));
    expect(await statuses()).toEqual([401, 401, 401]);
  });

  test('stops working when its certificate expires or its issuer is no longer approved', async () => {
    const gateway = await setUp();
    const shortLived = await issue(gateway.ca, {
      commonName: 'alice',
      notAfter: new Date(Date.now() + 600_000),
    });
    const [token, other] = [
      await getBoundToken(gateway, shortLived),
      await getBoundToken(gateway, gateway.users.alice),
    ];
    const call = async (bearer: string, as: IssuedCertificate): Promise<number> =>
      (await gateway.api('/files/a', bearer, { as })).status;
    expect([await call(token, shortLived), await call(other, gateway.users.alice)]).toEqual([200, 200]);
    gateway.clock.advance(700);
    expect([await call(token, shortLived), await call(other, gateway.users.alice)]).toEqual([401, 200]);
    writeFileSync(join(gateway.folder, 'other.pem'), (await createCa({ name: 'CN=Other CA' })).pem);
    const withIssuers =
      (...files: string[]): SettingsChange =>
      (settings) => ({
        ...settings,
        certificates: { ...settings.certificates, issuers: files },
      });
    await gateway.reload(withIssuers('other.pem'));
    expect(await call(other, gateway.users.alice)).toBe(401);
    await gateway.reload(withIssuers('other.pem', 'ca.pem'));
    expect(await call(other, gateway.users.alice)).toBe(200);
  });

  test('stops working when the CRL of its issuer has expired', async () => {
    const gateway = await setUp();
    const { pem } = await createCrl(gateway.ca, { nextUpdate: new Date(Date.now() + 600_000) });
    writeFileSync(join(gateway.folder, 'ca.crl'), pem);
    await gateway.reload(withCrls('ca.crl'));
    const { alice } = gateway.users;
    const token = await getBoundToken(gateway, alice);
    const call = async (): Promise<number> => (await gateway.api('/files/a', token, { as: alice })).status;
    expect(await call()).toBe(200);
    gateway.clock.advance(700);
    expect(await call()).toBe(401);
    // With a new CRL it works again.
    await writeCrl(gateway, 'ca.crl');
    await gateway.reload((settings) => settings);
    expect(await call()).toBe(200);
  });

  test('closes its WebSockets and event streams when its certificate is revoked', async () => {
    const sockets = await startWebSocketUpstream();
    cleanups.push(() => sockets.close());
    const events = await startEventUpstream();
    const gateway = await setUp((settings) => withStreams(settings, sockets.port, events));
    const formerUser = await issue(gateway.ca, { commonName: 'alice' });
    const { alice } = gateway.users;
    const open = async (certificate: IssuedCertificate) => {
      const token = await getBoundToken(gateway, certificate, forwardedHeader(certificate));
      const headers = [`Client-Cert: ${forwardedHeader(certificate)['client-cert']}`];
      const socket = await openWebSocket({ port: gateway.port, token, ca: gateway.ca.pem, headers });
      cleanups.push(() => socket.destroy());
      expect(socket.status).toBe(101);
      return { socket, stream: await openEventStream(gateway, token, certificate) };
    };
    const [revokedStreams, validStreams] = [await open(formerUser), await open(alice)];
    await writeCrl(gateway, 'ca.crl', formerUser);
    await gateway.reload(withCrls('ca.crl'));
    await until(
      'both streams have ended',
      () => revokedStreams.socket.isClosed() && revokedStreams.stream.ending !== undefined,
    );
    expect(revokedStreams.socket.closed()).toMatchObject({
      code: 1008,
      reason: 'access token certificate rejected',
    });
    expect(revokedStreams.stream.ending).toBe('truncated');
    validStreams.socket.send('still here');
    await until('the echo arrives', () => validStreams.socket.messages.includes('echo still here'));
    expect(validStreams.stream.ending).toBeUndefined();
  });
});

const withStreams = (settings: SettingsInput, sockets: number, events: number): SettingsInput =>
  withForwardedCertificates()({
    ...settings,
    upstreams: {
      ...settings.upstreams,
      sockets: { url: `http://127.0.0.1:${sockets}` },
      events: { url: `http://127.0.0.1:${events}` },
    },
    routes: [
      { path: '/ws/**', requires: 'files:read', websocket: true, upstream: 'sockets' },
      { path: '/events/**', requires: 'files:read', upstream: 'events' },
      ...(settings.routes ?? []),
    ],
  });

async function startEventUpstream(): Promise<number> {
  const server = createServer((_request, response) => {
    response.writeHead(200, { 'content-type': 'text/event-stream' });
    response.write('data: first\n\n');
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  cleanups.push(() => {
    server.closeAllConnections();
    return new Promise((resolve) => server.close(resolve));
  });
  return (server.address() as AddressInfo).port;
}

async function openEventStream({ port, ca }: TestGateway, token: string, certificate: IssuedCertificate) {
  const state = { text: '', ending: undefined as 'complete' | 'truncated' | undefined };
  const sent = httpsRequest(
    {
      host: '127.0.0.1',
      servername: 'localhost',
      port,
      path: '/events/1',
      ca: ca.pem,
      agent: false,
      headers: { authorization: `Bearer ${token}`, ...forwardedHeader(certificate) },
    },
    (response) => {
      response.on('data', (part: Buffer) => (state.text += part.toString())).on('error', () => {});
      response.on('close', () => (state.ending = response.complete ? 'complete' : 'truncated'));
    },
  );
  sent.on('error', () => (state.ending ??= 'truncated'));
  cleanups.push(() => sent.destroy());
  sent.end();
  await until('the response has started', () => state.text.includes('first'));
  return state;
}

describe('a reload with an unusable CRL', () => {
  test('is refused and logged, and revoked certificates stay revoked', async () => {
    const gateway = await setUp();
    const other = await createCa({ name: 'CN=Other CA' });
    writeFileSync(join(gateway.folder, 'other.pem'), other.pem);
    const file = join(gateway.folder, 'all.crl');
    const { alice, bob } = gateway.users;
    const ownCrl = (await createCrl(gateway.ca, { revoked: [alice] })).pem;
    const both = (await createCrl(other)).pem + ownCrl;
    writeFileSync(file, both);
    await gateway.reload((settings) => ({
      ...withCrls('all.crl')(settings),
      certificates: { ...settings.certificates, issuers: ['ca.pem', 'other.pem'], crls: ['all.crl'] },
    }));
    const lines: Record<string, unknown>[] = [];
    const settings = gateway.server.settings();
    const reloader = new Reloader({
      load: () => ({ ok: true, settings, files: [], warnings: [] }) as never,
      gateway: Promise.resolve(gateway.server),
      settings,
      files: [],
      log: createLogger({
        level: 'debug',
        format: 'json',
        write: (line) => lines.push(JSON.parse(line) as Record<string, unknown>),
      }),
    });
    cleanups.push(() => reloader.close());
    const authorize = async (as: IssuedCertificate): Promise<number> =>
      (await gateway.post('/Authorize/Certificate', { client_id: 'report-runner', scope: 'files:read' }, { as }))
        .status;
    for (const [content, problem] of [
      [both.slice(0, -60), 'truncated or damaged'],
      [both.slice(0, -ownCrl.length), 'no longer contains the revocation list of ca'],
      ['', 'contains no revocation list'],
      [undefined, 'does not exist'],
    ] as const) {
      if (content === undefined) rmSync(file);
      else writeFileSync(file, content);
      lines.length = 0;
      await reloader.reload('test');
      expect(lines).toMatchObject([{ event: 'reload_rejected' }]);
      expect(JSON.stringify(lines)).toContain(problem);
      expect([await authorize(alice), await authorize(bob)]).toEqual([401, 200]);
    }
    lines.length = 0;
    writeFileSync(file, both);
    await reloader.reload('test');
    expect(lines).toMatchObject([{ event: 'reloaded' }]);
    expect([await authorize(alice), await authorize(bob)]).toEqual([401, 200]);
  });

  test('is a problem for `gatehouse check`', async () => {
    const gateway = await setUp();
    await writeCrl(gateway, 'ca.crl', gateway.users.alice);
    const config = join(gateway.folder, 'check.yaml');
    writeFileSync(
      config,
      `
listen: { tls: { certificate: server.pem, key: server-key.pem } }
certificates: { issuers: [ca.pem], crls: [ca.crl], directory: staff }
directories: { staff: { label: local, derive: true } }
upstreams: { default: { url: http://127.0.0.1:9 } }
routes: [{ path: /**, requires: any-token }]
`,
    );
    expect((await runCommand(['check', '-c', config])).code).toBe(0);
    const complete = (await createCrl(gateway.ca)).pem;
    for (const content of [complete.slice(0, -60), complete + complete.slice(0, -60), '']) {
      writeFileSync(join(gateway.folder, 'ca.crl'), content);
      const { code, stderr } = await runCommand(['check', '-c', config]);
      expect(code).toBe(78);
      expect(stderr).toMatch(/ca\.crl: (?:is truncated or damaged|contains no revocation list)/);
    }
  });
});

test('requests are served while a CRL is read', async () => {
  const gateway = await setUp();
  // A pipe: its reader waits until the test writes to it.
  const pipe = join(gateway.folder, 'pipe.crl');
  execFileSync('mkfifo', [pipe]);
  const { alice, bob } = gateway.users;
  const token = await getBoundToken(gateway, alice);
  let isReloaded = false;
  const reload = gateway.reload(withCrls('pipe.crl')).finally(() => {
    isReloaded = true;
  });
  const writer = createWriteStream(pipe);
  // Opens once the gateway reads the pipe.
  await once(writer, 'open');
  expect((await gateway.api('/files/a', token, { as: alice })).status).toBe(200);
  expect(
    (await gateway.post('/Authorize/Certificate', { client_id: 'other-app', scope: 'files:read' }, { as: alice }))
      .status,
  ).toBe(200);
  expect(isReloaded).toBe(false);
  writer.end((await createCrl(gateway.ca, { revoked: [alice], nextUpdate: daysFromNow(9) })).pem);
  await reload;
  expect((await gateway.api('/files/a', token, { as: alice })).status).toBe(401);
  expect((await gateway.grant({ user: 'bob' })).identity).toBeDefined();
  expect(bob.serial).not.toBe(alice.serial);
});
