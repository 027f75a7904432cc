import { createServer, type ServerResponse } from 'node:http';
import { connect as connectHttp2, constants } from 'node:http2';
import { request as httpsRequest } from 'node:https';
import type { AddressInfo } from 'node:net';
import { afterEach, describe, expect, test, vi } from 'vitest';
import type { SettingsInput } from '../../src/config/schema.ts';
import { connectToEachWorker } from '../support/connect-to-each-worker.ts';
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

/** docs/configuration.md, `tokens.endStreams`: within a second. */
const PROMISED_MS = 1_000;

const cleanups: (() => unknown)[] = [];
afterEach(async () => {
  vi.useRealTimers();
  while (cleanups.length > 0) await cleanups.pop()?.();
});

/**
 * Timers of the gateway run from now on only as far as the test advances them, so that a bound is one of the gateway's
 * own clock, and not of how busy the machine is.
 */
const stopTimers = (): void =>
  void vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval'] });

/** Half of the promised time ends what takes part; the other half closes connections whose peer does not. */
const advance = (milliseconds = PROMISED_MS / 2): void => void vi.advanceTimersByTime(milliseconds);

/** Answers that go on until somebody ends them: `/events/…` as event streams, everything else as plain downloads. */
async function endlessUpstream() {
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
  const streams = await endlessUpstream();
  const gateway = await startGateway((settings) => withStreams(settings, sockets, streams.port, endStreams));
  cleanups.push(() => gateway.close());
  stopTimers();
  return { house: gateway, sockets, streams };
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

async function webSocket({ port, ca }: Pick<TestGateway, 'port' | 'ca'>, token: string, path = '/ws/1') {
  const client = await openWebSocket({ port, path, token, ca: ca.pem });
  cleanups.push(() => client.destroy());
  expect(client.status).toBe(101);
  client.send('hello');
  await until('an echo', () => client.messages.includes('echo hello'));
  return client;
}

/** A request that is answered, or at least begun, and never finished. */
async function stream(gateway: TestGateway, token: string, path: string, method = 'GET') {
  const state = { status: 0, text: '', ending: undefined as 'whole' | 'cut' | undefined };
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
      response.on('close', () => (state.ending = response.complete ? 'whole' : 'cut'));
    },
  );
  sent.on('error', () => (state.ending ??= 'cut'));
  cleanups.push(() => sent.destroy());
  if (method === 'POST') sent.write('some of it');
  else {
    sent.end();
    await until('the beginning', () => state.text.includes('first'));
  }
  return state;
}

async function revoke(gateway: TestGateway, token: string): Promise<void> {
  const { status } = await gateway.api('/authsvc/Revoke/Token', token);
  expect(status).toBe(200);
}

describe('V14 a stream of a revoked grant ends within a second', () => {
  test('V14 a WebSocket, with a Close frame to both sides', async () => {
    const { house, sockets } = await setUp();
    const [{ access_token: token }, { access_token: other }] = [await house.grant(), await house.grant()];
    const client = await webSocket(house, token);
    const bystander = await webSocket(house, other);
    await revoke(house, token);
    advance();
    await until('it is over', () => client.isClosed());
    expect(client.closed()).toEqual({ code: 1008, reason: 'access token revoked', masked: false });
    await until('the upstream was told', () => sockets.closes.length === 1);
    expect(sockets.closes).toMatchObject([{ code: 1008, masked: true }]);
    bystander.send('still here');
    await until('an echo', () => bystander.messages.includes('echo still here'));
    await until('a log line', () =>
      house.log.some(({ event, reason }) => event === 'stream_ended' && reason === 'revoked'),
    );
    const line = await until('the request line', () =>
      house.log.find(
        ({ event, ['path']: path, ['reason']: reason }) =>
          event === 'request' && path === '/ws/1' && reason !== undefined,
      ),
    );
    expect(line).toMatchObject({ status: 101, reason: 'ended: token_revoked' });
    expect(line['aborted']).toBeUndefined();
  });

  test('V14 a WebSocket in the middle of a frame, without a Close frame', async () => {
    const { house, sockets } = await setUp();
    const { access_token: token } = await house.grant();
    const client = await webSocket(house, token);
    sockets.write(encodeFrame(TEXT, 'x'.repeat(1_000), false).subarray(0, 500));
    await until('half a frame', () => client.body().endsWith('xxx'));
    await revoke(house, token);
    advance();
    await until('it is over', () => client.isClosed());
    expect(client.closed()).toBeUndefined();
    expect(client.body().endsWith('x')).toBe(true);
  });

  test('V14 a WebSocket whose client has stopped reading', async () => {
    const { house, sockets } = await setUp();
    const { access_token: token } = await house.grant();
    const client = await webSocket(house, token);
    client.socket.pause();
    for (let count = 0; count < 200; count += 1) sockets.write(encodeFrame(TEXT, 'x'.repeat(60_000), false));
    await revoke(house, token);
    advance(PROMISED_MS);
    await until('the upstream is let go', () => sockets.open() === 0);
  });

  test('V14 an event stream is cut, so that the client sees an incomplete response', async () => {
    const { house, streams } = await setUp();
    const { access_token: token } = await house.grant();
    const events = await stream(house, token, '/events/1');
    await revoke(house, token);
    advance();
    await until('it is over', () => events.ending !== undefined && streams.open.size === 0);
    expect(events).toMatchObject({ status: 200, ending: 'cut' });
  });
});

test('V14 an event stream over HTTP/2 is reset within a second, and its connection stays open', async () => {
  const { house, streams } = await setUp();
  const [{ access_token: token }, { access_token: other }] = [await house.grant(), await house.grant()];
  const session = connectHttp2(`https://localhost:${house.port}`, { ca: house.ca.pem });
  session.on('error', () => {});
  cleanups.push(() => session.destroy());
  const ask = (bearer: string) => {
    const sent = session.request({ ':path': '/events/1', authorization: `Bearer ${bearer}` });
    const state = { text: '', code: undefined as number | undefined };
    sent.on('data', (part: Buffer) => (state.text += part.toString())).on('error', () => {});
    sent.on('close', () => (state.code = sent.rstCode));
    return state;
  };
  const [events, bystander] = [ask(token), ask(other)];
  await until('both run', () => events.text !== '' && bystander.text !== '');
  await revoke(house, token);
  advance();
  await until('it is over', () => events.code !== undefined && streams.open.size === 1);
  expect(events.code).not.toBe(constants.NGHTTP2_NO_ERROR);
  expect(bystander.code).toBeUndefined();
});

describe('a stream also ends with', () => {
  test('the end of the token it began with', async () => {
    const { house } = await setUp();
    const { access_token: token, expires_in } = await house.grant();
    const client = await webSocket(house, token);
    const events = await stream(house, token, '/events/1');
    house.clock.advance(expires_in + 1);
    advance();
    await until('both are over', () => client.isClosed() && events.ending === 'cut');
    expect(client.closed()).toMatchObject({ code: 1008, reason: 'access token expired' });
  });

  test('the removal of its integration, but not with any other reload', async () => {
    const { house } = await setUp();
    const { access_token: token } = await house.grant();
    const client = await webSocket(house, token);
    await house.reload((settings) => ({ ...settings, log: { ...settings.log, access: { enabled: false } } }));
    client.send('after a reload');
    await until('an echo', () => client.messages.includes('echo after a reload'));
    await house.reload((settings) => ({
      ...settings,
      integrations: settings.integrations?.filter(({ clientId }) => clientId !== 'report-runner') ?? [],
    }));
    await until('it is over', () => client.isClosed());
    expect(client.closed()).toMatchObject({ code: 1008, reason: 'access token client removed' });
  });

  test('a shutdown: WebSockets get Close frame 1001, and the drain does not wait for its deadline', async () => {
    const { house } = await setUp();
    vi.useRealTimers();
    const client = await webSocket(house, '', '/open/1');
    expect(await house.server.drain({ drain: 86_400 })).toBe(true);
    await until('it is over', () => client.isClosed());
    expect(client.closed()).toMatchObject({ code: 1001 });
  });
});

describe('a WebSocket handshake', () => {
  test.each(['expires', 'is revoked'])(
    'is rejected when its token %s before the upstream has responded',
    async (how) => {
      const pending: (() => void)[] = [];
      const { house, sockets } = await setUp(undefined, (request, socket) => {
        pending.push(() => acceptUpgrade(request, socket));
      });
      const { access_token: token, expires_in } = await house.grant();
      const opening = openWebSocket({ port: house.port, path: '/ws/1', token, ca: house.ca.pem });
      await until('the upstream has it', () => pending.length === 1);
      if (how === 'expires') house.clock.advance(expires_in + 1);
      else await revoke(house, token);
      advance();
      const client = await opening;
      cleanups.push(() => client.destroy());
      expect([client.status, JSON.parse(client.body()).error]).toEqual([401, 'invalid_token']);
      await until('the upstream connection is closed', () => sockets.open() === 0);
    },
  );

  test('with an event stream as response: it ends with the token like any other', async () => {
    const { house, streams } = await setUp();
    const { access_token: token } = await house.grant();
    const client = await openWebSocket({
      port: house.port,
      path: '/events/upgradable/1',
      token,
      ca: house.ca.pem,
    });
    cleanups.push(() => client.destroy());
    await until('the beginning', () => client.body().includes('first'));
    expect(client.status).toBe(200);
    await revoke(house, token);
    advance();
    await until('it is over', () => client.isClosed() && streams.open.size === 0);
    expect(client.body()).not.toMatch(/0\r\n\r\n$/);
  });
});

describe('tokens.endStreams', () => {
  test('by default a download continues, and so do public requests', async () => {
    const { house } = await setUp();
    const { access_token: token } = await house.grant();
    const download = await stream(house, token, '/downloads/1');
    const open = await webSocket(house, '', '/open/1');
    const reported = await webSocket(house, token, '/try/1');
    const verdict = await webSocket(house, token);
    await revoke(house, token);
    advance(PROMISED_MS);
    await until('what needs the token is over', () => verdict.isClosed());
    for (const client of [open, reported]) {
      client.send('still here');
      await until('an echo', () => client.messages.includes('echo still here'));
    }
    expect(download.ending).toBeUndefined();
  });

  test('all: downloads are cut, uploads get 401', async () => {
    const { house, streams } = await setUp('all');
    const { access_token: token } = await house.grant();
    const download = await stream(house, token, '/downloads/1');
    const upload = await stream(house, token, '/downloads/1', 'POST');
    await until('the upload', () => streams.uploads.running === 1);
    await revoke(house, token);
    advance();
    await until('both are over', () => download.ending === 'cut' && upload.status === 401);
    await until('the upstream is let go', () => streams.open.size === 0 && streams.uploads.running === 0);
  });

  test('none: everything continues', async () => {
    const { house } = await setUp('none');
    const { access_token: token } = await house.grant();
    const client = await webSocket(house, token);
    const events = await stream(house, token, '/events/1');
    await revoke(house, token);
    advance(2 * PROMISED_MS);
    client.send('still here');
    await until('an echo', () => client.messages.includes('echo still here'));
    expect(events.ending).toBeUndefined();
  });
});

test('a WebSocket is recognised as such', async () => {
  const sockets = await startWebSocketUpstream();
  cleanups.push(() => sockets.close());
  const gateway = await startGateway((settings) => ({
    ...withStreams(settings, sockets, sockets.port),
    limits: { ...settings.limits, connections: 2 },
  }));
  cleanups.push(() => gateway.close());
  const first = await webSocket(gateway, '', '/open/1');
  await webSocket(gateway, '', '/open/2');
  const late = () => openWebSocket({ port: gateway.port, path: '/open/3', token: '', ca: gateway.ca.pem });
  expect((await late()).status).toBeNaN();
  first.destroy();
  const client = await until('there is room again', async () => {
    const next = await late();
    return next.status === 101 && next;
  });
  client.destroy();
});

test('V14 the streams of both workers end, whichever of them revokes', async () => {
  const streams = await endlessUpstream();
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
      () => 'whole',
      () => 'cut',
    ),
  );
  await until('both streams', () => streams.open.size === 2);
  expect((await revoker.revoke(token)).status).toBe(200);
  expect(await Promise.all(endings)).toEqual(['cut', 'cut']);
  const lines = await until('their log lines', () => {
    const ended = server.log.filter(({ event }) => event === 'stream_ended');
    return ended.length === 2 && ended;
  });
  expect(new Set(lines.map((line) => line['worker']))).toEqual(new Set(server.workers));
});
