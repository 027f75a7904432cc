import { type ClientHttp2Session, connect, type IncomingHttpHeaders } from 'node:http2';
import { FALLBACK_REASONS } from '../../src/proxy/downstream/request-parser.ts';
import { createHttpsClient, type Headers, type HttpsClient } from './https-client.ts';
import type { IssuedCertificate } from './pki.ts';
import type { TestGateway } from './test-gateway.ts';

/** The protocols and paths over which a request can be served through the gateway. */
export const DATA_PATHS = [
  'HTTP/1.1, fast path',
  'HTTP/1.1, full path',
  'HTTP/2, fast path',
  'HTTP/2, full path',
] as const;
export type DataPath = (typeof DATA_PATHS)[number];

export interface DataPathRequest {
  readonly method?: string;
  readonly path: string;
  readonly headers?: Headers;
  readonly body?: string;
  /** The client certificate to present. */
  readonly as?: IssuedCertificate | undefined;
}

export interface DataPathReply {
  readonly status: number;
  readonly headers: Readonly<Record<string, unknown>>;
  readonly text: string;
  /** `fast`, or why the full path served it: the reason in `gatehouse_data_path_requests_total`. */
  readonly servedBy: string;
}

type Send = (request: DataPathRequest) => Promise<Omit<DataPathReply, 'servedBy'>>;

/** Clients that send one request at a time over each of the paths of a gateway with the fast path enabled. */
export interface DataPathClients {
  send(path: DataPath, request: DataPathRequest): Promise<DataPathReply>;
  close(): void;
}

export function createDataPathClients(gateway: TestGateway): DataPathClients {
  const closers: (() => void)[] = [];
  const perCertificate = <T>(
    create: (as: IssuedCertificate | undefined) => T,
    close: (client: T) => void,
  ) => {
    const clients = new Map<IssuedCertificate | undefined, T>();
    return (as: IssuedCertificate | undefined): T => {
      const known = clients.get(as);
      if (known !== undefined) return known;
      const client = create(as);
      clients.set(as, client);
      closers.push(() => close(client));
      return client;
    };
  };
  const createHttp1Client = (keepAlive: boolean) =>
    perCertificate(
      (as): HttpsClient => createHttpsClient({ port: gateway.port, ca: gateway.ca.pem, as, keepAlive }),
      (client) => client.close(),
    );
  // A connection that fell back to the full path stays there.
  const getFastClient = createHttp1Client(false);
  const getFullClient = createHttp1Client(true);
  const getSession = perCertificate(
    (as): ClientHttp2Session =>
      connect(`https://localhost:${gateway.port}`, {
        ca: gateway.ca.pem,
        ...(as && { cert: as.pem, key: as.keyPem }),
      }),
    (session) => session.destroy(),
  );
  const send: Record<DataPath, Send> = {
    'HTTP/1.1, fast path': ({ as, ...init }) => getFastClient(as).request(init),
    async 'HTTP/1.1, full path'({ as, ...init }) {
      const client = getFullClient(as);
      // The fast path does not serve the token service.
      await client.request({ path: '/.well-known/oauth-authorization-server' });
      return client.request(init);
    },
    'HTTP/2, fast path': ({ as, ...init }) => sendOverHttp2(getSession(as), init),
    // The fast path does not serve requests with this field.
    'HTTP/2, full path': ({ as, ...init }) =>
      sendOverHttp2(getSession(as), { ...init, headers: { ...init.headers, te: 'trailers' } }),
  };
  return {
    async send(path, request) {
      const before = readCounters(gateway);
      const { status, headers, text } = await send[path](request);
      const changed = [...readCounters(gateway)].filter(([name, value]) => value !== before.get(name));
      return { status, headers, text, servedBy: changed.map(([name]) => name).join(' and ') };
    },
    close: () => closers.forEach((close) => close()),
  };
}

function sendOverHttp2(
  session: ClientHttp2Session,
  { method = 'GET', path, headers = {}, body }: DataPathRequest,
): ReturnType<Send> {
  const { host, ...fields } = headers;
  const stream = session.request({
    ':method': method,
    ':path': path,
    ...(host !== undefined && { ':authority': host }),
    ...fields,
  });
  return new Promise((resolve, reject) => {
    let head: IncomingHttpHeaders & { readonly ':status'?: number | undefined } = {};
    let text = '';
    stream
      .setEncoding('utf8')
      .on('error', reject)
      .on('response', (received) => (head = received))
      .on('data', (part: string) => (text += part))
      .on('end', () => {
        const { ':status': status = 0, ...received } = head;
        resolve({ status, headers: received, text });
      })
      .end(body);
  });
}

function readCounters({ server }: TestGateway): ReadonlyMap<string, number> {
  const read = (path: 'fast' | 'full', reason: string): number =>
    server.metrics.counter('gatehouse_data_path_requests_total', path, reason).value;
  return new Map([
    ['fast', read('fast', 'none')],
    ...[...FALLBACK_REASONS, 'other'].map((reason) => [reason, read('full', reason)] as const),
  ]);
}
