import { expect, test } from 'vitest';
import { createClientHelloReader } from '../../src/listener/client-hello.ts';

const uint = (value: number, size: number): Buffer => {
  const bytes = Buffer.alloc(size);
  bytes.writeUIntBE(value, 0, size);
  return bytes;
};
const vector = (size: number, ...parts: readonly Buffer[]): Buffer => {
  const content = Buffer.concat(parts);
  return Buffer.concat([uint(content.length, size), content]);
};

/** RFC 8446 §4.1.2, RFC 6066 §3. */
function createHello(name: string, padding = 0): Buffer {
  const serverName = Buffer.concat([uint(0, 2), vector(2, vector(2, uint(0, 1), vector(2, Buffer.from(name))))]);
  const filler = Buffer.concat([uint(21, 2), vector(2, Buffer.alloc(padding))]);
  const body = Buffer.concat([
    uint(0x0303, 2),
    Buffer.alloc(32),
    vector(1),
    vector(2, uint(0x1301, 2)),
    vector(1, uint(0, 1)),
    vector(2, filler, serverName),
  ]);
  return Buffer.concat([uint(1, 1), vector(3, body)]);
}

/** Splits a message into `count` records of about the same length. */
function splitIntoRecords(message: Buffer, count: number): Buffer {
  const size = message.length / count;
  return Buffer.concat(
    Array.from({ length: count }, (_, index) => {
      const part = message.subarray(Math.floor(index * size), Math.floor((index + 1) * size));
      return Buffer.concat([Buffer.of(22, 3, 1), vector(2, part)]);
    }),
  );
}

test.each([1, 2, 7, 64])(
  'the server name of a ClientHello in %d records is known as soon as its last byte arrives',
  (count) => {
    const bytes = splitIntoRecords(createHello('api.example.test', 400), count);
    for (let end = 0; end < bytes.length; end += 1)
      expect(createClientHelloReader()(bytes.subarray(0, end))).toEqual({ kind: 'incomplete' });
    expect(createClientHelloReader()(bytes)).toEqual({ kind: 'parsed', serverName: 'api.example.test' });
  },
);

test('a long ClientHello in one-byte records that arrive one by one is parsed without delay', () => {
  // Parsing all records again for each byte would take minutes of CPU.
  const message = createHello('api.example.test', 2_500);
  const bytes = splitIntoRecords(message, message.length);
  const read = createClientHelloReader();
  for (const byte of bytes.subarray(0, -1)) expect(read(Buffer.of(byte)).kind).toBe('incomplete');
  expect(read(bytes.subarray(-1))).toEqual({ kind: 'parsed', serverName: 'api.example.test' });
});

test('a ClientHello longer than 16 KiB is malformed, however it is split', () => {
  const read = createClientHelloReader();
  const bytes = splitIntoRecords(createHello('api.example.test', 16_000), 100);
  const kinds = new Set<string>();
  for (let at = 0; at < bytes.length; at += 512) kinds.add(read(bytes.subarray(at, at + 512)).kind);
  expect([...kinds]).toEqual(['incomplete', 'malformed']);
});

test('a record that is not a ClientHello, or is too long, is malformed', () => {
  const bytes = splitIntoRecords(createHello('api.example.test'), 1);
  const changeByte = (at: number, to: number): Buffer => {
    const copy = Buffer.from(bytes);
    copy[at] = to;
    return copy;
  };
  // Another record type, version or message, and an excessive length.
  for (const input of [changeByte(0, 23), changeByte(1, 2), changeByte(5, 2), changeByte(6, 1)])
    expect(createClientHelloReader()(input)).toEqual({ kind: 'malformed' });
  expect(createClientHelloReader()(Buffer.alloc(16_385, 22))).toEqual({ kind: 'malformed' });
});
