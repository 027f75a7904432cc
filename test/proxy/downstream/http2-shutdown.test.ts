import { describe, expect, test } from 'vitest';
import {
  CODE,
  dataFrame,
  FLAG,
  FRAME,
  type Frame,
  type FrameClient,
  frame,
  headersFrame,
  requestFields,
  resetFrame,
  windowUpdateFrame,
} from '../../support/http2-frames.ts';
import { type RecordingUpstream, respondOk } from '../../support/recording-upstream.ts';
import type { SettingsChange } from '../../support/test-gateway.ts';
import { until } from '../../support/until.ts';
import { GET, POST, useStreamGateways } from './http2-stream-gateway.ts';

const { openClient, setUp } = useStreamGateways();

describe('shutdown', () => {
  const isPing = ({ type, flags }: Frame): boolean => type === FRAME.ping && flags === 0;
  const HELD = requestFields('/public/held');

  const PRE_STOP: SettingsChange = (settings) => ({ ...settings, shutdown: { preStop: '1h', drain: '30s' } });
  const NOTICE = { lastStream: 0x7fff_ffff, code: CODE.noError };
  const NOTICE_PAYLOAD = Buffer.from('7fffffff00000000', 'hex');

  /** Longer than a busy client waits for the announcement. */
  const LONG_TIMEOUTS: SettingsChange = (settings) => ({
    ...settings,
    upstreams: {
      default: {
        ...settings.upstreams?.['default'],
        timeouts: { connect: '60s', headers: '60s', idle: '60s' },
      },
    },
  });

  /** An upstream that responds to `/public/held` when the test releases it. */
  function holdResponses(upstream: RecordingUpstream): () => void {
    const held: (() => void)[] = [];
    upstream.respondWith((socket, request) => {
      if (request.target === '/public/held') held.push(() => respondOk(socket, request));
      else respondOk(socket, request);
    });
    return () => held.splice(0).forEach((respond) => respond());
  }

  test('it is announced to a busy client after half of the drain time; requests that are on their way are served; then the connection closes', async () => {
    const { gateway, upstream } = await setUp(LONG_TIMEOUTS);
    const release = holdResponses(upstream);
    const client = await openClient(gateway);
    const running = client.request(HELD);
    await until('the upstream has the request', () => upstream.requests.length === 1);
    const startedAt = performance.now();
    const drained = gateway.server.drain({ preStop: 0, drain: 6 });
    await client.until(() => client.goAways().length > 0 && client.frames.some(isPing));
    // Timers may expire a millisecond early.
    expect(performance.now() - startedAt).toBeGreaterThan(2_990);
    expect(client.goAways()).toEqual([{ lastStream: 0x7fff_ffff, code: CODE.noError }]);

    // Sent before the client has seen the announcement.
    const late = client.request(HELD);
    await until('the upstream has this request', () => upstream.requests.length === 2);
    const ping = client.frames.find(isPing)?.payload;
    client.send(frame(FRAME.ping, FLAG.ack, 0, ping));
    await client.until(() => client.goAways().length === 2);
    expect(client.goAways()[1]).toEqual({ lastStream: late, code: CODE.noError });

    // RFC 9113 §6.8: frames of later streams are ignored.
    const ignored = client.post(POST, 'body');
    client.send(windowUpdateFrame(ignored, 1), resetFrame(ignored));
    await client.waitForPong();
    expect([client.closed(), client.goAways().length]).toEqual([false, 2]);
    release();
    for (const stream of [running, late]) expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
    await client.until(() => client.closed());
    expect(client.outcome(ignored)).toBeUndefined();
    expect(upstream.requests.length).toBe(2);
    expect(await drained).toBe(true);
  });

  /** Acknowledges the PING frames that were received since the last call, and sends a request in the same write if there is one. */
  function createAcknowledger(client: FrameClient) {
    let acknowledged = 0;
    const pings = (): readonly Frame[] => client.frames.filter(isPing);
    return async (...request: readonly Buffer[]): Promise<void> => {
      await client.until(() => pings().length > acknowledged);
      const received = pings().slice(acknowledged);
      acknowledged += received.length;
      client.send(...received.map(({ payload }) => frame(FRAME.ping, FLAG.ack, 0, payload)), ...request);
    };
  }

  test('an idle client that acknowledges two PING frames gets it; its streams are served until the end of the pre-stop time', async () => {
    const { gateway } = await setUp(PRE_STOP);
    const [before, after] = [await openClient(gateway), await openClient(gateway)];
    expect(await before.waitForEnd(before.request(GET))).toEqual({ status: 200 });
    gateway.server.announceShutdown();
    // Also on connections that are opened later.
    expect(await after.waitForEnd(after.request(GET))).toEqual({ status: 200 });
    for (const client of [before, after]) {
      const acknowledge = createAcknowledger(client);
      await acknowledge();
      expect(client.goAways()).toEqual([]);
      await acknowledge();
      await client.until(() => client.goAways().length > 0);
      expect(client.goAways()).toEqual([NOTICE]);
      await acknowledge();
      for (let count = 0; count < 5; count += 1)
        expect(await client.waitForEnd(client.request(GET))).toEqual({ status: 200 });
      expect(client.goAways()).toEqual([NOTICE]);
    }
    const last = before.request(GET);
    expect(await before.waitForEnd(last)).toEqual({ status: 200 });
    const drained = gateway.server.drain({ preStop: 0, drain: 30 });
    for (const client of [before, after]) await client.until(() => client.closed());
    expect(before.goAways()).toEqual([NOTICE, { lastStream: last, code: CODE.noError }]);
    expect(await drained).toBe(true);
  });

  test('a client with a pending request does not get it', async () => {
    const { gateway, upstream } = await setUp(PRE_STOP);
    const release = holdResponses(upstream);
    const client = await openClient(gateway);
    const acknowledge = createAcknowledger(client);
    gateway.server.announceShutdown();
    await client.until(() => client.frames.some(isPing));
    const running = client.request(HELD);
    await acknowledge();
    await until('the upstream has the request', () => upstream.requests.length === 1);
    expect(await client.waitForEnd(client.request(GET))).toEqual({ status: 200 });
    await client.waitForPong();
    expect(client.goAways()).toEqual([]);
    release();
    expect(await client.waitForEnd(running)).toEqual({ status: 200 });
    await acknowledge();
    await acknowledge();
    await client.until(() => client.goAways().length > 0);
    expect(client.goAways()).toEqual([NOTICE]);
  });

  test('a client that sends a request whenever it receives a response gets it at the end of the pre-stop time, before a response', async () => {
    const { gateway } = await setUp((settings) => ({
      ...settings,
      shutdown: { preStop: '1s', drain: '30s' },
    }));
    const client = await openClient(gateway);
    const acknowledge = createAcknowledger(client);
    gateway.server.announceShutdown();
    let stream = client.request(GET);
    await acknowledge();
    let rounds = 0;
    for (; client.goAways().length === 0; rounds += 1) {
      expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
      const next = stream + 2;
      if (client.goAways().length > 0) break;
      await acknowledge(headersFrame(next, GET));
      stream = next;
    }
    expect(rounds).toBeGreaterThan(1);
    const frames = client.frames.filter(({ stream: id, type }) => id === stream || type === FRAME.goAway);
    expect(frames[0]?.type).toBe(FRAME.goAway);
    await acknowledge();
    await client.until(() => client.closed());
    expect(client.goAways()).toEqual([NOTICE, { lastStream: stream, code: CODE.noError }]);
  });

  test('a client that pauses after each response gets it in the same TLS record as a response, and no PING after it', async () => {
    const { gateway } = await setUp(PRE_STOP);
    const client = await openClient(gateway);
    const records: Buffer[] = [];
    client.socket.on('data', (record: Buffer) => records.push(record));
    const acknowledge = createAcknowledger(client);
    gateway.server.announceShutdown();
    await client.until(() => client.frames.some(isPing));
    for (let round = 0; client.goAways().length === 0; round += 1) {
      expect(round).toBeLessThan(10);
      expect(await client.waitForEnd(client.request(GET))).toEqual({ status: 200 });
      if (client.goAways().length === 0) await acknowledge();
      await client.waitForPong();
    }
    expect(client.goAways()).toEqual([NOTICE]);
    const at = client.frames.findIndex(({ type }) => type === FRAME.goAway);
    expect(client.frames.slice(at).filter(isPing)).toEqual([]);
    expect(client.frames[at - 1]).toMatchObject({ type: FRAME.data, flags: FLAG.endStream });
    const goAway = records.find((record) => record.includes(frame(FRAME.goAway, 0, 0, NOTICE_PAYLOAD)));
    expect(goAway?.length).toBeGreaterThan(17);
  });

  test('a client that does not read while it is idle gets the last stream, and the connection stays open until it has read that', async () => {
    const { gateway, upstream } = await setUp(PRE_STOP);
    const client = await openClient(gateway);
    const acknowledge = createAcknowledger(client);
    gateway.server.announceShutdown();
    const served = client.request(GET);
    expect(await client.waitForEnd(served)).toEqual({ status: 200 });
    // Read together with the response.
    await acknowledge();
    await client.until(() => client.goAways().length > 0);
    expect(client.goAways()).toEqual([{ lastStream: served, code: CODE.noError }]);
    const refused = client.request(GET);
    await client.waitForPong();
    expect([client.closed(), client.outcome(refused), upstream.requests.length]).toEqual([false, undefined, 1]);
  });

  test('a client that does not acknowledge the announcement is drained as well', async () => {
    const { gateway, upstream } = await setUp(LONG_TIMEOUTS);
    const release = holdResponses(upstream);
    const [busy, idle] = [await openClient(gateway), await openClient(gateway)];
    const running = busy.request(HELD);
    expect(await idle.waitForEnd(idle.request(GET))).toEqual({ status: 200 });
    await until('the upstream has the request', () => upstream.requests.length === 2);
    const drained = gateway.server.drain({ preStop: 0, drain: 6 });
    await busy.until(() => busy.goAways().length === 2);
    expect(busy.goAways()[1]).toEqual({ lastStream: running, code: CODE.noError });
    await idle.until(() => idle.closed());
    release();
    expect(await busy.waitForEnd(running)).toEqual({ status: 200 });
    await busy.until(() => busy.closed());
    expect(await drained).toBe(true);
  });

  test('an upload that is running is completed', async () => {
    const { gateway, upstream } = await setUp(LONG_TIMEOUTS);
    const client = await openClient(gateway);
    const stream = client.request([...POST, ['content-length', '600000']], { end: false });
    const part = Buffer.alloc(10_000, 'x');
    for (let sent = 0; sent < 6; sent += 1) client.send(dataFrame(stream, part));
    await client.waitForPong();
    const drained = gateway.server.drain({ preStop: 0, drain: 6 });
    await client.until(() => client.goAways().length === 2);
    for (let sent = 6; sent < 60; sent += 1) {
      await client.until(() => 65_535 + client.credit(stream) >= (sent + 1) * part.length);
      client.send(dataFrame(stream, part, { end: sent === 59 }));
    }
    expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
    expect(upstream.requests.map(({ body }) => body.length)).toEqual([600_000]);
    expect(await drained).toBe(true);
  });
});
