import {
  decodeString,
  encodeMessage,
  encodeNumber,
  encodeString,
  ProtobufError,
  readFields,
} from '../../grpc/protobuf.ts';
import { GRPC_STATUS } from '../../http/grpc.ts';
import type { Reply } from '../../http/reply.ts';

/*
 * The messages of `envoy.service.auth.v3.Authorization/Check`. The numbers are those of fields in Envoy's API. Fields that are not used here
 * are skipped. Those that must occur once are rejected if they are repeated, although protobuf allows it.
 */

/** The request that a gateway asks about. */
export interface CheckAttributes {
  readonly method: string;
  readonly path: string;
  /** With `host` first, and without pseudo-header fields. Repeated fields are not merged if the gateway sends them raw. */
  readonly rawHeaders: readonly string[];
  /** The address of the gateway's client, unless it is not an IP address. */
  readonly sourceAddress: string | undefined;
  /** The certificate of the gateway's client: PEM, percent-encoded. */
  readonly sourceCertificate: string | undefined;
}

type Fields = ReadonlyMap<number, readonly Buffer[]>;

const NOTHING = Buffer.alloc(0);

/** Throws a `ProtobufError` if it is malformed or ambiguous. */
export function readCheckRequest(message: Buffer): CheckAttributes {
  const attributes = readMessage(getSingle(readMessage(message), 1));
  const source = readMessage(getSingle(attributes, 1));
  const http = readMessage(getSingle(readMessage(getSingle(attributes, 4)), 2));
  const pseudoFields = {
    ':method': getString(http, 2),
    ':path': getString(http, 4),
    ':authority': getString(http, 5),
    ':scheme': getString(http, 6),
  };
  // Both are part of the path, or nothing.
  if (getString(http, 7) !== '' || getString(http, 8) !== '') throw new ProtobufError('a separate query or fragment');
  const socketAddress = readMessage(getSingle(readMessage(getSingle(source, 1)), 1));
  return {
    method: pseudoFields[':method'],
    path: pseudoFields[':path'],
    rawHeaders: readRawHeaders(http, pseudoFields),
    sourceAddress: getString(socketAddress, 2) || undefined,
    sourceCertificate: getString(source, 5) || undefined,
  };
}

function readMessage(message: Buffer): Fields {
  const fields = new Map<number, Buffer[]>();
  for (const [field, value] of readFields(message)) {
    const values = fields.get(field);
    if (values === undefined) fields.set(field, [value]);
    else values.push(value);
  }
  return fields;
}

function getSingle(fields: Fields, field: number): Buffer {
  const [value = NOTHING, ...others] = fields.get(field) ?? [];
  if (others.length > 0) throw new ProtobufError('a field occurs more than once');
  return value;
}

const getString = (fields: Fields, field: number): string => decodeString(getSingle(fields, field));

function readRawHeaders(http: Fields, pseudoFields: Readonly<Record<string, string>>): string[] {
  const host = pseudoFields[':authority'] ?? '';
  const rawHeaders = ['host', host];
  for (const [name, value] of listHeaders(http)) {
    if (name.startsWith(':')) {
      if (pseudoFields[name] !== value) throw new ProtobufError('a contradictory pseudo-header field');
      continue;
    }
    if (!HEADER_NAME.test(name) || !HEADER_VALUE.test(value)) throw new ProtobufError('an invalid header field');
    // A differing value is kept: more than one Host is refused.
    if (name !== 'host' || value !== host) rawHeaders.push(name, value);
  }
  return rawHeaders;
}

/** In lower case, as Envoy writes it (RFC 9110 §5.6.2). */
const HEADER_NAME = /^[!#$%&'*+.^_`|~0-9a-z-]+$/;
/** RFC 9110 §5.5. */
const HEADER_VALUE = /^[\t\x20-\x7e\x80-\xff]*$/;

/** From `headers`, in which each name occurs once, or from `header_map`, with the fields as received (`encode_raw_headers`). */
function listHeaders(http: Fields): (readonly [name: string, value: string])[] {
  const merged = (http.get(3) ?? []).map((entry) => {
    const fields = readMessage(entry);
    return [getString(fields, 1), getString(fields, 2)] as const;
  });
  const raw = (readMessage(getSingle(http, 13)).get(1) ?? []).map((entry) => {
    const fields = readMessage(entry);
    const value = getString(fields, 2);
    const bytes = getSingle(fields, 3);
    if (value !== '' && bytes.length > 0) throw new ProtobufError('a header field has two values');
    return [getString(fields, 1), value || bytes.toString('latin1')] as const;
  });
  if (merged.length > 0 && raw.length > 0) throw new ProtobufError('two lists of header fields');
  if (new Set(merged.map(([name]) => name)).size < merged.length)
    throw new ProtobufError('a header field occurs twice');
  return merged.length > 0 ? merged : raw;
}

/** Names and values in dynamic metadata. */
type Metadata = Readonly<Record<string, string | undefined>>;

interface AllowedResponse {
  /** Names and values that replace those of the request. */
  readonly headers: readonly string[];
  readonly headersToRemove: readonly string[];
  /** They replace those in the response to the client. */
  readonly responseHeaders: Readonly<Record<string, string>>;
}

export const encodeAllowed = (
  { headers, headersToRemove, responseHeaders }: AllowedResponse,
  metadata: Metadata,
): Buffer =>
  Buffer.concat([
    encodeStatus(GRPC_STATUS.ok),
    encodeMessage(
      3,
      ...encodeHeaders(2, headers),
      ...headersToRemove.map((name) => encodeString(5, name)),
      ...encodeHeaders(6, Object.entries(responseHeaders).flat()),
    ),
    encodeMetadata(metadata),
  ]);

export const encodeDenied = ({ status, headers, body = '' }: Reply, metadata: Metadata): Buffer =>
  Buffer.concat([
    encodeStatus(status === 401 ? GRPC_STATUS.unauthenticated : GRPC_STATUS.permissionDenied),
    encodeMessage(
      2,
      encodeMessage(1, encodeNumber(1, status)),
      ...encodeHeaders(
        2,
        Object.entries(headers).flatMap(([name, value]) => [value].flat().flatMap((single) => [name, single])),
      ),
      encodeMessage(3, Buffer.from(body)),
    ),
    encodeMetadata(metadata),
  ]);

const encodeStatus = (code: number): Buffer => encodeMessage(1, encodeNumber(1, code));

/** Releases of Envoy read one of these; the default of the second is to append. */
const APPEND_FALSE = encodeMessage(2);
const OVERWRITE_IF_EXISTS_OR_ADD = encodeNumber(3, 2);

function encodeHeaders(field: number, list: readonly string[]): Buffer[] {
  const encoded: Buffer[] = [];
  for (let at = 0; at + 1 < list.length; at += 2) {
    const header = encodeMessage(
      1,
      encodeString(1, (list[at] as string).toLowerCase()),
      encodeString(2, list[at + 1] as string),
    );
    encoded.push(encodeMessage(field, header, APPEND_FALSE, OVERWRITE_IF_EXISTS_OR_ADD));
  }
  return encoded;
}

/** A `google.protobuf.Struct`, whose values are strings. */
const encodeMetadata = (metadata: Metadata): Buffer =>
  encodeMessage(
    4,
    ...Object.entries(metadata).flatMap(([name, value]) =>
      value === undefined ? [] : encodeMessage(1, encodeString(1, name), encodeMessage(2, encodeString(3, value))),
    ),
  );
