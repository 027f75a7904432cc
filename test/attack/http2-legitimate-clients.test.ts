import { expect, test } from 'vitest';
import { dataFrame, repeat, requestFields } from '../support/http2-frames.ts';
import { GET, useHttp2Attack } from './http2-attack.ts';

/** X07: clients that look like an attack, but are not. */
const { attack, expectServed, openClient } = useHttp2Attack();

test('X07 a client that acknowledges every DATA frame of a 5 MB download twice is served', async () => {
  attack.upstream.reset();
  const body = Buffer.alloc(5_000_000, 'x');
  attack.upstream.respondWith((socket) => {
    socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${body.length}\r\n\r\n`);
    socket.write(body);
  });
  const client = await openClient({ updateWindows: true });
  const streams = [client.request(GET), client.request(GET)];
  for (const stream of streams) {
    expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
    expect(client.bodyLength(stream)).toBe(body.length);
  }
  attack.upstream.reset();
  await expectServed(client);
});

test('X07 a client that uploads in small padded frames is served', async () => {
  attack.upstream.reset();
  const client = await openClient();
  const stream = client.request([...requestFields('/files/1', 'POST'), ['authorization', `Bearer ${attack.token}`]], {
    end: false,
  });
  for (let sent = 0; sent < 5_000; sent += 500) client.send(repeat(dataFrame(stream, 'x', { padding: 9 }), 500));
  client.send(dataFrame(stream, 'y', { end: true, padding: 255 }));
  expect(await client.waitForEnd(stream)).toEqual({ status: 200 });
  expect(attack.upstream.requests.map(({ body }) => body)).toEqual([`${'x'.repeat(5_000)}y`]);
  // Padding uses the window (RFC 9113 §6.9.1), so it is credited like the rest.
  await expectServed(client);
});

test('X07 a client whose upload in small frames is refused while most of it is on its way stays connected', async () => {
  const client = await openClient();
  const refused = client.request(requestFields('/files/1', 'POST'), { end: false });
  // As much as the window of the stream allows, and sent before the client has read the response.
  for (let frames = 0; frames < 80; frames += 1) client.send(dataFrame(refused, 'x'.repeat(800)));
  expect(await client.waitForOutcome(refused)).toEqual({ status: 401 });
  await expectServed(client);
});

test('X07 a client that opens 1,000 streams one after the other, each with its window updates, is served', async () => {
  attack.upstream.reset();
  const client = await openClient({ updateWindows: true });
  for (let batch = 0; batch < 20; batch += 1) {
    const streams = Array.from({ length: 50 }, () => client.request(GET));
    await client.until(() => streams.every((stream) => client.endedCleanly(stream)));
    expect(streams.map((stream) => client.outcome(stream)?.status)).toEqual(streams.map(() => 200));
  }
  await expectServed(client);
});
