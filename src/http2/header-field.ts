import { memoizeByFieldName } from '../http/fold-field-name.ts';

/** `invalid`: a request with this field is malformed (RFC 9113 §8.2, §8.3). */
export type FieldKind =
  | 'plain'
  | ':method'
  | ':scheme'
  | ':path'
  | ':authority'
  | 'host'
  | 'content-length'
  | 'cookie'
  | 'te'
  | 'invalid';

/** RFC 9110 §5.6.2, in lower case (RFC 9113 §8.2.1). */
const NAME = /^[!#$%&'*+.^_`|~0-9a-z-]+$/;
/** RFC 9110 §5.5: no control character but the tab, and no surrounding white space (RFC 9113 §8.2.1). */
const VALUE = /^(?:[\x21-\x7e\x80-\xff](?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)?$/;

const PARSED_NAMES: ReadonlySet<string> = new Set<FieldKind>([
  ':method',
  ':scheme',
  ':path',
  ':authority',
  'host',
  'content-length',
  'cookie',
  'te',
]);
/** RFC 9113 §8.2.2. */
export const CONNECTION_NAMES: ReadonlySet<string> = new Set([
  'connection',
  'keep-alive',
  'proxy-connection',
  'transfer-encoding',
  'upgrade',
]);

const getKind = memoizeByFieldName((name: string): FieldKind => {
  if (PARSED_NAMES.has(name)) return name as FieldKind;
  return NAME.test(name) && !CONNECTION_NAMES.has(name) ? 'plain' : 'invalid';
});

/** RFC 3986 §3.1. */
const SCHEME = /^[A-Za-z][A-Za-z0-9+.-]*$/;

/** RFC 9113 §8.2.2, §8.3.1. */
function isAllowed(kind: FieldKind, value: string): boolean {
  if (kind === 'te') return value === 'trailers';
  return kind !== ':scheme' || SCHEME.test(value);
}

/** RFC 9113 §6.5.2 and RFC 7541 §4.1: added to the length of each field. */
export const FIELD_OVERHEAD = 32;

/** A field of a header section. It is checked once, although an entry of the dynamic table is used by many requests. */
export class HeaderField {
  readonly name: string;
  readonly value: string;
  readonly size: number;
  readonly kind: FieldKind;
  /** As a line of an HTTP/1.1 header section. */
  readonly line: string;

  constructor(name: string, value: string) {
    const kind = getKind(name);
    this.name = name;
    this.value = value;
    this.size = name.length + value.length + FIELD_OVERHEAD;
    this.kind = VALUE.test(value) && isAllowed(kind, value) ? kind : 'invalid';
    this.line = `${name}: ${value}\r\n`;
  }
}
