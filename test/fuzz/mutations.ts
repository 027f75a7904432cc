/** Pseudorandom integers below a limit; the same for the same seed. */
export function randomBelow(seed: number): (limit: number) => number {
  let state = (seed * 2_654_435_761) >>> 0 || 1;
  return (limit) => {
    // xorshift32: small and portable.
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) % limit;
  };
}

/** A copy of some bytes that is damaged in one to four places. */
export function mutate(original: Buffer, below: (limit: number) => number): Buffer {
  let bytes = Buffer.from(original);
  for (let left = 1 + below(4); left > 0; left -= 1) {
    const at = below(Math.max(1, bytes.length));
    switch (below(6)) {
      case 0:
        bytes[at] = below(256);
        break;
      case 1:
        bytes[at] = (bytes[at] ?? 0) ^ (1 << below(8));
        break;
      case 2:
        bytes = Buffer.concat([bytes.subarray(0, at), bytes.subarray(at + 1)]);
        break;
      case 3:
        bytes = Buffer.concat([bytes.subarray(0, at), Buffer.from([below(256)]), bytes.subarray(at)]);
        break;
      case 4:
        bytes = bytes.subarray(0, at);
        break;
      default:
        // Swap two bytes.
        [bytes[at], bytes[below(bytes.length)]] = [bytes[below(bytes.length)] ?? 0, bytes[at] ?? 0];
    }
    if (bytes.length === 0) bytes = Buffer.from([below(256)]);
  }
  return bytes;
}

/** Damaged copies of some bytes; the same for the same seed. */
export function* mutations(original: Buffer, count: number, seed: number): Generator<Buffer> {
  const below = randomBelow(seed);
  for (let round = 0; round < count; ) {
    const bytes = mutate(original, below);
    if (bytes.equals(original)) continue;
    round += 1;
    yield bytes;
  }
}
