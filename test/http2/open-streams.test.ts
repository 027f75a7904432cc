import { expect, test } from 'vitest';
import { OpenStreams } from '../../src/http2/open-streams.ts';
import { randomBelow } from '../fuzz/mutations.ts';

interface Stream {
  readonly id: number;
}

test('streams are found by their id until they are deleted, in any order of deletion', () => {
  const random = randomBelow(1);
  const streams = new OpenStreams<Stream>();
  const expected = new Map<number, Stream>();
  let id = -1;
  for (let step = 0; step < 5_000; step += 1) {
    if (expected.size === 0 || (expected.size < 100 && random(2) === 0)) {
      id += 2;
      const stream = { id };
      streams.add(stream);
      expected.set(id, stream);
    } else {
      const stream = [...expected.values()][random(expected.size)] as Stream;
      streams.delete(stream);
      streams.delete(stream);
      expected.delete(stream.id);
      expect(streams.get(stream.id)).toBeUndefined();
    }
    expect(streams.size).toBe(expected.size);
  }
  expect(streams.list()).toEqual([...expected.values()]);
  for (let other = 1; other <= id + 2; other += 2) expect(streams.get(other)).toBe(expected.get(other));
});
