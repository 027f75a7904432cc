import { randomBytes } from 'node:crypto';
import {
  type Client,
  type ClientDuplexStream,
  type ClientReadableStream,
  credentials,
  Metadata,
  makeGenericClientConstructor,
  Server,
  ServerCredentials,
  type ServerDuplexStream,
  type ServiceDefinition,
  type ServiceError,
  status,
} from '@grpc/grpc-js';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { startGateway, type TestGateway } from '../support/test-gateway.ts';
import { until } from '../support/until.ts';

/** Messages are bytes: what they mean does not matter to a proxy. */
const method = (path: string, requestStream: boolean, responseStream: boolean) => ({
  path,
  requestStream,
  responseStream,
  requestSerialize: (value: Buffer): Buffer => value,
  requestDeserialize: (value: Buffer): Buffer => value,
  responseSerialize: (value: Buffer): Buffer => value,
  responseDeserialize: (value: Buffer): Buffer => value,
});
const SERVICE = {
  unary: method('/files.Files/Unary', false, false),
  serverStream: method('/files.Files/ServerStream', false, true),
  clientStream: method('/files.Files/ClientStream', true, false),
  bidi: method('/files.Files/Bidi', true, true),
  secret: method('/admin.Admin/Secret', false, false),
  unrouted: method('/other.Service/Call', false, false),
} satisfies ServiceDefinition;

interface Calls extends Client {
  unary(
    message: Buffer,
    metadata: Metadata,
    options: { deadline?: number },
    callback: (error: ServiceError | null, reply?: Buffer) => void,
  ): { cancel(): void; on(event: 'metadata' | 'status', listener: (value: never) => void): void };
  secret: Calls['unary'];
  unrouted: Calls['unary'];
  serverStream(message: Buffer, metadata: Metadata): ClientReadableStream<Buffer>;
  bidi(metadata: Metadata): ClientDuplexStream<Buffer, Buffer>;
  clientStream(
    metadata: Metadata,
    callback: (error: ServiceError | null, reply?: Buffer) => void,
  ): ClientDuplexStream<Buffer, Buffer>;
}

let server: Server;
let gateway: TestGateway;
let client: Calls;
let token = '';
const seen: string[] = [];
let cancelled = 0;

beforeAll(async () => {
  server = new Server({ 'grpc.max_receive_message_length': 64_000_000 });
  server.addService(SERVICE, {
    unary(
      call: { request: Buffer; metadata: Metadata; on(event: string, listener: () => void): void },
      callback: (e: object | null, v?: Buffer, t?: Metadata) => void,
    ) {
      seen.push(String(call.metadata.get('x-forwarded-client-id')[0] ?? ''));
      const trailer = new Metadata();
      trailer.set('x-trailer', 'after');
      if (call.request.toString() === 'hang') {
        call.on('cancelled', () => (cancelled += 1));
        return;
      }
      if (call.request.toString() === 'fail')
        return callback({ code: status.FAILED_PRECONDITION, details: 'näh: 100 %', metadata: trailer });
      callback(null, call.request, trailer);
    },
    secret(_: unknown, callback: (e: object | null, v?: Buffer) => void) {
      callback(null, Buffer.from('secret'));
    },
    serverStream(call: {
      request: Buffer;
      write(value: Buffer): void;
      end(): void;
      on(e: string, f: () => void): void;
    }) {
      call.on('cancelled', () => (cancelled += 1));
      const text = call.request.toString();
      if (text === 'endless') {
        call.write(Buffer.from('first'));
        return;
      }
      for (let n = 0; n < Number(text); n += 1) call.write(Buffer.from(String(n)));
      call.end();
    },
    clientStream(call: AsyncIterable<Buffer>, callback: (e: object | null, v?: Buffer) => void) {
      void (async () => {
        let size = 0;
        for await (const part of call) size += part.length;
        callback(null, Buffer.from(String(size)));
      })();
    },
    bidi(call: ServerDuplexStream<Buffer, Buffer>) {
      call.on('data', (part: Buffer) => call.write(part)).on('end', () => call.end());
    },
  });
  const port = await new Promise<number>((resolve, reject) =>
    server.bindAsync('127.0.0.1:0', ServerCredentials.createInsecure(), (error, bound) =>
      error ? reject(error) : resolve(bound),
    ),
  );
  gateway = await startGateway((settings) => ({
    ...settings,
    upstreams: { default: { url: `http://127.0.0.1:${port}`, protocol: 'http2' } },
    routes: [
      { path: '/files.Files/*', requires: 'files:read' },
      { path: '/admin.Admin/*', requires: 'admin:manage' },
    ],
  }));
  const granted = await gateway.grant({ scope: 'files:read' });
  token = granted.access_token;
  const Constructor = makeGenericClientConstructor(SERVICE, 'Files') as unknown as new (
    address: string,
    secure: ReturnType<typeof credentials.createSsl>,
    options: object,
  ) => Calls;
  client = new Constructor(`localhost:${gateway.port}`, credentials.createSsl(Buffer.from(gateway.ca.pem)), {
    'grpc.max_receive_message_length': 64_000_000,
    'grpc.max_send_message_length': 64_000_000,
    'grpc.enable_retries': 0,
  });
});
afterAll(async () => {
  client?.close();
  await gateway?.close();
  server?.forceShutdown();
});

const authorized = (value = token): Metadata => {
  const metadata = new Metadata();
  metadata.set('authorization', `Bearer ${value}`);
  return metadata;
};

const call = (
  message: Buffer | string,
  {
    metadata = authorized(),
    deadline,
    to = 'unary',
  }: { metadata?: Metadata; deadline?: number; to?: 'unary' | 'secret' | 'unrouted' } = {},
): Promise<Buffer> =>
  new Promise((resolve, reject) => {
    client[to](Buffer.from(message), metadata, { ...(deadline && { deadline }) }, (error, reply) =>
      error ? reject(error) : resolve(reply ?? Buffer.alloc(0)),
    );
  });

describe('calls of @grpc/grpc-js', () => {
  test('a unary call returns its message', async () => {
    expect((await call('hello')).toString()).toBe('hello');
    expect(seen.at(-1)).toBe('report-runner');
  });

  test('the status, the message and the trailers of an error reach the client', async () => {
    await expect(call('fail')).rejects.toMatchObject({ code: status.FAILED_PRECONDITION, details: 'näh: 100 %' });
    const error = (await call('fail').catch((reason: unknown) => reason)) as ServiceError;
    expect(error.metadata.get('x-trailer')).toEqual(['after']);
  });

  test('messages of 10 MB pass in both directions', async () => {
    const message = randomBytes(10_000_000);
    expect((await call(message)).equals(message)).toBe(true);
  });

  test('a thousand calls at a hundred at a time', async () => {
    let next = 0;
    const worker = async (): Promise<void> => {
      while (next < 1_000) {
        const text = String(next++);
        expect((await call(text)).toString()).toBe(text);
      }
    };
    await Promise.all(Array.from({ length: 100 }, worker));
  });

  test('a stream of the server', async () => {
    const received: string[] = [];
    for await (const part of client.serverStream(Buffer.from('500'), authorized())) received.push(String(part));
    expect(received).toEqual(Array.from({ length: 500 }, (_, n) => String(n)));
  });

  test('a stream of the client', async () => {
    const reply = await new Promise<Buffer>((resolve, reject) => {
      const stream = client.clientStream(authorized(), (error, value) =>
        error ? reject(error) : resolve(value as Buffer),
      );
      for (let n = 0; n < 100; n += 1) stream.write(Buffer.alloc(1_000));
      stream.end();
    });
    expect(reply.toString()).toBe('100000');
  });

  test('messages of a bidirectional stream pass one by one', async () => {
    const stream = client.bidi(authorized());
    const received: string[] = [];
    stream.on('data', (part: Buffer) => received.push(part.toString()));
    for (const text of ['a', 'b', 'c']) {
      stream.write(Buffer.from(text));
      await until(`${text} returns`, () => received.at(-1) === text);
    }
    stream.end();
    await new Promise((resolve) => stream.on('end', resolve));
    expect(received).toEqual(['a', 'b', 'c']);
  });

  test('cancellation reaches the server', async () => {
    const before = cancelled;
    const stream = client.serverStream(Buffer.from('endless'), authorized());
    stream.on('error', () => {});
    await new Promise((resolve) => stream.once('data', resolve));
    stream.cancel();
    await until('the server knows', () => cancelled === before + 1);
  });

  test('a deadline ends the call on both sides', async () => {
    const before = cancelled;
    await expect(call('hang', { deadline: Date.now() + 300 })).rejects.toMatchObject({
      code: status.DEADLINE_EXCEEDED,
    });
    await until('the server knows', () => cancelled === before + 1);
  });
});

describe('calls of @grpc/grpc-js that gatehouse refuses or ends', () => {
  test('have the status that gRPC has for the reason, and the challenge as metadata', async () => {
    const error = (await call('hello', { metadata: new Metadata() }).catch(
      (reason: unknown) => reason,
    )) as ServiceError;
    expect([error.code, error.details]).toEqual([status.UNAUTHENTICATED, 'A bearer token is required.']);
    expect(String(error.metadata.get('www-authenticate')[0])).toMatch(/^Bearer realm="gatehouse"/);
    await expect(call('hello', { metadata: authorized('x.y.z') })).rejects.toMatchObject({
      code: status.UNAUTHENTICATED,
    });
    await expect(call('hello', { to: 'secret' })).rejects.toMatchObject({
      code: status.PERMISSION_DENIED,
      details: 'The access token lacks the required scope: admin:manage.',
    });
    await expect(call('hello', { to: 'unrouted' })).rejects.toMatchObject({ code: status.UNIMPLEMENTED });
  });

  test('end with their grant, and the server gets a cancellation', async () => {
    const { access_token: ownToken } = await gateway.grant({ scope: 'files:read' });
    const before = cancelled;
    const stream = client.serverStream(Buffer.from('endless'), authorized(ownToken));
    const failed = new Promise<ServiceError>((resolve) => stream.on('error', resolve));
    await new Promise((resolve) => stream.once('data', resolve));
    await gateway.request({ path: '/authsvc/Revoke/Token', headers: { authorization: `Bearer ${ownToken}` } });
    expect(await failed).toMatchObject({
      code: status.UNAUTHENTICATED,
      details: 'The access token has been revoked.',
    });
    await until('the server knows', () => cancelled === before + 1);
    // Other calls of the connection go on.
    expect((await call('hello')).toString()).toBe('hello');
  });

  test('end with their grant while the client may still send', async () => {
    const { access_token: ownToken } = await gateway.grant({ scope: 'files:read' });
    const stream = client.bidi(authorized(ownToken));
    const failed = new Promise<ServiceError>((resolve) => stream.on('error', resolve));
    stream.write(Buffer.from('a'));
    await new Promise((resolve) => stream.once('data', resolve));
    await gateway.request({ path: '/authsvc/Revoke/Token', headers: { authorization: `Bearer ${ownToken}` } });
    expect(await failed).toMatchObject({ code: status.UNAUTHENTICATED });
    expect((await call('hello')).toString()).toBe('hello');
  });

  test('are logged with their method and result', async () => {
    const find = (method: string, result: number) =>
      gateway.log.find(
        ({ event, grpc_method: name, grpc_status: code }) => event === 'request' && name === method && code === result,
      );
    expect(
      await until('the refused call is logged', () => find('admin.Admin/Secret', status.PERMISSION_DENIED)),
    ).toMatchObject({
      status: 403,
      decision: 'refused',
    });
    expect(
      await until('the ended call is logged', () => find('files.Files/ServerStream', status.UNAUTHENTICATED)),
    ).toMatchObject({
      status: 200,
      reason: 'ended: token_revoked',
    });
  });
});
