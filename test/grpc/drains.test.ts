import {
  type Client,
  credentials,
  Metadata,
  makeGenericClientConstructor,
  Server,
  ServerCredentials,
  type ServiceDefinition,
  type ServiceError,
} from '@grpc/grpc-js';
import { expect, onTestFinished, test } from 'vitest';
import { startGateway } from '../support/test-gateway.ts';
import { until } from '../support/until.ts';

const asIs = (value: Buffer): Buffer => value;
const SERVICE = {
  unary: {
    path: '/files.Files/Unary',
    requestStream: false,
    responseStream: false,
    requestSerialize: asIs,
    requestDeserialize: asIs,
    responseSerialize: asIs,
    responseDeserialize: asIs,
  },
} satisfies ServiceDefinition;

interface Calls extends Client {
  unary(message: Buffer, metadata: Metadata, callback: (error: ServiceError | null, reply?: Buffer) => void): void;
}

async function startServer(
  name: string,
  port = 0,
): Promise<{ port: number; served(): number; drain(): Promise<void> }> {
  const server = new Server();
  let served = 0;
  server.addService(SERVICE, {
    unary(_: unknown, callback: (error: null, message: Buffer) => void) {
      served += 1;
      setTimeout(() => callback(null, Buffer.from(name)), 5);
    },
  });
  const bound = await new Promise<number>((resolve, reject) =>
    server.bindAsync(`127.0.0.1:${port}`, ServerCredentials.createInsecure(), (error, used) =>
      error ? reject(error) : resolve(used),
    ),
  );
  onTestFinished(() => server.forceShutdown());
  return {
    port: bound,
    served: () => served,
    drain: () => new Promise((resolve, reject) => server.tryShutdown((error) => (error ? reject(error) : resolve()))),
  };
}

test('no call fails while the servers of an upstream are replaced one after another', async () => {
  const first = await startServer('first');
  const second = await startServer('second');
  const gateway = await startGateway((settings) => ({
    ...settings,
    upstreams: {
      default: { urls: [first, second].map(({ port }) => `http://127.0.0.1:${port}`), protocol: 'http2' },
    },
    routes: [{ path: '/files.Files/*', requires: 'files:read' }],
  }));
  onTestFinished(() => gateway.close());
  const { access_token: token } = await gateway.grant({ scope: 'files:read' });
  const metadata = new Metadata();
  metadata.set('authorization', `Bearer ${token}`);
  const Constructor = makeGenericClientConstructor(SERVICE, 'Files') as unknown as new (
    address: string,
    secure: ReturnType<typeof credentials.createSsl>,
    options: object,
  ) => Calls;
  const client = new Constructor(`localhost:${gateway.port}`, credentials.createSsl(Buffer.from(gateway.ca.pem)), {
    'grpc.enable_retries': 0,
  });
  onTestFinished(() => client.close());
  const errors: string[] = [];
  let calls = 0;
  const load = { isOver: false };
  const worker = async (): Promise<void> => {
    while (!load.isOver) {
      await new Promise<void>((resolve) => {
        client.unary(Buffer.from('x'), metadata, (error) => {
          calls += 1;
          if (error !== null) errors.push(error.message);
          resolve();
        });
      });
    }
  };
  const workers = Array.from({ length: 20 }, worker);
  await until('both serve', () => first.served() > 50 && second.served() > 50);
  await first.drain();
  const replacement = await startServer('replacement', first.port);
  await until('the replacement serves', () => replacement.served() > 50);
  await second.drain();
  const before = calls;
  await until('calls go on', () => calls > before + 200);
  load.isOver = true;
  await Promise.all(workers);
  expect(errors).toEqual([]);
});
