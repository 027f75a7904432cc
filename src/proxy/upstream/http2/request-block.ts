import { memoizeByFieldName } from '../../../http/fold-field-name.ts';
import type { HeaderBlock } from '../../../http2/frame-writer.ts';
import { CONNECTION_NAMES } from '../../../http2/header-field.ts';
import { encodeFieldName, getMaxFieldBytes, writeField, writeString } from '../../../http2/hpack-encoder.ts';
import type { UpstreamRequest } from '../stream.ts';

const NOTHING = Buffer.alloc(0);

/** The name of a field in a header block; empty if RFC 9113 §8.2.2 does not allow the field. */
const getEncodedName = memoizeByFieldName((name: string): Buffer => {
  const lowerCase = name.toLowerCase();
  return CONNECTION_NAMES.has(lowerCase) ? NOTHING : encodeFieldName(lowerCase);
});

/** The header block of a request (RFC 9113 §8.3.1). It has no entries of the dynamic table, so that it does not depend on others. */
export class RequestBlock implements HeaderBlock {
  readonly maxSize: number;
  readonly #pseudoFields: readonly (readonly [name: string, value: string])[];
  /** Encoded names, and the values that follow them. */
  readonly #names: Buffer[] = [];
  readonly #values: string[] = [];

  /** `framing`: the line with the length of the body, or nothing. */
  constructor(
    scheme: 'http' | 'https',
    authority: string,
    { method, path, fields, acceptsTrailers }: UpstreamRequest,
    framing: string,
  ) {
    this.#pseudoFields = [
      [':method', method],
      [':scheme', scheme],
      [':authority', authority],
      [':path', path],
    ];
    this.#addLines(fields);
    this.#addLines(framing);
    // RFC 9113 §8.2.2. gRPC requires it.
    if (acceptsTrailers) this.#addLines('te: trailers\r\n');
    let size = 0;
    for (const [name, value] of this.#pseudoFields) size += getMaxFieldBytes(name, value);
    for (const [index, name] of this.#names.entries())
      size += name.length + getMaxFieldBytes('', this.#values[index] as string);
    this.maxSize = size;
  }

  #addLines(text: string): void {
    for (let at = 0; at < text.length; ) {
      const colon = text.indexOf(': ', at);
      const end = text.indexOf('\r\n', colon);
      const name = getEncodedName(text.slice(at, colon));
      if (name.length > 0) {
        this.#names.push(name);
        this.#values.push(text.slice(colon + 2, end));
      }
      at = end + 2;
    }
  }

  writeTo(out: Buffer, start: number): number {
    let at = start;
    for (const [name, value] of this.#pseudoFields) at = writeField(out, at, name, value);
    for (const [index, name] of this.#names.entries()) {
      at += name.copy(out, at);
      at = writeString(out, at, this.#values[index] as string);
    }
    return at;
  }
}
