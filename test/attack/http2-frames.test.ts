import { afterAll, afterEach, beforeAll, expect, test, vi } from 'vitest';
import { until } from '../support/until.ts';
import { useAttackGateway } from './attack-gateway.ts';
import { FLAG, FRAME, type FrameClient, frame, frameClient, requestFields, uint32 } from './h2-frames.ts';

/** X07 frames that are valid, cheap to send, and serve no purpose. docs/decisions/0012-http2-listener.md */

// The gateway looks at its connections at intervals: here, when a test says so.
beforeAll(() => void vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval'] }));
afterAll(() => void vi.useRealTimers());
const look = (): void => void vi.advanceTimersByTime(1_000);
/** Bodies of unknown length are forwarded after a time, which is looked at in intervals as well. */
const isUpstream = (condition: () => boolean): (() => boolean) => {
  return () => {
    vi.advanceTimersByTime(100);
    return condition();
  };
};

const attack = useAttackGateway((settings) => ({
  ...settings,
  upstreams: { default: { ...settings.upstreams?.['default'], bodyBuffer: 0 } },
}));

const opened: FrameClient[] = [];
afterEach(() => {
  for (const client of opened.splice(0)) client.destroy();
});

async function client(settings?: readonly (readonly [number, number])[]): Promise<FrameClient> {
  const { gateway } = attack;
  const made = await frameClient(gateway.port, { ca: gateway.ca.pem, ...(settings && { settings }) });
  opened.push(made);
  return made;
}

const ENHANCE_YOUR_CALM = 11;
const repeated = (bytes: Buffer, times: number): Buffer => Buffer.concat(Array<Buffer>(times).fill(bytes));

/** Sends the same again and again, as fast as it is read, until the connection ends. */
async function flood(one: FrameClient, portion: Buffer): Promise<void> {
  while (!one.isOver()) {
    if (!one.socket.write(portion))
      await new Promise<void>((resolve) => {
        const done = (): void => {
          one.socket.off('drain', done).off('close', done);
          resolve();
        };
        one.socket.on('drain', done).on('close', done);
      });
    await new Promise(setImmediate);
    look();
  }
}

/** By its answer, everything that was sent before has been read. */
async function waitForPong(one: FrameClient): Promise<void> {
  const pongs = (): number =>
    one.frames.filter(({ type, flags }) => type === FRAME.ping && flags === FLAG.ack).length;
  const before = pongs();
  one.send(frame(FRAME.ping, 0, 0, Buffer.alloc(8, 7)));
  await one.until(() => pongs() > before);
}

const endings = (): unknown[] =>
  attack.gateway.log.filter(({ event }) => event === 'http2_connection_closed').map(({ why }) => why);

/** A request whose response never comes, so that its stream stays open. */
async function openStream(one: FrameClient, path: string, method = 'GET'): Promise<number> {
  const stream = one.request(requestFields(path, method), { end: method === 'GET' });
  await until(
    'the request is upstream',
    isUpstream(() => attack.upstream.bytes().includes(path)),
  );
  return stream;
}

const FLOODS: Readonly<Record<string, (one: FrameClient) => Buffer | Promise<Buffer>>> = {
  'WINDOW_UPDATE of the connection': () => frame(FRAME.windowUpdate, 0, 0, uint32(1)),
  'WINDOW_UPDATE of a stream': async (one) =>
    frame(FRAME.windowUpdate, 0, await openStream(one, '/public/updated'), uint32(1)),
  PRIORITY: () => frame(FRAME.priority, 0, 1, Buffer.concat([uint32(0), Buffer.from([1])])),
  'frames of an unknown type': () => frame(0xbb, 0, 0, Buffer.alloc(64)),
  PRIORITY_UPDATE: () => frame(0x10, 0, 0, Buffer.concat([uint32(1), Buffer.from('u=1')])),
  'empty DATA': async (one) => frame(FRAME.data, 0, await openStream(one, '/public/empty', 'POST')),
  'DATA that is padding only': async (one) =>
    frame(
      FRAME.data,
      FLAG.padded,
      await openStream(one, '/public/padded', 'POST'),
      Buffer.concat([Buffer.from([15]), Buffer.alloc(15)]),
    ),
};

test('X07 a flood of frames that serve no purpose ends the connection, whatever their type', async () => {
  attack.upstream.reset();
  attack.upstream.respondWith(() => {});
  const ended = await Promise.all(
    Object.entries(FLOODS).map(async ([what, makeFrame]) => {
      const one = await client();
      await flood(one, repeated(await makeFrame(one), 1_000));
      await one.until(() => one.closed());
      return what;
    }),
  );
  expect(ended).toEqual(Object.keys(FLOODS));
  attack.upstream.reset();
  await attack.expectHealthy();
});

test('X07 the end is announced with ENHANCE_YOUR_CALM, and logged', async () => {
  const before = endings().length;
  const one = await client();
  // Enough for the limit, and no more: the GOAWAY is not lost to a reset.
  for (let sent = 0; sent < 40; sent += 1)
    one.send(repeated(frame(FRAME.windowUpdate, 0, 0, uint32(1)), 1_000));
  await waitForPong(one);
  look();
  await one.until(() => one.isOver());
  expect(one.goAway()).toBe(ENHANCE_YOUR_CALM);
  expect(endings().slice(before)).toEqual(['too many unproductive frames']);
  await attack.expectHealthy();
});

test('X07 requests that are refused before their body do not pay for a flood', async () => {
  const one = await client();
  const updates = repeated(frame(FRAME.windowUpdate, 0, 0, uint32(1)), 16_000);
  for (let count = 0; count < 60 && !one.isOver(); count += 1) {
    const refused = one.request(requestFields('/files/1', 'POST'), { end: false });
    await one.until(() => one.outcome(refused) !== undefined || one.isOver());
    one.send(updates);
    await waitForPong(one);
    look();
  }
  await one.until(() => one.isOver());
  expect(one.goAway() ?? ENHANCE_YOUR_CALM).toBe(ENHANCE_YOUR_CALM);
  await attack.expectHealthy();
});

test('X07 a client that updates its windows for every byte of long responses is not ended', async () => {
  attack.upstream.reset();
  // Small chunks, each answered by two updates, are the worst case: 4 MB of them.
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
  const one = await client();
  const before = endings().length;
  let responded = 0;
  const respond = (): void => {
    for (; responded < one.frames.length; responded += 1) {
      const { type, stream, payload } = one.frames[responded] ?? {};
      if (type !== FRAME.data || payload === undefined || payload.length === 0) continue;
      const size = uint32(payload.length);
      one.send(frame(FRAME.windowUpdate, 0, 0, size), frame(FRAME.windowUpdate, 0, stream ?? 0, size));
    }
  };
  one.socket.on('data', respond).on('data', look);
  const streams = [one.request(requestFields('/public/1')), one.request(requestFields('/public/2'))];
  await one.until(() => streams.every((stream) => one.endedCleanly(stream)));
  expect(streams.map((stream) => one.body(stream).length)).toEqual([4_096_000, 4_096_000]);
  await waitForPong(one);
  look();
  expect([one.isOver(), endings().length]).toEqual([false, before]);
});

test('X07 a client that uploads in small frames, and one whose uploads are refused, are not ended', async () => {
  attack.upstream.reset();
  const before = endings().length;
  const one = await client();
  const stream = one.request(
    [...requestFields('/files/1', 'POST'), ['authorization', `Bearer ${attack.token}`]],
    {
      end: false,
    },
  );
  const part = frame(FRAME.data, 0, stream, Buffer.from('x'));
  // More bytes in frame headers than the limit.
  for (let sent = 0; sent < 40_000; sent += 1_000) {
    one.send(repeated(part, 1_000));
    await until(
      'they are upstream',
      isUpstream(() => attack.upstream.bytes().split('x').length > sent),
    );
    look();
  }
  one.send(frame(FRAME.data, FLAG.endStream, stream));
  await one.until(() => one.endedCleanly(stream));
  expect(one.outcome(stream)?.status).toBe(200);

  for (let count = 0; count < 8; count += 1) {
    const refused = one.request(requestFields('/files/1', 'POST'), { end: false });
    one.send(repeated(frame(FRAME.data, 0, refused, Buffer.alloc(16_000)), 16));
    await one.until(() => one.outcome(refused) !== undefined);
    await waitForPong(one);
    look();
    expect(one.outcome(refused)?.status).toBe(401);
  }
  const last = one.request(requestFields('/public/1'));
  await one.until(() => one.endedCleanly(last));
  expect([one.outcome(last)?.status, one.isOver(), endings().length]).toEqual([200, false, before]);
  await attack.expectHealthy();
});
