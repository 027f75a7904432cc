/** A protobuf codec for tests, which shares no code with the product. */
export type WireValue = string | Buffer | number | readonly WireField[];
export type WireField = readonly [field: number, value: WireValue];

export function varint(value: number): Buffer {
  const bytes: number[] = [];
  let rest = BigInt(value);
  do {
    const low = Number(rest & 0x7fn);
    rest >>= 7n;
    bytes.push(rest > 0n ? low | 0x80 : low);
  } while (rest > 0n);
  return Buffer.from(bytes);
}

/** Numbers are varints; lists are messages. */
export const encode = (fields: readonly WireField[]): Buffer =>
  Buffer.concat(
    fields.flatMap(([field, value]) => {
      if (typeof value === 'number') return [varint(field << 3), varint(value)];
      const bytes = typeof value === 'string' ? Buffer.from(value) : Buffer.isBuffer(value) ? value : encode(value);
      return [varint((field << 3) | 2), varint(bytes.length), bytes];
    }),
  );

/** Every field of a message; varints as numbers. */
export function decode(message: Buffer): [field: number, value: Buffer | number][] {
  const fields: [number, Buffer | number][] = [];
  let at = 0;
  const read = (): number => {
    let value = 0n;
    for (let shift = 0n; ; shift += 7n) {
      const byte = message.readUInt8(at);
      at += 1;
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) return Number(value);
    }
  };
  while (at < message.length) {
    const tag = read();
    if ((tag & 7) === 0) fields.push([tag >> 3, read()]);
    else if ((tag & 7) === 2) {
      const length = read();
      if (at + length > message.length) throw new Error('truncated');
      fields.push([tag >> 3, message.subarray(at, (at += length))]);
    } else throw new Error(`wire type ${tag & 7}`);
  }
  return fields;
}

const asBytes = (value: Buffer | number | undefined): Buffer => (Buffer.isBuffer(value) ? value : Buffer.alloc(0));
export const all = (message: Buffer, field: number): Buffer[] =>
  decode(message).flatMap(([number, value]) => (number === field ? [asBytes(value)] : []));
export const one = (message: Buffer, field: number): Buffer => all(message, field)[0] ?? Buffer.alloc(0);
export const number = (message: Buffer, field: number): number =>
  Number(decode(message).find(([found]) => found === field)?.[1] ?? 0);
