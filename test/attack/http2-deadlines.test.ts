import { afterEach, expect, test } from 'vitest';
import {
  CODE,
  FRAME,
  type FrameClient,
  type FrameClientOptions,
  frame,
  frameClient,
  headerBlock,
  headersFrame,
  PREFACE,
  pingFrame,
  requestFields,
  settingsFrame,
} from '../support/http2-frames.ts';
import { until } from '../support/until.ts';
import { useAttackGateway } from './attack-gateway.ts';

/** X01 an HTTP/2 connection on which no request arrives is closed after `limits.headerTimeout`. */
const attack = useAttackGateway((settings) => ({
  ...settings,
  limits: { ...settings.limits, headerTimeout: '1s' },
  log: { level: 'info' },
}));

const openClients: FrameClient[] = [];
const timers: NodeJS.Timeout[] = [];
afterEach(() => {
  for (const timer of timers.splice(0)) clearInterval(timer);
  for (const client of openClients.splice(0)) client.destroy();
});

async function openClient(options: Omit<FrameClientOptions, 'ca'> = {}): Promise<FrameClient> {
  const { gateway } = attack;
  const client = await frameClient(gateway.port, { ca: gateway.ca.pem, ...options });
  openClients.push(client);
  return client;
}

/** Sends bytes again and again, more often than the deadline. */
const trickle = (client: FrameClient, next: () => Buffer): void =>
  void timers.push(setInterval(() => client.send(next()), 100));

const HEAD = headerBlock(requestFields('/public/1'));
const NOTHING = Buffer.alloc(0);

const SILENT: Readonly<Record<string, () => Promise<FrameClient>>> = {
  'sends nothing': () => openClient({ opening: NOTHING }),
  'sends half a preface': () => openClient({ opening: PREFACE.subarray(0, 10) }),
  'sends the preface byte by byte': async () => {
    const client = await openClient({ opening: NOTHING });
    let at = 0;
    trickle(client, () => PREFACE.subarray(at, ++at));
    return client;
  },
  'sends no SETTINGS': () => openClient({ opening: PREFACE }),
  'sends no request': () => openClient(),
  'sends pings, but no request': async () => {
    const client = await openClient();
    trickle(client, () => pingFrame(1));
    return client;
  },
  'sends SETTINGS, but no request': async () => {
    const client = await openClient();
    let left = 10;
    trickle(client, () => (left-- > 0 ? settingsFrame() : NOTHING));
    return client;
  },
  'sends half of a HEADERS frame': async () => {
    const client = await openClient();
    client.send(headersFrame(1, HEAD).subarray(0, 30));
    return client;
  },
  'sends a HEADERS frame byte by byte': async () => {
    const client = await openClient();
    const bytes = headersFrame(1, HEAD);
    let at = 0;
    trickle(client, () => bytes.subarray(at, ++at));
    return client;
  },
  'does not end its header block': async () => {
    const client = await openClient();
    client.send(headersFrame(1, HEAD, { endHeaders: false }));
    return client;
  },
  'continues its header block forever': async () => {
    const client = await openClient();
    client.send(headersFrame(1, HEAD, { endHeaders: false }));
    let left = 6;
    trickle(client, () => (left-- > 0 ? frame(FRAME.continuation, 0, 1) : NOTHING));
    return client;
  },
  'does not end the header block of its second request': async () => {
    const client = await openClient();
    expect(await client.waitForEnd(client.request(HEAD))).toEqual({ status: 200 });
    client.send(headersFrame(3, HEAD, { endHeaders: false }));
    return client;
  },
};

test('X01 a client that sends no complete request is disconnected, whatever else it sends; others are served', async () => {
  // Active and idle for longer than the deadline.
  attack.upstream.reset();
  let respond = (): void => {};
  attack.upstream.respondWith((socket, { target }) => {
    const answer = (): void => void socket.write('HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n');
    if (target === '/public/held') respond = answer;
    else answer();
  });
  const [active, idle] = [await openClient(), await openClient()];
  const held = active.request(requestFields('/public/held'));
  await until('the upstream has the request', () => attack.upstream.bytes().includes('/public/held'));
  expect(await idle.waitForEnd(idle.request(HEAD))).toEqual({ status: 200 });

  const left = new Set(Object.keys(SILENT));
  await Promise.all(
    Object.entries(SILENT).map(async ([name, open]) => {
      const client = await open();
      await client.until(() => client.closed());
      left.delete(name);
    }),
  ).catch((error: unknown) => {
    throw new Error(`still open: ${[...left].join(', ')}`, { cause: error });
  });

  respond();
  expect(await active.waitForEnd(held)).toEqual({ status: 200 });
  expect(await idle.waitForEnd(idle.request(HEAD))).toEqual({ status: 200 });
  await attack.expectHealthy();
});

test('X01 the connection of a client that sends no request is closed with GOAWAY NO_ERROR', async () => {
  const client = await openClient();
  await client.until(() => client.closed());
  expect(client.goAway()).toBe(CODE.noError);
});
