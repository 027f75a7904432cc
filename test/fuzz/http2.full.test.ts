import { expect, test } from 'vitest';
import { fuzzFrames } from './http2-frames.ts';
import { fuzzHpack } from './http2-hpack.ts';
import { fuzzMessages } from './http2-messages.ts';
import { fuzzHttp2Responses } from './http2-responses.ts';

test('200,000 header blocks are decoded as by the reference decoder', () => {
  const { blocks, malformed } = fuzzHpack(200_000, 2);
  expect(blocks).toBe(200_000);
  expect(malformed).toBeGreaterThan(40_000);
}, 1_800_000);

test('X07 20,000 frames, some of them damaged: the gateway responds or closes the connection, and never logs an error', async () => {
  const { closed, responses, forwarded } = await fuzzFrames({ count: 20_000, seed: 2 });
  expect(closed).toBeGreaterThan(400);
  expect(responses).toBeGreaterThan(1_600);
  expect(forwarded).toBeGreaterThan(1_200);
}, 1_800_000);

test('H29 5,000 messages reach the upstream in the same form over HTTP/2 and over HTTP/1.1, as the HTTP/2 server of Node reads them, or are rejected', async () => {
  const { messages, forwarded, overHttp1 } = await fuzzMessages({ count: 5_000, seed: 2 });
  expect(messages).toBe(5_000);
  expect(forwarded).toBeGreaterThan(1_750);
  expect(overHttp1).toBeGreaterThan(3_500);
}, 1_800_000);

test('20,000 frames of an upstream, some of them damaged: each exchange ends once, and nothing throws', async () => {
  const { completed, failed, errors, exchanges } = await fuzzHttp2Responses({ count: 20_000, seed: 2 });
  expect(errors).toEqual([]);
  expect(completed + failed).toBe(exchanges);
  expect(completed).toBeGreaterThan(1_000);
}, 600_000);
