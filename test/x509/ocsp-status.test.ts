import { createServer, type RequestListener } from 'node:http';
import { buffer } from 'node:stream/consumers';
import { afterEach, describe, expect, test } from 'vitest';
import { Fault } from '../../src/ports/fault.ts';
import { OcspResponder, type OcspResponderOptions, type OcspStatus } from '../../src/x509/ocsp-responder.ts';
import { createOcspAuthority, type OcspAuthority, startOcspServer } from '../support/ocsp-server.ts';
import { createCa, type IssuedCertificate, issue } from '../support/pki.ts';
import { listenTcp } from '../support/tcp-server.ts';
import { startGateway, type TestGateway } from '../support/test-gateway.ts';
import { until } from '../support/until.ts';
import { openWebSocket, startWebSocketUpstream } from '../support/websocket.ts';
import { approve, nowSeconds } from './validator.ts';

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  while (cleanups.length > 0) await cleanups.pop()?.();
});

async function setUpAuthority(ca: IssuedCertificate): Promise<OcspAuthority> {
  const authority = await createOcspAuthority(ca);
  cleanups.push(() => authority.remove());
  return authority;
}

describe('the cache of a responder', () => {
  async function setUp(options: Partial<OcspResponderOptions> = {}) {
    const ca = await createCa();
    const alice = await issue(ca);
    const authority = await setUpAuthority(ca);
    authority.setIndex([[alice, 'good']]);
    const requests: Buffer[] = [];
    const clock = { now: nowSeconds() };
    let respond = (request: Buffer): Promise<Buffer> => Promise.resolve(authority.respond(request));
    const states: string[] = [];
    const responder = new OcspResponder({
      issuer: approve(ca),
      url: 'http://ocsp.example.test',
      send: (request) => {
        requests.push(request);
        return respond(request);
      },
      refresh: 600,
      softFail: false,
      now: () => clock.now,
      onStateChange: (error) => states.push(error?.message ?? 'recovered'),
      ...options,
    });
    const check = async (): Promise<string> => {
      try {
        return (await responder.check(alice.serial, clock.now, () => false)).status;
      } catch (error) {
        expect(error).toBeInstanceOf(Fault);
        return (error as Fault).code;
      }
    };
    return {
      alice,
      authority,
      requests,
      clock,
      responder,
      states,
      check,
      setResponse: (next: (request: Buffer) => Promise<Buffer>): void => {
        respond = next;
      },
    };
  }

  test('one request is in flight for a certificate, and its status is then synchronous', async () => {
    const { alice, requests, responder, clock } = await setUp();
    const first = Array.from({ length: 50 }, () => responder.check(alice.serial, clock.now, () => false));
    expect(first.every((status) => status instanceof Promise)).toBe(true);
    expect(await Promise.all(first.map(async (status) => await status))).toHaveLength(50);
    expect(requests).toHaveLength(1);
    expect(responder.check(alice.serial, clock.now, () => false)).toMatchObject({ status: 'good' });
  });

  test('a status is renewed in the background after `refresh`, and a revocation is then known', async () => {
    const { alice, authority, requests, responder, clock, check } = await setUp();
    expect(await check()).toBe('good');
    authority.setIndex([[alice, 'revoked']]);
    clock.now += 601;
    const status = responder.check(alice.serial, clock.now, () => false) as OcspStatus;
    expect(status.status).toBe('good');
    // The caller does not keep the old status while it is renewed.
    expect(status.checkAgainAt).toBeLessThanOrEqual(clock.now + 1);
    await until('the status is renewed', async () => (await check()) === 'revoked');
    expect(requests).toHaveLength(2);
  });

  test('while it cannot be renewed, a status is used until nextUpdate, and then unavailable', async () => {
    const { clock, check, setResponse, states, requests } = await setUp();
    expect(await check()).toBe('good');
    setResponse(() => Promise.reject(new Error('unreachable')));
    clock.now += 601;
    expect(await check()).toBe('good');
    await until('the failure is known', () => states.length === 1);
    clock.now += 3_600;
    expect(await check()).toBe('certificate_status_unavailable');
    const before = requests.length;
    // Within the pause after a failure, nothing is sent.
    expect(await check()).toBe('certificate_status_unavailable');
    expect(requests).toHaveLength(before);
    expect(states).toEqual(['unreachable']);
  });

  test('an older response than the one before it is refused: a replay cannot undo a revocation', async () => {
    const { alice, authority, clock, check, setResponse, requests } = await setUp();
    const recorded = authority.respond(await captureRequest(check, requests));
    expect(await check()).toBe('good');
    authority.setIndex([[alice, 'revoked']]);
    clock.now += 601;
    await until('the revocation is known', async () => (await check()) === 'revoked');
    setResponse(() => Promise.resolve(recorded));
    clock.now += 601;
    await check();
    clock.now += 61;
    expect(await check()).toBe('revoked');
  });

  test('with softFail, only a missing status is accepted; revoked and unknown are not', async () => {
    const { alice, authority, clock, check, setResponse } = await setUp({ softFail: true });
    setResponse(() => Promise.reject(new Error('unreachable')));
    expect(await check()).toBe('good');
    setResponse((request) => Promise.resolve(authority.respond(request)));
    authority.setIndex([[alice, 'revoked']]);
    clock.now += 60;
    expect(await check()).toBe('revoked');
  });

  test.each(['revoked', 'unknown'] as const)(
    'with softFail, %s stays the status after nextUpdate until a newer response',
    async (status) => {
      const { alice, authority, clock, check, setResponse } = await setUp({ softFail: true });
      authority.setIndex([status === 'revoked' ? [alice, 'revoked'] : [authority.responder, 'good']]);
      expect(await check()).toBe(status);
      setResponse(() => Promise.reject(new Error('unreachable')));
      clock.now += 3_700;
      expect(await check()).toBe(status);
      // Within the pause after a failure.
      expect(await check()).toBe(status);
      authority.setIndex([[alice, 'good']]);
      // Its clock is the real one.
      setResponse((request) => Promise.resolve(authority.respond(request, { args: ['-ndays', '1'] })));
      await until('the newer response is used', async () => {
        clock.now += 60;
        return (await check()) === 'good';
      });
    },
  );

  test('with softFail, our limit of requests in flight accepts nothing: requests wait, or are a temporary error', async () => {
    const { alice, authority, clock, check, responder, requests, setResponse } = await setUp({
      softFail: true,
    });
    authority.setIndex([[alice, 'revoked']]);
    const { promise, resolve } = Promise.withResolvers<void>();
    setResponse(() => promise.then(() => Promise.reject(new Error('slow'))));
    const fill = (count: number, from: number): unknown[] =>
      Array.from({ length: count }, (_, index) => responder.check((from + index).toString(16), clock.now, () => false));
    const slow = fill(64, 0x1000);
    const waiting = check();
    const queued = fill(511, 0x2000);
    expect(requests).toHaveLength(64);
    expect(() => responder.check('3000', clock.now, () => false)).toThrow(
      expect.objectContaining({ code: 'overloaded' }),
    );
    setResponse((request) =>
      requests.length > 65 ? Promise.reject(new Error('not needed')) : Promise.resolve(authority.respond(request)),
    );
    resolve();
    expect(await waiting).toBe('revoked');
    await Promise.all([...slow, ...queued]);
    expect(requests).toHaveLength(64 + 1 + 511);
    // All slots are free again.
    expect(responder.check('3000', clock.now, () => false)).toBeInstanceOf(Promise);
    expect(requests).toHaveLength(64 + 1 + 511 + 1);
  });

  test('a response that is not valid counts as a failure', async () => {
    const { check, setResponse, states } = await setUp();
    setResponse(() => Promise.resolve(Buffer.from('30030a0103', 'hex')));
    expect(await check()).toBe('certificate_status_unavailable');
    expect(states).toEqual(['the responder reports tryLater']);
  });
});

async function captureRequest(check: () => Promise<unknown>, requests: readonly Buffer[]): Promise<Buffer> {
  await check();
  return requests[0] as Buffer;
}

const GRANT = { client_id: 'report-runner', scope: 'files:read' };
const BOUND_GRANT = { client_id: 'bound-app', scope: 'files:read' };

async function setUpGateway(ocsp: Record<string, unknown>): Promise<TestGateway> {
  const gateway = await startGateway((settings) => ({
    ...settings,
    certificates: {
      ...settings.certificates,
      issuers: [{ file: 'ca.pem', ocsp: { url: 'http://127.0.0.1:1/', ...ocsp } }],
    },
    integrations: [...(settings.integrations ?? []), { ...BOUND_INTEGRATION }],
  }));
  cleanups.push(() => gateway.close());
  return gateway;
}
const BOUND_INTEGRATION = {
  clientId: 'bound-app',
  scope: 'files:read',
  access: [{ groups: ['operators'] }, { groups: ['readers'] }],
  bindToCertificate: true,
};

const setOcsp = (gateway: TestGateway, ocsp: { readonly url: string } & Record<string, unknown>): Promise<void> =>
  gateway.reload((settings) => ({
    ...settings,
    certificates: { ...settings.certificates, issuers: [{ file: 'ca.pem', ocsp }] },
  }));

describe('a gateway with the responder of OpenSSL', () => {
  test('grants, bound tokens and refreshes follow the status', async () => {
    const gateway = await setUpGateway({});
    const { alice, bob } = gateway.users;
    const authority = await setUpAuthority(gateway.ca);
    authority.setIndex([
      [alice, 'good'],
      [bob, 'revoked'],
    ]);
    const server = await startOcspServer(authority);
    cleanups.push(() => server.stop());
    await setOcsp(gateway, { url: server.url });

    const granted = await gateway.post('/Authorize/Certificate', BOUND_GRANT, { as: alice });
    expect(granted.status).toBe(200);
    const revoked = await gateway.post('/Authorize/Certificate', BOUND_GRANT, { as: bob });
    expect(revoked).toMatchObject({ status: 401, json: { Error: 'invalid_client' } });
    expect(gateway.auditEvents('grant_denied').at(-1)).toMatchObject({ reason: 'certificate_revoked' });
    const unknown = await issue(gateway.ca, { commonName: 'alice' });
    expect((await gateway.post('/Authorize/Certificate', BOUND_GRANT, { as: unknown })).status).toBe(401);
    expect(gateway.auditEvents('grant_denied').at(-1)).toMatchObject({
      reason: 'certificate_status_unknown',
    });

    const token = String(granted.json['access_token']);
    expect((await gateway.api('/files/a', token, { as: alice })).status).toBe(200);

    // A status that is not cached: the request with the bound token waits for it.
    await setOcsp(gateway, { url: server.url, refresh: '2h' });
    expect((await gateway.api('/files/a', token, { as: alice })).status).toBe(200);

    authority.setIndex([[alice, 'revoked']]);
    // OpenSSL reads a changed index only after the next request.
    const restarted = await startOcspServer(authority);
    cleanups.push(() => restarted.stop());
    await setOcsp(gateway, { url: restarted.url });
    expect((await gateway.api('/files/a', token, { as: alice })).status).toBe(401);
    const refreshed = await gateway.post(
      '/Authorize/Token',
      { client_id: 'bound-app', refresh_token: granted.json['refresh_token'] },
      { as: alice },
    );
    expect(refreshed).toMatchObject({ status: 400, json: { Error: 'invalid_grant' } });
  });

  test('an unreachable responder is a temporary error; a cached status and, with softFail, everything goes on', async () => {
    const gateway = await setUpGateway({});
    const { alice, bob } = gateway.users;
    const authority = await setUpAuthority(gateway.ca);
    authority.setIndex([
      [alice, 'good'],
      [bob, 'good'],
    ]);
    const server = await startOcspServer(authority);
    await setOcsp(gateway, { url: server.url });
    const granted = await gateway.post('/Authorize/Certificate', BOUND_GRANT, { as: alice });
    const token = String(granted.json['access_token']);
    await server.stop();

    expect((await gateway.api('/files/a', token, { as: alice })).status).toBe(200);
    // A reload keeps the statuses.
    await gateway.reload((settings) => ({ ...settings, tokens: { accessLifetime: '2h' } }));
    expect((await gateway.api('/files/a', token, { as: alice })).status).toBe(200);
    const unavailable = await gateway.request({
      path: '/authsvc/oauth2/token',
      method: 'POST',
      headers: { 'content-type': 'application/x-www-form-urlencoded' },
      body: 'grant_type=client_credentials&client_id=report-runner',
      as: bob,
    });
    expect(unavailable).toMatchObject({ status: 503, json: { error: 'temporarily_unavailable' } });
    expect(unavailable.headers['retry-after']).toBeDefined();
    expect(gateway.auditEvents('grant_denied')).toEqual([]);
    expect(gateway.log.some(({ event }) => event === 'ocsp_failed')).toBe(true);

    // Without a cached status, a bound token is a temporary error too.
    await setOcsp(gateway, { url: server.url, refresh: '2h' });
    const proxied = await gateway.api('/files/a', token, { as: alice });
    expect(proxied.status).toBe(503);
    expect(proxied.headers['retry-after']).toBeDefined();

    await setOcsp(gateway, { url: server.url, softFail: true });
    expect((await gateway.post('/Authorize/Certificate', GRANT, { as: bob })).status).toBe(200);
    expect((await gateway.api('/files/a', token, { as: alice })).status).toBe(200);
  });
});

/** A WebSocket with a token bound to the certificate of alice, and one of bob without. */
async function openStreams(
  gateway: TestGateway,
  ocsp: { readonly url: string; readonly softFail?: boolean; readonly timeout?: string },
) {
  const sockets = await startWebSocketUpstream();
  cleanups.push(() => sockets.close());
  await gateway.reload((settings) => ({
    ...settings,
    tokens: { accessLifetime: '1d' },
    certificates: {
      ...settings.certificates,
      issuers: [{ file: 'ca.pem', ocsp }],
      forwardedFrom: ['127.0.0.1'],
      forwardedHeader: 'client-cert',
    },
    upstreams: { ...settings.upstreams, sockets: { url: `http://127.0.0.1:${sockets.port}` } },
    routes: [
      { path: '/ws/**', requires: 'files:read', websocket: true, upstream: 'sockets' },
      ...(settings.routes ?? []),
    ],
  }));
  const open = async (certificate: IssuedCertificate, grant: typeof GRANT) => {
    const header = `:${certificate.der.toString('base64')}:`;
    const { json } = await gateway.post('/Authorize/Certificate', grant, {
      headers: { 'client-cert': header },
    });
    const socket = await openWebSocket({
      port: gateway.port,
      token: String(json['access_token']),
      ca: gateway.ca.pem,
      headers: [`Client-Cert: ${header}`],
    });
    cleanups.push(() => socket.destroy());
    expect(socket.status).toBe(101);
    return socket;
  };
  const { alice, bob } = gateway.users;
  return [await open(alice, BOUND_GRANT), await open(bob, GRANT)] as const;
}

test('a status that expires while the responder is unreachable ends the streams of that certificate, and no others', async () => {
  const gateway = await setUpGateway({ softFail: true });
  const { alice, bob } = gateway.users;
  const authority = await setUpAuthority(gateway.ca);
  authority.setIndex([
    [alice, 'good'],
    [bob, 'good'],
  ]);
  const server = await startOcspServer(authority);
  cleanups.push(() => server.stop());
  const [bound, unbound] = await openStreams(gateway, { url: server.url });
  await server.stop();
  gateway.clock.advance(3_700);
  await until('the stream has ended', () => bound.isClosed());
  unbound.send('still here');
  await until('the echo arrives', () => unbound.messages.includes('echo still here'));
  expect(unbound.isClosed()).toBe(false);
  // Unavailability of the status is not an error of the check.
  expect(gateway.log.some(({ event }) => event === 'stream_check_failed')).toBe(false);
});

test('with softFail, a stream continues while the status is requested, and ends with a revocation', async () => {
  const gateway = await setUpGateway({});
  const { alice, bob } = gateway.users;
  const authority = await setUpAuthority(gateway.ca);
  authority.setIndex([
    [alice, 'good'],
    [bob, 'good'],
  ]);
  let heldResponse: (() => void) | undefined;
  let isHolding = false;
  const handle: (...args: Parameters<RequestListener>) => Promise<void> = async (request, response) => {
    const body = await buffer(request);
    const respond = (args: readonly string[]): void =>
      void response.setHeader('content-type', 'application/ocsp-response').end(authority.respond(body, { args }));
    if (isHolding) heldResponse = () => respond(['-ndays', '1']);
    else respond(['-nmin', '60']);
  };
  const server = createServer((request, response) => void handle(request, response));
  const { port, close } = await listenTcp(server);
  cleanups.push(() => {
    server.closeAllConnections();
    return close();
  });
  const [bound] = await openStreams(gateway, {
    url: `http://127.0.0.1:${port}/`,
    softFail: true,
    timeout: '60s',
  });
  isHolding = true;
  gateway.clock.advance(3_700);
  // By the check of the stream.
  const sendHeld = await until('the status is requested', () => heldResponse);
  bound.send('still here');
  await until('the echo arrives', () => bound.messages.includes('echo still here'));
  expect(bound.isClosed()).toBe(false);
  authority.setIndex([[alice, 'revoked']]);
  sendHeld();
  await until('the stream has ended', () => bound.isClosed());
});

describe('a hostile responder', () => {
  const LISTENERS: Readonly<Record<string, RequestListener>> = {
    'sends without end': (_request, response) => {
      response.setHeader('content-type', 'application/ocsp-response');
      const chunk = Buffer.alloc(65_536);
      const write = (): void => {
        while (!response.destroyed && response.write(chunk));
      };
      response.on('drain', write).on('error', () => {});
      write();
    },
    'never responds': () => {},
    redirects: (_request, response) => response.writeHead(302, { location: 'http://127.0.0.1:1/' }).end(),
    'sends a page': (_request, response) => response.setHeader('content-type', 'text/html').end('<p>good</p>'),
    'sends an empty response': (_request, response) =>
      response.setHeader('content-type', 'application/ocsp-response').end(),
    'closes the connection': (request) => request.socket.destroy(),
  };

  test.each(Object.keys(LISTENERS))(
    'that %s causes a temporary error, and no certificate is accepted',
    async (name) => {
      const server = createServer(LISTENERS[name]);
      const { port, close } = await listenTcp(server);
      cleanups.push(() => {
        server.closeAllConnections();
        return close();
      });
      const url = `http://127.0.0.1:${port}/`;
      const gateway = await setUpGateway({ url, timeout: '1s' });
      const reply = await gateway.post('/Authorize/Certificate', GRANT, { as: gateway.users.alice });
      expect(reply.status).not.toBe(200);
      expect(reply.headers['retry-after']).toBeDefined();
      expect(gateway.log.find(({ code }) => code === 'certificate_status_unavailable')).toMatchObject({
        event: 'dependency_failed',
        error: expect.stringContaining(url),
        cause: expect.any(String),
      });
      expect(gateway.auditEvents('grant_denied')).toEqual([]);
    },
  );

  test('with a recorded response for another certificate, or of another CA, accepts nothing', async () => {
    const gateway = await setUpGateway({});
    const { alice, bob } = gateway.users;
    const authority = await setUpAuthority(gateway.ca);
    authority.setIndex([[bob, 'good']]);
    const other = await createCa();
    const foreign = await setUpAuthority(other);
    foreign.setIndex([[alice, 'good']]);
    const { writeOcspRequest } = await import('../../src/x509/ocsp-message.ts');
    const recordings = [
      authority.respond(writeOcspRequest({ issuer: approve(gateway.ca), serial: bob.serial })),
      foreign.respond(writeOcspRequest({ issuer: approve(other), serial: alice.serial })),
    ];
    for (const [index, recording] of recordings.entries()) {
      const { port, close } = await listenTcp(
        createServer((_request, response) =>
          response.setHeader('content-type', 'application/ocsp-response').end(recording),
        ),
      );
      cleanups.push(close);
      await setOcsp(gateway, { url: `http://127.0.0.1:${port}/`, refresh: `${index + 1}h` });
      expect((await gateway.post('/Authorize/Certificate', GRANT, { as: alice })).status).not.toBe(200);
      expect(gateway.log.some(({ event }) => event === 'ocsp_failed')).toBe(true);
    }
  });
});
