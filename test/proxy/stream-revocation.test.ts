import { createServer, type ServerResponse } from 'node:http';
import { connect as connectHttp2, constants } from 'node:http2';
import { request as httpsRequest } from 'node:https';
import type { AddressInfo } from 'node:net';
import { afterEach, describe, expect, test, vi } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { connectToEachWorker } from '../support/connect-to-each-worker.ts';
import { startForeignIssuer } from '../support/foreign-issuer-server.ts';
import { connect, createServeFolder, startServe } from '../support/serve-process.ts';
import { startGateway, type TestGateway } from '../support/test-gateway.ts';
import { until } from '../support/until.ts';
import {
  acceptUpgrade,
  encodeFrame,
  openWebSocket,
  startWebSocketUpstream,
  TEXT,
  type WebSocketUpstream,
  type WebSocketUpstreamOptions,
} from '../support/websocket.ts';

/** Streams end within a second: docs/configuration.md, `tokens.endStreams`. */
const PROMISED_MS = 1_000;

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  vi.useRealTimers();
  while (cleanups.length > 0) await cleanups.pop()?.();
});

/**
 * From now on the timers of the gateway advance only with the test, so that bounds are measured on the gateway's clock
 * and do not depend on the load of the machine.
 */
const stopTimers = (): void =>
  void vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval'] });

/** Streams end within half of the promised time; connections whose peer does not cooperate within the other half. */
const advance = (milliseconds = PROMISED_MS / 2): void => void vi.advanceTimersByTime(milliseconds);

/** Starts an upstream with endless responses: `/events/…` are event streams, all others plain downloads. */
async function startEndlessUpstream() {
  const open = new Set<ServerResponse>();
  const uploads = { running: 0 };
  const server = createServer((request, response) => {
    if (request.method === 'POST') {
      uploads.running += 1;
      request.on('error', () => {}).on('close', () => (uploads.running -= 1));
      request.resume();
      return;
    }
    open.add(response);
    response.on('close', () => open.delete(response));
    const events = request.url?.startsWith('/events');
    response.writeHead(200, {
      'content-type': events ? 'text/event-stream; charset=utf-8' : 'application/octet-stream',
    });
    response.write('data: first\n\n');
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  cleanups.push(async () => {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  });
  return { port: (server.address() as AddressInfo).port, open, uploads };
}

async function setUp(
  endStreams?: 'all' | 'upgrades-and-events' | 'none',
  respond?: WebSocketUpstreamOptions['respond'],
) {
  const sockets = await startWebSocketUpstream({ ...(respond && { respond }) });
  cleanups.push(() => sockets.close());
  const streams = await startEndlessUpstream();
  const gateway = await startGateway((settings) => withStreams(settings, sockets, streams.port, endStreams));
  cleanups.push(() => gateway.close());
  stopTimers();
  return { gateway, sockets, streams };
}

const withStreams = (
  settings: SettingsInput,
  sockets: Pick<WebSocketUpstream, 'port'>,
  streams: number,
  endStreams?: 'all' | 'upgrades-and-events' | 'none',
): SettingsInput => ({
  ...settings,
  ...(endStreams !== undefined && { tokens: { endStreams } }),
  upstreams: {
    ...settings.upstreams,
    sockets: { url: `http://127.0.0.1:${sockets.port}` },
    streams: { url: `http://127.0.0.1:${streams}`, bodyBuffer: 0 },
  },
  routes: [
    { path: '/ws/**', requires: 'files:read', websocket: true, upstream: 'sockets' },
    { path: '/try/**', requires: 'files:read', websocket: true, reportOnly: true, upstream: 'sockets' },
    { path: '/open/**', public: true, websocket: true, upstream: 'sockets' },
    { path: '/events/upgradable/**', requires: 'files:read', websocket: true, upstream: 'streams' },
    { path: '/events/**', requires: 'files:read', upstream: 'streams' },
    { path: '/downloads/**', requires: 'files:read', upstream: 'streams' },
    ...(settings.routes ?? []),
  ],
});

async function openSocket({ port, ca }: Pick<TestGateway, 'port' | 'ca'>, token: string, path = '/ws/1') {
  const client = await openWebSocket({ port, path, token, ca: ca.pem });
  cleanups.push(() => client.destroy());
  expect(client.status).toBe(101);
  client.send('hello');
  await until('the echo arrives', () => client.messages.includes('echo hello'));
  return client;
}

/** Sends a request whose response, or whose body, never ends. */
async function openStream(gateway: TestGateway, token: string, path: string, method = 'GET') {
  const state = { status: 0, text: '', ending: undefined as 'complete' | 'truncated' | undefined };
  const sent = httpsRequest(
    {
      host: '127.0.0.1',
      servername: 'localhost',
      port: gateway.port,
      path,
      method,
      ca: gateway.ca.pem,
      agent: false,
      headers: { authorization: `Bearer ${token}` },
    },
    (response) => {
      state.status = response.statusCode ?? 0;
      response.on('data', (part: Buffer) => (state.text += part.toString()));
      response.on('error', () => {});
      response.on('close', () => (state.ending = response.complete ? 'complete' : 'truncated'));
    },
  );
  sent.on('error', () => (state.ending ??= 'truncated'));
  cleanups.push(() => sent.destroy());
  if (method === 'POST') sent.write('some of it');
  else {
    sent.end();
    await until('the response has started', () => state.text.includes('first'));
  }
  return state;
}

async function revoke(gateway: TestGateway, token: string): Promise<void> {
  const { status } = await gateway.api('/authsvc/Revoke/Token', token);
  expect(status).toBe(200);
}

describe('V14 a stream of a revoked grant ends within a second', () => {
  test('V14 a WebSocket, with a Close frame to both sides', async () => {
    const { gateway, sockets } = await setUp();
    const [{ access_token: token }, { access_token: other }] = [await gateway.grant(), await gateway.grant()];
    const client = await openSocket(gateway, token);
    const bystander = await openSocket(gateway, other);
    await revoke(gateway, token);
    advance();
    await until('the stream has ended', () => client.isClosed());
    expect(client.closed()).toEqual({ code: 1008, reason: 'access token revoked', masked: false });
    await until('the upstream has received a Close frame', () => sockets.closes.length === 1);
    expect(sockets.closes).toMatchObject([{ code: 1008, masked: true }]);
    bystander.send('still here');
    await until('the echo arrives', () => bystander.messages.includes('echo still here'));
    await until('the end is logged', () =>
      gateway.log.some(({ event, reason }) => event === 'stream_ended' && reason === 'revoked'),
    );
    const line = await until('the request is logged', () =>
      gateway.log.find(
        ({ event, ['path']: path, ['reason']: reason }) =>
          event === 'request' && path === '/ws/1' && reason !== undefined,
      ),
    );
    expect(line).toMatchObject({ status: 101, reason: 'ended: token_revoked' });
    expect(line['aborted']).toBeUndefined();
  });

  test('V14 a WebSocket in the middle of a frame, without a Close frame', async () => {
    const { gateway, sockets } = await setUp();
    const { access_token: token } = await gateway.grant();
    const client = await openSocket(gateway, token);
    sockets.write(encodeFrame(TEXT, 'x'.repeat(1_000), false).subarray(0, 500));
    await until('half a frame has arrived', () => client.body().endsWith('xxx'));
    await revoke(gateway, token);
    advance();
    await until('the stream has ended', () => client.isClosed());
    expect(client.closed()).toBeUndefined();
    expect(client.body().endsWith('x')).toBe(true);
  });

  test('V14 a WebSocket whose client has stopped reading', async () => {
    const { gateway, sockets } = await setUp();
    const { access_token: token } = await gateway.grant();
    const client = await openSocket(gateway, token);
    client.socket.pause();
    for (let count = 0; count < 200; count += 1) sockets.write(encodeFrame(TEXT, 'x'.repeat(60_000), false));
    await revoke(gateway, token);
    advance(PROMISED_MS);
    await until('the upstream connections are closed', () => sockets.open() === 0);
  });

  test('V14 an event stream is truncated, so that the client sees an incomplete response', async () => {
    const { gateway, streams } = await setUp();
    const { access_token: token } = await gateway.grant();
    const events = await openStream(gateway, token, '/events/1');
    await revoke(gateway, token);
    advance();
    await until('the stream has ended', () => events.ending !== undefined && streams.open.size === 0);
    expect(events).toMatchObject({ status: 200, ending: 'truncated' });
  });
});

test('V14 an event stream over HTTP/2 is reset within a second, and its connection stays open', async () => {
  const { gateway, streams } = await setUp();
  const [{ access_token: token }, { access_token: other }] = [await gateway.grant(), await gateway.grant()];
  const session = connectHttp2(`https://localhost:${gateway.port}`, { ca: gateway.ca.pem });
  session.on('error', () => {});
  cleanups.push(() => session.destroy());
  const openEvents = (bearer: string) => {
    const sent = session.request({ ':path': '/events/1', authorization: `Bearer ${bearer}` });
    const state = { text: '', code: undefined as number | undefined };
    sent.on('data', (part: Buffer) => (state.text += part.toString())).on('error', () => {});
    sent.on('close', () => (state.code = sent.rstCode));
    return state;
  };
  const [events, bystander] = [openEvents(token), openEvents(other)];
  await until('both streams have started', () => events.text !== '' && bystander.text !== '');
  await revoke(gateway, token);
  advance();
  await until('the stream has ended', () => events.code !== undefined && streams.open.size === 1);
  expect(events.code).not.toBe(constants.NGHTTP2_NO_ERROR);
  expect(bystander.code).toBeUndefined();
});

describe('a stream also ends with', () => {
  test('the expiry of its access token', async () => {
    const { gateway } = await setUp();
    const { access_token: token, expires_in } = await gateway.grant();
    const client = await openSocket(gateway, token);
    const events = await openStream(gateway, token, '/events/1');
    gateway.clock.advance(expires_in + 1);
    advance();
    await until('both streams have ended', () => client.isClosed() && events.ending === 'truncated');
    expect(client.closed()).toMatchObject({ code: 1008, reason: 'access token expired' });
  });

  test('the removal of its integration, but not with other reloads', async () => {
    const { gateway } = await setUp();
    const { access_token: token } = await gateway.grant();
    const client = await openSocket(gateway, token);
    await gateway.reload((settings) => ({
      ...settings,
      log: { ...settings.log, access: { enabled: false } },
    }));
    client.send('after a reload');
    await until('the echo arrives', () => client.messages.includes('echo after a reload'));
    await gateway.reload((settings) => ({
      ...settings,
      integrations: settings.integrations?.filter(({ clientId }) => clientId !== 'report-runner') ?? [],
    }));
    await until('the stream has ended', () => client.isClosed());
    expect(client.closed()).toMatchObject({ code: 1008, reason: 'access token client removed' });
  });

  test('a shutdown: WebSockets get Close frame 1001, and the drain does not wait for its deadline', async () => {
    const { gateway } = await setUp();
    vi.useRealTimers();
    const client = await openSocket(gateway, '', '/open/1');
    expect(await gateway.server.drain({ drain: 86_400 })).toBe(true);
    await until('the stream has ended', () => client.isClosed());
    expect(client.closed()).toMatchObject({ code: 1001 });
  });
});

describe('a WebSocket handshake', () => {
  test.each(['expires', 'is revoked'])(
    'is rejected when its token %s before the upstream has responded',
    async (how) => {
      const pending: (() => void)[] = [];
      const { gateway, sockets } = await setUp(undefined, (request, socket) => {
        pending.push(() => acceptUpgrade(request, socket));
      });
      const { access_token: token, expires_in } = await gateway.grant();
      const opening = openWebSocket({ port: gateway.port, path: '/ws/1', token, ca: gateway.ca.pem });
      await until('the upstream has the handshake', () => pending.length === 1);
      if (how === 'expires') gateway.clock.advance(expires_in + 1);
      else await revoke(gateway, token);
      advance();
      const client = await opening;
      cleanups.push(() => client.destroy());
      expect([client.status, JSON.parse(client.body()).error]).toEqual([401, 'invalid_token']);
      await until('the upstream connection is closed', () => sockets.open() === 0);
    },
  );

  /** A request for a WebSocket that gets an event stream instead. */
  async function openDeclinedUpgrade({ port, ca }: TestGateway, token: string) {
    const client = await openWebSocket({ port, path: '/events/upgradable/1', token, ca: ca.pem });
    cleanups.push(() => client.destroy());
    await until('the response has started', () => client.body().includes('first'));
    return client;
  }

  test('that gets an event stream as response: the stream ends with the token', async () => {
    const { gateway, streams } = await setUp();
    const { access_token: token } = await gateway.grant();
    const client = await openDeclinedUpgrade(gateway, token);
    expect(client.status).toBe(200);
    await revoke(gateway, token);
    advance();
    await until('the stream has ended', () => client.isClosed() && streams.open.size === 0);
    expect(client.body()).not.toMatch(/0\r\n\r\n$/);
  });

  test('that gets an event stream as response: a silent stream ends at a shutdown', async () => {
    const { gateway, streams } = await setUp();
    vi.useRealTimers();
    const { access_token: token } = await gateway.grant();
    const client = await openDeclinedUpgrade(gateway, token);
    expect(await gateway.server.drain({ preStop: 0, drain: 86_400 })).toBe(true);
    await until('the stream has ended', () => client.isClosed() && streams.open.size === 0);
  });

  test('that gets an event stream as response: at a shutdown, a slow client gets everything that was sent', async () => {
    const { gateway, streams } = await setUp();
    vi.useRealTimers();
    const { access_token: token } = await gateway.grant();
    const { socket } = await openWebSocket({
      port: gateway.port,
      path: '/events/upgradable/1',
      token,
      ca: gateway.ca.pem,
    });
    cleanups.push(() => socket.destroy());
    socket.removeAllListeners('data').pause();
    const [response] = streams.open;
    // More than the buffers of the connections hold.
    response?.write(`data: ${'x'.repeat(32 * 1_048_576)}\n\ndata: last\n\n`);
    const drained = gateway.server.drain({ preStop: 0, drain: 86_400 });
    const startedAt = performance.now();
    await until('a silent stream would have ended', () => performance.now() - startedAt > 2_500);
    let end = '';
    socket.on('data', (part: Buffer) => (end = (end + part.toString('latin1')).slice(-64))).resume();
    await until('the stream has ended', () => socket.destroyed && streams.open.size === 0);
    expect(end).toContain('data: last\n\n');
    expect(await drained).toBe(true);
  });
});

describe('tokens.endStreams', () => {
  test('by default a download continues, and so do public requests', async () => {
    const { gateway } = await setUp();
    const { access_token: token } = await gateway.grant();
    const download = await openStream(gateway, token, '/downloads/1');
    const publicSocket = await openSocket(gateway, '', '/open/1');
    const reported = await openSocket(gateway, token, '/try/1');
    const protectedSocket = await openSocket(gateway, token);
    await revoke(gateway, token);
    advance(PROMISED_MS);
    await until('the protected WebSocket has ended', () => protectedSocket.isClosed());
    for (const client of [publicSocket, reported]) {
      client.send('still here');
      await until('the echo arrives', () => client.messages.includes('echo still here'));
    }
    expect(download.ending).toBeUndefined();
  });

  test('all: downloads are truncated, uploads get 401', async () => {
    const { gateway, streams } = await setUp('all');
    const { access_token: token } = await gateway.grant();
    const download = await openStream(gateway, token, '/downloads/1');
    const upload = await openStream(gateway, token, '/downloads/1', 'POST');
    await until('the upload has started', () => streams.uploads.running === 1);
    await revoke(gateway, token);
    advance();
    await until('both streams have ended', () => download.ending === 'truncated' && upload.status === 401);
    await until('the upstream connections are closed', () => streams.open.size === 0 && streams.uploads.running === 0);
  });

  test('none: everything continues', async () => {
    const { gateway } = await setUp('none');
    const { access_token: token } = await gateway.grant();
    const client = await openSocket(gateway, token);
    const events = await openStream(gateway, token, '/events/1');
    await revoke(gateway, token);
    advance(2 * PROMISED_MS);
    client.send('still here');
    await until('the echo arrives', () => client.messages.includes('echo still here'));
    expect(events.ending).toBeUndefined();
  });
});

test('V14 while the keys of a trusted issuer are unavailable, only streams with its tokens end, and revoked ones within a second', async () => {
  const issuer = await startForeignIssuer();
  cleanups.push(() => issuer.close());
  const sockets = await startWebSocketUpstream({});
  cleanups.push(() => sockets.close());
  const gateway = await startGateway((settings) => ({
    ...settings,
    trustedIssuers: {
      corp: {
        issuer: issuer.url,
        audience: 'files-api',
        cooldown: '1s',
        maxStaleness: '1s',
        scopes: { 'files.read': 'files:read' },
      },
    },
    upstreams: { ...settings.upstreams, sockets: { url: `http://127.0.0.1:${sockets.port}` } },
    routes: [
      {
        path: '/ws/**',
        requires: 'files:read',
        websocket: true,
        upstream: 'sockets',
        issuers: ['own', 'corp'],
      },
    ],
  }));
  cleanups.push(() => gateway.close());
  const [{ access_token: ownToken }, { access_token: revokedToken }] = [await gateway.grant(), await gateway.grant()];
  const foreign = await openSocket(gateway, await issuer.sign());
  const own = await openSocket(gateway, ownToken);
  const revoked = await openSocket(gateway, revokedToken);

  issuer.isUp = false;
  await until('the keys are too old', () => gateway.log.some(({ event }) => event === 'stream_check_failed'));
  await revoke(gateway, revokedToken);
  await until('the stream of the revoked token ends', () => revoked.isClosed());
  expect(foreign.isClosed()).toBe(false);

  gateway.clock.advance(6);
  await until('the foreign stream ends', () => foreign.isClosed());
  own.send('still here');
  await until('the echo arrives', () => own.messages.includes('echo still here'));
  expect(own.isClosed()).toBe(false);
  expect(gateway.log.filter(({ event }) => event === 'stream_check_failed')).toHaveLength(1);
});

test('a WebSocket counts as an open connection, and without a token it is closed for a new one', async () => {
  const sockets = await startWebSocketUpstream();
  cleanups.push(() => sockets.close());
  const gateway = await startGateway((settings) => ({
    ...withStreams(settings, sockets, sockets.port),
    limits: { ...settings.limits, connections: 2 },
  }));
  cleanups.push(() => gateway.close());
  const first = await openSocket(gateway, '', '/open/1');
  await openSocket(gateway, '', '/open/2');
  const openThird = () => openWebSocket({ port: gateway.port, path: '/open/3', token: '', ca: gateway.ca.pem });
  const third = await openThird();
  expect(third.status).toBe(101);
  await until('the oldest is closed', () => first.isClosed());
  third.destroy();
});

test('V14 the streams of both workers end, whichever worker revokes', async () => {
  const streams = await startEndlessUpstream();
  const folder = await createServeFolder((settings) => withStreams(settings, streams, streams.port));
  cleanups.push(() => folder.remove());
  const server = await startServe(folder, { set: ['listen.workers=2'] });
  const clients = await connectToEachWorker(folder, server, folder.alice);
  const revoker = connect(folder, server.port, folder.alice);
  cleanups.push(() => [...clients, revoker].forEach((client) => client.close()));
  const { access_token: token } = await revoker.grant();
  const headers = { authorization: `Bearer ${token}` };
  const endings = clients.map((client) =>
    client.request({ path: '/events/1', headers }).then(
      () => 'complete',
      () => 'truncated',
    ),
  );
  await until('both streams are open', () => streams.open.size === 2);
  expect((await revoker.revoke(token)).status).toBe(200);
  expect(await Promise.all(endings)).toEqual(['truncated', 'truncated']);
  const lines = await until('both ends are logged', () => {
    const ended = server.log.filter(({ event }) => event === 'stream_ended');
    return ended.length === 2 && ended;
  });
  expect(new Set(lines.map((line) => line['worker']))).toEqual(new Set(server.workers));
});
