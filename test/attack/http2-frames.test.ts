import { afterAll, afterEach, beforeAll, expect, test, vi } from 'vitest';
import { FLAG, FRAME, type FrameClient, frame, frameClient, requestFields, uint32 } from '../support/http2-frames.ts';
import { until } from '../support/until.ts';
import { useAttackGateway } from './attack-gateway.ts';

/** X07 valid but unproductive frames that are cheap to send. docs/decisions/0038-http2-server.md */

// The gateway checks its connections at intervals; fake timers let the tests trigger the checks.
beforeAll(() => void vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] }));
afterAll(() => void vi.useRealTimers());
const runChecks = (): void => void vi.advanceTimersByTime(1_000);
/** Bodies of unknown length are forwarded after a delay, which is also checked at intervals. */
const withAdvancingTime = (condition: () => boolean): (() => boolean) => {
  return () => {
    vi.advanceTimersByTime(100);
    return condition();
  };
};

const attack = useAttackGateway((settings) => ({
  ...settings,
  upstreams: { default: { ...settings.upstreams?.['default'], bodyBuffer: 0 } },
}));

const openClients: FrameClient[] = [];
afterEach(() => {
  for (const client of openClients.splice(0)) client.destroy();
});

async function openClient(settings?: readonly (readonly [number, number])[]): Promise<FrameClient> {
  const { gateway } = attack;
  const client = await frameClient(gateway.port, { ca: gateway.ca.pem, ...(settings && { settings }) });
  openClients.push(client);
  return client;
}

const ENHANCE_YOUR_CALM = 11;
const repeat = (bytes: Buffer, times: number): Buffer => Buffer.concat(Array<Buffer>(times).fill(bytes));

/** Sends the same portion as fast as the gateway reads, until the connection is closed. */
async function flood(client: FrameClient, portion: Buffer): Promise<void> {
  while (!client.isOver()) {
    if (!client.socket.write(portion))
      await new Promise<void>((resolve) => {
        const done = (): void => {
          client.socket.off('drain', done).off('close', done);
          resolve();
        };
        client.socket.on('drain', done).on('close', done);
      });
    await new Promise(setImmediate);
    runChecks();
  }
}

/** Waits until the gateway has acknowledged a PING, and so has read all frames sent before it. */
async function waitForPong(client: FrameClient): Promise<void> {
  const pongs = (): number =>
    client.frames.filter(({ type, flags }) => type === FRAME.ping && flags === FLAG.ack).length;
  const before = pongs();
  client.send(frame(FRAME.ping, 0, 0, Buffer.alloc(8, 7)));
  await client.until(() => pongs() > before);
}

const getCloseReasons = (): unknown[] =>
  attack.gateway.log.filter(({ event }) => event === 'http2_connection_closed').map(({ why }) => why);

/** Sends a request that never gets a response, so that its stream stays open. */
async function openStream(client: FrameClient, path: string, method = 'GET'): Promise<number> {
  const stream = client.request(requestFields(path, method), { end: method === 'GET' });
  await until(
    'the upstream has the request',
    withAdvancingTime(() => attack.upstream.bytes().includes(path)),
  );
  return stream;
}

const FLOODS: Readonly<Record<string, (client: FrameClient) => Buffer | Promise<Buffer>>> = {
  'WINDOW_UPDATE of the connection': () => frame(FRAME.windowUpdate, 0, 0, uint32(1)),
  'WINDOW_UPDATE of a stream': async (client) =>
    frame(FRAME.windowUpdate, 0, await openStream(client, '/public/updated'), uint32(1)),
  PRIORITY: () => frame(FRAME.priority, 0, 1, Buffer.concat([uint32(0), Buffer.from([1])])),
  'frames of an unknown type': () => frame(0xbb, 0, 0, Buffer.alloc(64)),
  PRIORITY_UPDATE: () => frame(0x10, 0, 0, Buffer.concat([uint32(1), Buffer.from('u=1')])),
  'empty DATA': async (client) => frame(FRAME.data, 0, await openStream(client, '/public/empty', 'POST')),
  'DATA that is padding only': async (client) =>
    frame(
      FRAME.data,
      FLAG.padded,
      await openStream(client, '/public/padded', 'POST'),
      Buffer.concat([Buffer.from([15]), Buffer.alloc(15)]),
    ),
};

test('X07 a flood of unproductive frames closes the connection, whatever their type', async () => {
  attack.upstream.reset();
  attack.upstream.respondWith(() => {});
  const ended = await Promise.all(
    Object.entries(FLOODS).map(async ([what, makeFrame]) => {
      const client = await openClient();
      await flood(client, repeat(await makeFrame(client), 1_000));
      await client.until(() => client.closed());
      return what;
    }),
  );
  expect(ended).toEqual(Object.keys(FLOODS));
  attack.upstream.reset();
  await attack.expectHealthy();
});

test('X07 the connection is closed with ENHANCE_YOUR_CALM, and the reason is logged', async () => {
  const before = getCloseReasons().length;
  const client = await openClient();
  // Just enough to exceed the limit: unread frames would cause a TCP reset and lose the GOAWAY.
  for (let sent = 0; sent < 40; sent += 1) client.send(repeat(frame(FRAME.windowUpdate, 0, 0, uint32(1)), 1_000));
  await waitForPong(client);
  runChecks();
  await client.until(() => client.isOver());
  expect(client.goAway()).toBe(ENHANCE_YOUR_CALM);
  expect(getCloseReasons().slice(before)).toEqual(['too many unproductive frames']);
  await attack.expectHealthy();
});

test('X07 requests refused before their body do not raise the limit of unproductive frames', async () => {
  const client = await openClient();
  const updates = repeat(frame(FRAME.windowUpdate, 0, 0, uint32(1)), 16_000);
  for (let count = 0; count < 60 && !client.isOver(); count += 1) {
    const refused = client.request(requestFields('/files/1', 'POST'), { end: false });
    await client.until(() => client.outcome(refused) !== undefined || client.isOver());
    client.send(updates);
    await waitForPong(client);
    runChecks();
  }
  await client.until(() => client.isOver());
  expect(client.goAway() ?? ENHANCE_YOUR_CALM).toBe(ENHANCE_YOUR_CALM);
  await attack.expectHealthy();
});

test('X07 the connection of a client that updates its windows for every DATA frame stays open', async () => {
  attack.upstream.reset();
  // The worst case: 4 MB in small chunks, each acknowledged with two WINDOW_UPDATE frames.
  const chunk = `40\r\n${'x'.repeat(64)}\r\n`.repeat(64);
  attack.upstream.respondWith((socket) => {
    socket.write('HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n');
    let left = 1_000;
    const more = (): void => {
      while (left > 0) {
        left -= 1;
        if (!socket.write(chunk)) return void socket.once('drain', more);
      }
      socket.write('0\r\n\r\n');
    };
    more();
  });
  const client = await openClient();
  const before = getCloseReasons().length;
  let handled = 0;
  const updateWindows = (): void => {
    for (; handled < client.frames.length; handled += 1) {
      const { type, stream, payload } = client.frames[handled] ?? {};
      if (type !== FRAME.data || payload === undefined || payload.length === 0) continue;
      const size = uint32(payload.length);
      client.send(frame(FRAME.windowUpdate, 0, 0, size), frame(FRAME.windowUpdate, 0, stream ?? 0, size));
    }
  };
  client.socket.on('data', updateWindows).on('data', runChecks);
  const streams = [client.request(requestFields('/public/1')), client.request(requestFields('/public/2'))];
  await client.until(() => streams.every((stream) => client.endedCleanly(stream)));
  expect(streams.map((stream) => client.body(stream).length)).toEqual([4_096_000, 4_096_000]);
  await waitForPong(client);
  runChecks();
  expect([client.isOver(), getCloseReasons().length]).toEqual([false, before]);
});

test('X07 the connection of a client that uploads in small frames, or whose uploads are refused, stays open', async () => {
  attack.upstream.reset();
  const before = getCloseReasons().length;
  const client = await openClient();
  const stream = client.request([...requestFields('/files/1', 'POST'), ['authorization', `Bearer ${attack.token}`]], {
    end: false,
  });
  const part = frame(FRAME.data, 0, stream, Buffer.from('x'));
  // The frame headers alone exceed the limit.
  for (let sent = 0; sent < 40_000; sent += 1_000) {
    client.send(repeat(part, 1_000));
    await until(
      'the upstream has the frames',
      withAdvancingTime(() => attack.upstream.bytes().split('x').length > sent),
    );
    runChecks();
  }
  client.send(frame(FRAME.data, FLAG.endStream, stream));
  await client.until(() => client.endedCleanly(stream));
  expect(client.outcome(stream)?.status).toBe(200);

  for (let count = 0; count < 32; count += 1) {
    const refused = client.request(requestFields('/files/1', 'POST'), { end: false });
    client.send(repeat(frame(FRAME.data, 0, refused, Buffer.alloc(16_000)), 4));
    await client.until(() => client.outcome(refused) !== undefined);
    await waitForPong(client);
    runChecks();
    expect(client.outcome(refused)?.status).toBe(401);
  }
  const last = client.request(requestFields('/public/1'));
  await client.until(() => client.endedCleanly(last));
  expect([client.outcome(last)?.status, client.isOver(), getCloseReasons().length]).toEqual([200, false, before]);
  await attack.expectHealthy();
});
