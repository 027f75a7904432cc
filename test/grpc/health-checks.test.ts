import { once } from 'node:events';
import { createServer, type ServerHttp2Stream } from 'node:http2';
import type { AddressInfo } from 'node:net';
import { Server, ServerCredentials, type ServiceDefinition, status } from '@grpc/grpc-js';
import { expect, onTestFinished, test } from 'vitest';
import { isHealthyOverHttp2 } from '../../src/proxy/upstream/http2/health-check.ts';

const check = (url: string, settings: { path?: string; grpcService?: string }, timeout = 5): Promise<boolean> =>
  isHealthyOverHttp2(
    url,
    { interval: 10, timeout, ...settings },
    { serverName: undefined, tlsFiles: {} },
    new AbortController().signal,
  );

const asIs = (value: Buffer): Buffer => value;
const HEALTH = {
  check: {
    path: '/grpc.health.v1.Health/Check',
    requestStream: false,
    responseStream: false,
    requestSerialize: asIs,
    requestDeserialize: asIs,
    responseSerialize: asIs,
    responseDeserialize: asIs,
  },
} satisfies ServiceDefinition;

/** Responds to a service name with the message, the error code, or nothing. */
async function startHealthServer(respond: (service: string) => Buffer | number | undefined): Promise<string> {
  const server = new Server();
  server.addService(HEALTH, {
    check(call: { request: Buffer }, callback: (error: object | null, message?: Buffer) => void) {
      const reply = respond(call.request.subarray(2).toString());
      if (typeof reply === 'number') callback({ code: reply, details: 'no' });
      else if (reply !== undefined) callback(null, reply);
    },
  });
  const port = await new Promise<number>((resolve, reject) =>
    server.bindAsync('127.0.0.1:0', ServerCredentials.createInsecure(), (error, bound) =>
      error ? reject(error) : resolve(bound),
    ),
  );
  onTestFinished(() => server.forceShutdown());
  return `http://127.0.0.1:${port}`;
}

const SERVING = Buffer.from([0x08, 0x01]);
const NOT_SERVING = Buffer.from([0x08, 0x02]);

test('a service is healthy if the gRPC health checking protocol says that it is serving', async () => {
  const replies: Record<string, Buffer | number | undefined> = {
    '': SERVING,
    'files.Files': SERVING,
    stopping: NOT_SERVING,
    empty: Buffer.alloc(0),
    unknown: status.NOT_FOUND,
    silent: undefined,
  };
  const url = await startHealthServer((service) => replies[service]);
  expect(await check(url, { grpcService: '' })).toBe(true);
  expect(await check(url, { grpcService: 'files.Files' })).toBe(true);
  expect(await check(url, { grpcService: 'stopping' })).toBe(false);
  expect(await check(url, { grpcService: 'empty' })).toBe(false);
  expect(await check(url, { grpcService: 'unknown' })).toBe(false);
  expect(await check(url, { grpcService: 'silent' }, 0.2)).toBe(false);
});

test('a server that does not listen, or has another protocol, is not healthy', async () => {
  expect(await check('http://127.0.0.1:1', { grpcService: '' })).toBe(false);
});

test.each([
  [200, true],
  [302, true],
  [404, false],
  [503, false],
])('a path over HTTP/2 with status %d: healthy is %s', async (code, isHealthy) => {
  const server = createServer().on('stream', (stream: ServerHttp2Stream) => {
    stream.respond({ ':status': code });
    stream.end('x'.repeat(200_000));
    stream.on('error', () => {});
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  onTestFinished(() => void server.close());
  const { port } = server.address() as AddressInfo;
  expect(await check(`http://127.0.0.1:${port}`, { path: '/health' })).toBe(isHealthy);
});
