import { type ClientHttp2Session, connect, type OutgoingHttpHeaders } from 'node:http2';
import { afterAll } from 'vitest';
import type { Headers } from './https-client.ts';
import type { IssuedCertificate } from './pki.ts';
import { all, encode, number, one, type WireField } from './protobuf.ts';
import type { TestGateway } from './test-gateway.ts';

export const EXT_AUTHZ_PATH = '/envoy.service.auth.v3.Authorization/Check';

/** What Envoy knows about a request. */
export interface CheckInput {
  readonly method?: string;
  readonly path?: string;
  readonly host?: string;
  readonly scheme?: string;
  readonly headers?: Headers;
  /** Each field as received, in `header_map`. Default: merged, in `headers`. */
  readonly raw?: boolean;
  readonly sourceAddress?: string;
  readonly sourceCertificate?: string;
  /** Further fields of the HTTP request. */
  readonly more?: readonly WireField[];
}

/** The fields that Envoy 1.40 fills. */
export function encodeCheckRequest({
  method = 'GET',
  path = '/files/a',
  host = 'api.example.test',
  scheme = 'https',
  headers = {},
  raw = false,
  sourceAddress = '192.0.2.7',
  sourceCertificate,
  more = [],
}: CheckInput): Buffer {
  const list = Object.entries({ ':method': method, ':path': path, ':authority': host, ':scheme': scheme, ...headers });
  const address = (ip: string, port: number): WireField => [
    1,
    [
      [
        1,
        [
          [2, ip],
          [3, port],
        ],
      ],
    ],
  ];
  const http: WireField[] = [
    [1, '7230957289'],
    [2, method],
    ...(raw
      ? []
      : list.map(
          ([name, value]): WireField => [
            3,
            [
              [1, name],
              [2, [value].flat().join(',')],
            ],
          ],
        )),
    [4, path],
    [5, host],
    [6, scheme],
    [9, 17],
    [10, 'HTTP/1.1'],
    ...(raw
      ? [
          [
            13,
            list.flatMap(([name, value]) =>
              [value].flat().map(
                (single): WireField => [
                  1,
                  [
                    [1, name],
                    [3, Buffer.from(single, 'latin1')],
                  ],
                ],
              ),
            ),
          ] satisfies WireField,
        ]
      : []),
    ...more,
  ];
  const source: WireField[] = [
    address(sourceAddress, 41_000),
    ...(sourceCertificate === undefined ? [] : [[5, sourceCertificate] satisfies WireField]),
  ];
  const time: WireField = [
    1,
    [
      [1, 1_795_000_000],
      [2, 500],
    ],
  ];
  return encode([
    [
      1,
      [
        [1, source],
        [2, [address('192.0.2.1', 443)]],
        [4, [time, [2, http]]],
        [11, []],
      ],
    ],
  ]);
}

export const frameMessage = (message: Buffer, flag = 0): Buffer => {
  const prefix = Buffer.alloc(5);
  prefix.writeUInt8(flag);
  prefix.writeUInt32BE(message.length, 1);
  return Buffer.concat([prefix, message]);
};

export interface GrpcReply {
  readonly status: number;
  readonly headers: Readonly<Record<string, unknown>>;
  readonly trailers: Readonly<Record<string, unknown>>;
  readonly body: Buffer;
}

/** A `CheckResponse`, as Envoy applies it. */
export interface CheckReply {
  /** `google.rpc.Code`. */
  readonly code: number;
  /** The status that the client gets; 200 if the request is allowed. */
  readonly status: number;
  /** What is set in the request; of a refusal, in the response. */
  readonly headers: Readonly<Record<string, string>>;
  readonly removed: readonly string[];
  readonly responseHeaders: Readonly<Record<string, string>>;
  readonly text: string;
  readonly json: Readonly<Record<string, unknown>>;
  readonly metadata: Readonly<Record<string, string>>;
}

function readHeaders(options: readonly Buffer[]): Record<string, string> {
  const headers: Record<string, string> = {};
  for (const option of options) {
    const header = one(option, 1);
    const name = one(header, 1).toString();
    // `append` is false, and `append_action` is OVERWRITE_IF_EXISTS_OR_ADD.
    if (all(option, 2).length !== 1 || number(option, 3) !== 2) throw new Error(`${name} would be appended`);
    headers[name] = one(header, 2).toString();
  }
  return headers;
}

export function decodeCheckResponse(message: Buffer): CheckReply {
  const code = number(one(message, 1), 1);
  const isAllowed = code === 0;
  if (all(message, 2).length !== (isAllowed ? 0 : 1) || all(message, 3).length !== (isAllowed ? 1 : 0))
    throw new Error('the response contradicts its status');
  const response = one(message, isAllowed ? 3 : 2);
  const text = isAllowed ? '' : one(response, 3).toString();
  return {
    code,
    status: isAllowed ? 200 : number(one(response, 1), 1),
    headers: readHeaders(all(response, 2)),
    removed: all(response, 5).map(String),
    responseHeaders: readHeaders(all(response, 6)),
    text,
    json: text === '' ? {} : JSON.parse(text),
    metadata: Object.fromEntries(
      all(one(message, 4), 1).map((entry) => [one(entry, 1).toString(), one(one(entry, 2), 3).toString()]),
    ),
  };
}

/** Calls gatehouse as Envoy does, on one connection until the end of the file. */
export function useExtAuthzClient(getGateway: () => TestGateway, as?: () => IssuedCertificate) {
  let session: ClientHttp2Session | undefined;
  afterAll(() => session?.destroy());
  const open = (): ClientHttp2Session => {
    if (session !== undefined && !session.closed && !session.destroyed) return session;
    const { port, ca } = getGateway();
    const identity = as?.();
    session = connect(`https://127.0.0.1:${port}`, {
      ca: ca.pem,
      servername: 'localhost',
      ...(identity && { cert: identity.pem, key: identity.keyPem }),
    });
    return session.on('error', () => {});
  };
  const call = (body: Buffer, fields: OutgoingHttpHeaders = {}): Promise<GrpcReply> =>
    new Promise((resolve, reject) => {
      const stream = open().request({
        ':method': 'POST',
        ':path': EXT_AUTHZ_PATH,
        ':authority': 'gatehouse',
        'content-type': 'application/grpc',
        te: 'trailers',
        ...fields,
      });
      const parts: Buffer[] = [];
      let headers: Record<string, unknown> = {};
      let trailers: Record<string, unknown> = {};
      stream
        .on('response', (given) => (headers = { ...given }))
        .on('trailers', (given) => (trailers = { ...given }))
        .on('data', (part: Buffer) => parts.push(part))
        .on('error', reject)
        .on('end', () =>
          resolve({ status: Number(headers[':status']), headers, trailers, body: Buffer.concat(parts) }),
        );
      stream.end(body);
    });
  const send = async (message: Buffer, fields?: OutgoingHttpHeaders): Promise<CheckReply> => {
    const { status, trailers, headers, body } = await call(frameMessage(message), fields);
    if (status !== 200 || trailers['grpc-status'] !== '0' || body.readUInt32BE(1) !== body.length - 5 || body[0] !== 0)
      throw new Error(`not a gRPC message: ${status} ${JSON.stringify({ headers, trailers })} ${body.toString()}`);
    return decodeCheckResponse(body.subarray(5));
  };
  return {
    call,
    /** Sends a message, which need not be a valid `CheckRequest`. */
    send,
    check: (input: CheckInput = {}) => send(encodeCheckRequest(input)),
  };
}
