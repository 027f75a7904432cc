import type { BerReader } from 'ldapts';

interface Reader extends Pick<BerReader, 'length' | 'offset'> {
  readLength: (this: Reader, offset?: number) => number | null;
  readSequence: (this: Reader, tag?: number) => number | null;
  readString: (this: Reader, tag?: number, asBuffer?: boolean) => unknown;
  readTag: (this: Reader, tag: number) => number | null;
}

const limited = new WeakSet<object>();

/**
 * Rejects messages whose values exceed the message. ldapts 9.2.0 treats such a value as missing and reads it again, so that a
 * damaged response of a few bytes would exhaust the memory; and it takes lengths of 2³¹ and more for negative.
 */
export function rejectTruncatedValues(readerClass: typeof BerReader): void {
  const reader = readerClass.prototype as unknown as Reader;
  if (limited.has(reader)) return;
  limited.add(reader);
  const { readLength, readSequence, readString, readTag } = reader;
  const requireValue = <T>(value: T): T => {
    if (value === null) throw new Error('a value exceeds its message');
    return value;
  };
  reader.readLength = function (offset) {
    const next = readLength.call(this, offset);
    if (this.length < 0) throw new Error('a length out of range');
    return next;
  };
  reader.readSequence = function (tag) {
    // At the beginning, the message may not have arrived completely.
    const isFirst = this.offset === 0;
    const found = readSequence.call(this, tag);
    return isFirst ? found : requireValue(found);
  };
  reader.readString = function (tag, asBuffer) {
    return requireValue(readString.call(this, tag, asBuffer));
  };
  reader.readTag = function (tag) {
    return requireValue(readTag.call(this, tag));
  };
}
