import fc from 'fast-check';
import { expect, test } from 'vitest';
import { closeFrame, computeAcceptKey, FrameTracker } from '../../../src/proxy/upstream/tunnel.ts';
import { CLOSE, createFrameDecoder, encodeFrame, type Frame, TEXT } from '../../support/websocket.ts';

const frames = fc.array(
  fc.record({
    size: fc.oneof(fc.nat(130), fc.integer({ min: 65_530, max: 65_540 })),
    masked: fc.boolean(),
  }),
  { minLength: 1, maxLength: 6 },
);

test('a frame can be inserted between frames but never within one, however the bytes are split', () => {
  fc.assert(
    fc.property(frames, fc.array(fc.integer({ min: 1, max: 40_000 }), { maxLength: 30 }), (given, cuts) => {
      const encoded = given.map(({ size, masked }) => encodeFrame(TEXT, Buffer.alloc(size), masked));
      const ends = new Set([0]);
      let total = 0;
      for (const { length } of encoded) ends.add((total += length));
      const bytes = Buffer.concat(encoded);
      const track = new FrameTracker();
      let at = 0;
      for (const cut of [...cuts, bytes.length]) {
        track.push(bytes.subarray(at, at + cut));
        at = Math.min(bytes.length, at + cut);
        expect(track.canInsert()).toBe(ends.has(at));
      }
    }),
    { numRuns: 200 },
  );
});

test('frames of every length encoding are tracked byte by byte', () => {
  for (const size of [0, 1, 125, 126, 65_535, 65_536])
    for (const masked of [false, true]) {
      const bytes = encodeFrame(TEXT, Buffer.alloc(size), masked);
      const track = new FrameTracker();
      for (const byte of bytes.subarray(0, -1)) track.push(Buffer.from([byte]));
      expect(track.canInsert()).toBe(false);
      track.push(bytes.subarray(-1));
      expect(track.canInsert()).toBe(true);
    }
});

test('nothing is inserted after a Close frame', () => {
  const track = new FrameTracker();
  track.push(encodeFrame(CLOSE, Buffer.from([3, 232]), false));
  expect(track.canInsert()).toBe(false);
});

test.each([false, true])('a Close frame is readable by an independent decoder (masked: %s)', (masked) => {
  const read: Frame[] = [];
  createFrameDecoder((frame) => read.push(frame))(closeFrame(1008, 'access token revoked', masked));
  expect(read).toHaveLength(1);
  expect(read[0]).toMatchObject({ opcode: CLOSE, masked });
  expect(read[0]?.payload.readUInt16BE()).toBe(1008);
  expect(read[0]?.payload.subarray(2).toString()).toBe('access token revoked');
});

test('Sec-WebSocket-Accept matches the example in RFC 6455 §1.3', () => {
  expect(computeAcceptKey('dGhlIHNhbXBsZSBub25jZQ==')).toBe('s3pPLMBiTxaQ9kYGzzhZRbK+xOo=');
});
