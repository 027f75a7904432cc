import { isUtf8 } from 'node:buffer';

/** A message is not valid protobuf, or not acceptable. */
export class ProtobufError extends Error {}

/** Bytes of a varint (a 64-bit number). */
const MAX_VARINT_BYTES = 10;
const MAX_FIELD_NUMBER = 2 ** 29 - 1;

const WIRE_TYPE = { varint: 0, fixed64: 1, bytes: 2, fixed32: 5 } as const;

/** A string as HTTP header fields represent it: each byte of its UTF-8 is one character. */
export function decodeString(bytes: Buffer): string {
  if (!isUtf8(bytes)) throw new ProtobufError('a string is not UTF-8');
  return bytes.toString('latin1');
}

/**
 * The strings, bytes and messages in a message, by their field numbers. Numbers are skipped. Groups, which proto3 does not have, are
 * rejected. The values are parts of `message`.
 */
export function* readFields(message: Buffer): Generator<readonly [field: number, value: Buffer]> {
  let at = 0;
  const readVarint = (): number => {
    let value = 0;
    for (let count = 0; count < MAX_VARINT_BYTES; count += 1) {
      const byte = message[at];
      if (byte === undefined) throw new ProtobufError('truncated');
      at += 1;
      // Beyond 53 bits it is not exact, and too large for a tag and for a length.
      value += (byte & 0x7f) * 2 ** (7 * count);
      if (byte < 0x80) return value;
    }
    throw new ProtobufError('a number has more than 64 bits');
  };
  const skip = (length: number): void => {
    if (length > message.length - at) throw new ProtobufError('truncated');
    at += length;
  };
  while (at < message.length) {
    const tag = readVarint();
    const field = Math.floor(tag / 8);
    if (field < 1 || field > MAX_FIELD_NUMBER) throw new ProtobufError('an invalid field number');
    switch (tag % 8) {
      case WIRE_TYPE.varint:
        readVarint();
        break;
      case WIRE_TYPE.fixed64:
        skip(8);
        break;
      case WIRE_TYPE.fixed32:
        skip(4);
        break;
      case WIRE_TYPE.bytes: {
        const length = readVarint();
        const start = at;
        skip(length);
        yield [field, message.subarray(start, at)];
        break;
      }
      default:
        throw new ProtobufError('an invalid wire type');
    }
  }
}

function encodeVarint(value: number): Buffer {
  const bytes: number[] = [];
  let rest = value;
  for (; rest >= 0x80; rest = Math.floor(rest / 128)) bytes.push((rest % 128) + 0x80);
  bytes.push(rest);
  return Buffer.from(bytes);
}

/** `value`: not negative. */
export const encodeNumber = (field: number, value: number): Buffer =>
  Buffer.concat([encodeVarint(field * 8 + WIRE_TYPE.varint), encodeVarint(value)]);

/** A message with these fields, or bytes. */
export function encodeMessage(field: number, ...parts: readonly Buffer[]): Buffer {
  const length = parts.reduce((sum, part) => sum + part.length, 0);
  return Buffer.concat([encodeVarint(field * 8 + WIRE_TYPE.bytes), encodeVarint(length), ...parts]);
}

export const encodeString = (field: number, value: string): Buffer => encodeMessage(field, Buffer.from(value));
