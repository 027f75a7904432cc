import { describe, expect, test } from 'vitest';
import {
  CODE,
  dataFrame,
  FLAG,
  FRAME,
  type Frame,
  frame,
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

  /** An upstream that responds to `/public/held` when the test releases it. */
  function holdResponses(upstream: RecordingUpstream): () => void {
    const held: (() => void)[] = [];
    upstream.respondWith((socket, request) => {
      if (request.target === '/public/held') held.push(() => respondOk(socket, request));
      else respondOk(socket, request);
    });
    return () => held.splice(0).forEach((respond) => respond());
  }

  test('it is announced; requests that are on their way are served; then the connection closes', async () => {
    const { gateway, upstream } = await setUp();
    const release = holdResponses(upstream);
    const client = await openClient(gateway);
    const running = client.request(HELD);
    await until('the upstream has the request', () => upstream.requests.length === 1);
    const drained = gateway.server.drain({ preStop: 0, drain: 30 });
    await client.until(() => client.goAways().length > 0 && client.frames.some(isPing));
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

  const PRE_STOP: SettingsChange = (settings) => ({ ...settings, shutdown: { preStop: '1h', drain: '30s' } });
  const NOTICE = { lastStream: 0x7fff_ffff, code: CODE.noError };

  test('streams that a client begins after the announcement are served until the end of the pre-stop time', async () => {
    const { gateway } = await setUp(PRE_STOP);
    const client = await openClient(gateway);
    expect(await client.waitForEnd(client.request(GET))).toEqual({ status: 200 });
    gateway.server.announceShutdown();
    expect(await client.waitForEnd(client.request(GET))).toEqual({ status: 200 });
    await client.until(() => client.frames.some(isPing));
    client.send(frame(FRAME.ping, FLAG.ack, 0, client.frames.find(isPing)?.payload));
    for (let count = 0; count < 5; count += 1)
      expect(await client.waitForEnd(client.request(GET))).toEqual({ status: 200 });
    const last = client.request(GET);
    expect(await client.waitForEnd(last)).toEqual({ status: 200 });
    expect(client.goAways()).toEqual([NOTICE]);
    const drained = gateway.server.drain({ preStop: 0, drain: 30 });
    await client.until(() => client.closed());
    expect(client.goAways()).toEqual([NOTICE, { lastStream: last, code: CODE.noError }]);
    expect(await drained).toBe(true);
  });

  test('the announcement precedes the next response, also on connections that are opened later', async () => {
    const { gateway, upstream } = await setUp(PRE_STOP);
    const release = holdResponses(upstream);
    const before = await openClient(gateway);
    const running = before.request(HELD);
    await until('the upstream has the request', () => upstream.requests.length === 1);
    gateway.server.announceShutdown();
    const after = await openClient(gateway);
    const held = after.request(HELD);
    await until('the upstream has both requests', () => upstream.requests.length === 2);
    for (const client of [before, after]) {
      await client.waitForPong();
      expect(client.goAways()).toEqual([]);
    }
    release();
    for (const [client, stream] of [
      [before, running],
      [after, held],
    ] as const) {
      expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
      const types = client.frames.map(({ type }) => type);
      expect(types.indexOf(FRAME.goAway)).toBeLessThan(types.indexOf(FRAME.headers));
      expect(client.goAways()).toEqual([NOTICE]);
      expect(await client.waitForEnd(client.request(GET))).toEqual({ status: 200 });
    }
    const drained = gateway.server.drain({ preStop: 0, drain: 30 });
    for (const client of [before, after]) await client.until(() => client.closed());
    expect(await drained).toBe(true);
  });

  test('a client that does not acknowledge the announcement is drained as well', async () => {
    const { gateway, upstream } = await setUp();
    const release = holdResponses(upstream);
    const [busy, idle] = [await openClient(gateway), await openClient(gateway)];
    const running = busy.request(HELD);
    expect(await idle.waitForEnd(idle.request(GET))).toEqual({ status: 200 });
    await until('the upstream has the request', () => upstream.requests.length === 2);
    const drained = gateway.server.drain({ preStop: 0, drain: 30 });
    await busy.until(() => busy.goAways().length === 2);
    expect(busy.goAways()[1]).toEqual({ lastStream: running, code: CODE.noError });
    await idle.until(() => idle.closed());
    release();
    expect(await busy.waitForEnd(running)).toEqual({ status: 200 });
    await busy.until(() => busy.closed());
    expect(await drained).toBe(true);
  });

  test('an upload that is running is completed', async () => {
    const { gateway, upstream } = await setUp();
    const client = await openClient(gateway);
    const stream = client.request([...POST, ['content-length', '600000']], { end: false });
    const part = Buffer.alloc(10_000, 'x');
    for (let sent = 0; sent < 6; sent += 1) client.send(dataFrame(stream, part));
    await client.waitForPong();
    const drained = gateway.server.drain({ preStop: 0, drain: 30 });
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
