import { expect, test } from 'vitest';
import { ProtobufError } from '../../src/grpc/protobuf.ts';
import { readCheckRequest } from '../../src/proxy/policy/check-messages.ts';
import { randomBelow } from '../fuzz/mutations.ts';
import { encodeCheckRequest } from '../support/ext-authz-client.ts';

const MUTATIONS = 100_000;

/** Returns whether it was read. */
function tryRead(message: Buffer): boolean {
  try {
    const { method, path, rawHeaders } = readCheckRequest(message);
    expect([typeof method, typeof path, rawHeaders.length % 2]).toEqual(['string', 'string', 0]);
    return true;
  } catch (error) {
    if (!(error instanceof ProtobufError)) throw error;
    return false;
  }
}

test(`${MUTATIONS} damaged check requests are read or rejected, and nothing else fails`, () => {
  const random = randomBelow(11);
  const valid = [false, true].map((raw) =>
    encodeCheckRequest({
      headers: { authorization: 'Bearer abc', cookie: ['a=1', 'b=2'] },
      raw,
      sourceCertificate: 'x',
    }),
  );
  let read = 0;
  for (let count = 0; count < MUTATIONS; count += 1) {
    const message = Buffer.from(valid[count % 2] as Buffer);
    for (let damage = 0; damage <= count % 4; damage += 1) message[random(message.length)] = random(256);
    const cut = random(4) === 0 ? random(message.length) : message.length;
    if (tryRead(message.subarray(0, cut))) read += 1;
  }
  expect(read).toBeGreaterThan(0);
  expect(read).toBeLessThan(MUTATIONS);
});

test('random bytes are read or rejected, and nothing else fails', () => {
  const random = randomBelow(12);
  for (let count = 0; count < MUTATIONS / 10; count += 1)
    tryRead(Buffer.from(Array.from({ length: random(200) }, () => random(256))));
});
