import { expect, test } from 'vitest';
import {
  decodeString,
  encodeMessage,
  encodeNumber,
  encodeString,
  ProtobufError,
  readFields,
} from '../../src/grpc/protobuf.ts';
import { readCheckRequest } from '../../src/proxy/policy/check-messages.ts';
import { encodeCheckRequest } from '../support/ext-authz-client.ts';
import { decode, encode, varint } from '../support/protobuf.ts';

const read = (...bytes: readonly number[]) => [...readFields(Buffer.from(bytes))];

test('strings, bytes and messages are read, and numbers of every kind are skipped', () => {
  const message = Buffer.concat([
    encode([
      [1, 300],
      [2, 'text'],
    ]),
    Buffer.from([0x19, 1, 2, 3, 4, 5, 6, 7, 8]),
    Buffer.from([0x25, 1, 2, 3, 4]),
    encode([[536_870_911 >> 3, '']]),
    Buffer.concat([varint(536_870_911 * 8 + 2), varint(1), Buffer.from('z')]),
  ]);
  expect([...readFields(message)].map(([field, value]) => [field, value.toString()])).toEqual([
    [2, 'text'],
    [536_870_911 >> 3, ''],
    [536_870_911, 'z'],
  ]);
});

test.each([
  ['a tag without a value', [0x08]],
  ['a length without bytes', [0x0a, 1]],
  ['a length beyond the end', [0x0a, 2, 1]],
  ['a length of 2^63', [0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]],
  ['a truncated 64-bit number', [0x09, 1, 2, 3]],
  ['a truncated 32-bit number', [0x0d, 1]],
  ['the field number 0', [0x02, 0]],
  ['a field number of 30 bits', [0x82, 0x80, 0x80, 0x80, 0x20, 0]],
  ['the start of a group', [0x0b]],
  ['the end of a group', [0x0c]],
  ['wire type 6', [0x0e]],
  ['wire type 7', [0x0f]],
  ['a number of eleven bytes', [0x08, ...Array<number>(10).fill(0x80), 0]],
])('%s is rejected', (_, bytes) => {
  expect(() => read(...bytes)).toThrow(ProtobufError);
});

test('numbers of ten bytes are valid, also those that are longer than needed', () => {
  expect(read(0x08, ...Array<number>(9).fill(0xff), 1)).toEqual([]);
  expect(read(0x0a, 0x81, 0x80, 0x00, 0x61)).toEqual([[1, Buffer.from('a')]]);
});

test('strings must be UTF-8, and each byte becomes a character', () => {
  expect(decodeString(Buffer.from('é'))).toBe('\xc3\xa9');
  for (const bytes of [[0xff], [0xc3], [0xc0, 0xae], [0xed, 0xa0, 0x80]])
    expect(() => decodeString(Buffer.from(bytes))).toThrow(ProtobufError);
});

test('what is written is read the same by another codec', () => {
  const lengths = [0, 1, 127, 128, 16_383, 16_384];
  for (const length of lengths) {
    const text = 'x'.repeat(length);
    const message = Buffer.concat([encodeNumber(1, length), encodeMessage(16, encodeString(2_047, text))]);
    expect(message).toEqual(
      encode([
        [1, length],
        [16, [[2_047, text]]],
      ]),
    );
    expect(decode(message)).toHaveLength(2);
  }
});

test('every truncation of a check request is rejected or reads no other request', () => {
  const input = { headers: { authorization: 'Bearer abc', 'x-a': 'b' }, sourceCertificate: 'pem' };
  for (const raw of [false, true]) {
    const message = encodeCheckRequest({ ...input, raw });
    expect(readCheckRequest(message)).toMatchObject({ method: 'GET', path: '/files/a', sourceCertificate: 'pem' });
    // An empty message is valid protobuf, and names no request.
    expect(readCheckRequest(message.subarray(0, 0))).toMatchObject({ method: '', path: '', rawHeaders: ['host', ''] });
    for (let length = 1; length < message.length; length += 1)
      expect(() => readCheckRequest(message.subarray(0, length)), String(length)).toThrow(ProtobufError);
  }
});
