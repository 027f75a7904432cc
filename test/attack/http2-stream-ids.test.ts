import { expect, test } from 'vitest';
import { CODE, type FrameClient } from '../support/http2-frames.ts';
import { until } from '../support/until.ts';
import { GET, get, useHttp2Attack } from './http2-attack.ts';

/** X07: stream ids that are used up, out of order or used again. */
const { attack, expectServed, openClient } = useHttp2Attack();

test('X07 a connection whose stream ids are nearly used up is closed gracefully', async () => {
  const client = await openClient();
  const early = client.request(GET, { stream: 1_000_001 });
  expect(await client.waitForEnd(early)).toEqual({ status: 200 });
  await client.waitForPong();
  expect(client.isOver()).toBe(false);
  const late = client.request(GET, { stream: 0x4000_0001 });
  expect(await client.waitForEnd(late)).toEqual({ status: 200 });
  await client.until(() => client.isOver());
  expect(client.goAway()).toBe(CODE.noError);
  expect(client.goAways().every(({ lastStream }) => lastStream >= late)).toBe(true);
  await client.until(() => client.closed());
  await attack.expectHealthy();
});

test('X07 a stream id that is even, zero, lower than the previous one, or of a closed stream, closes the connection', async () => {
  const send = async (first: number, second: number): Promise<FrameClient> => {
    const client = await openClient();
    if (first > 0) expect(await client.waitForEnd(client.request(GET, { stream: first }))).toBeDefined();
    client.send(get(second));
    await client.until(() => client.isOver());
    return client;
  };
  expect((await send(0, 2)).goAway()).toBe(CODE.protocolError);
  expect((await send(1, 0)).goAway()).toBe(CODE.protocolError);
  expect((await send(5, 4)).goAway()).toBe(CODE.protocolError);
  for (const second of [3, 5])
    expect([CODE.protocolError, CODE.streamClosed]).toContain((await send(5, second)).goAway());
});

test('X07 a second head on a stream whose request has ended resets it, and is not a second request', async () => {
  attack.upstream.reset();
  attack.upstream.respondWith(() => {});
  const client = await openClient();
  const stream = client.request(GET);
  await until('the upstream has the request', () => attack.upstream.requests.length === 1);
  client.send(get(stream));
  expect(await client.waitForOutcome(stream)).toEqual({ reset: CODE.streamClosed });
  expect(attack.upstream.requests.length).toBe(1);
  attack.upstream.reset();
  await expectServed(client);
});
