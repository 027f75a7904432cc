import { expect, test } from 'vitest';
import { fuzzFrames } from './http2-frames.ts';
import { fuzzHpack } from './http2-hpack.ts';
import { fuzzMessages } from './http2-messages.ts';

/** Seeds are fixed; `npm run test:full` sends more, and `npm run fuzz:http2` others. */
test('8,000 header blocks are decoded as by the reference decoder', () => {
  const { blocks, fields, malformed } = fuzzHpack(8_000, 1);
  expect(blocks).toBe(8_000);
  expect(fields).toBeGreaterThan(15_000);
  expect(malformed).toBeGreaterThan(1_500);
});

test('X07 1,500 frames, some of them damaged: the gateway responds or closes the connection, and never logs an error', async () => {
  const { connections, closed, responses, forwarded } = await fuzzFrames({ count: 1_500, seed: 1 });
  expect(connections).toBeGreaterThan(50);
  expect(closed).toBeGreaterThan(30);
  expect(responses).toBeGreaterThan(100);
  expect(forwarded).toBeGreaterThan(80);
});

test('H29 250 messages reach the upstream in the same form over HTTP/2 and over HTTP/1.1, as the HTTP/2 server of Node reads them, or are rejected', async () => {
  const { messages, forwarded, malformed, overHttp1 } = await fuzzMessages({ count: 250, seed: 1 });
  expect(messages).toBe(250);
  expect(forwarded).toBeGreaterThan(70);
  expect(malformed).toBeGreaterThan(15);
  expect(overHttp1).toBeGreaterThan(150);
});
