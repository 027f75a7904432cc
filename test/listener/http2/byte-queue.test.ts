import { expect, test } from 'vitest';
import { ByteQueue } from '../../../src/listener/http2/byte-queue.ts';
import { randomBelow } from '../../fuzz/mutations.ts';

test('the bytes come out in the order in which they were added, whatever the sizes of the parts', () => {
  for (let seed = 1; seed <= 60; seed += 1) {
    const below = randomBelow(seed);
    const queue = new ByteQueue();
    let expected = Buffer.alloc(0);
    let written = 0;
    const createPart = (): Buffer => {
      const size = [0, 1, 5, 500, 4_095, 4_096, 9_000][below(7)] ?? 0;
      return Buffer.from(Array.from({ length: size }, () => written++ & 0xff));
    };
    for (let step = 0; step < 80; step += 1) {
      switch (below(6)) {
        case 0:
        case 1: {
          const part = createPart();
          const source = Buffer.concat([Buffer.from([1, 2]), part, Buffer.from([3])]);
          queue.append(source, 2, 2 + part.length);
          // It was copied.
          source.fill(0xee);
          expected = Buffer.concat([expected, part]);
          break;
        }
        case 2: {
          const part = createPart();
          queue.add(Buffer.from(part));
          expected = Buffer.concat([expected, part]);
          break;
        }
        case 3:
        case 4: {
          const { first } = queue;
          expect(first.equals(expected.subarray(0, first.length))).toBe(true);
          expect(first.length > 0).toBe(expected.length > 0);
          const size = below(first.length + 1);
          queue.consume(size);
          expected = expected.subarray(size);
          break;
        }
        default:
          if (below(8) === 0) {
            expect(queue.take().equals(expected)).toBe(true);
            expected = Buffer.alloc(0);
          }
      }
      expect(queue.length).toBe(expected.length);
    }
    expect(queue.take().equals(expected)).toBe(true);
    queue.clear();
    expect([queue.length, queue.first.length]).toEqual([0, 0]);
  }
});
