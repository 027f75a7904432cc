import { type ClientHttp2Session, connect, type IncomingHttpHeaders } from 'node:http2';
import { createHttpsClient, type Headers, type HttpsClient } from './https-client.ts';
import type { IssuedCertificate } from './pki.ts';
import type { TestGateway } from './test-gateway.ts';

/** The protocols over which the gateway serves requests. */
export const PROTOCOLS = ['HTTP/1.1', 'HTTP/2'] as const;
export type Protocol = (typeof PROTOCOLS)[number];

export interface ProtocolRequest {
  readonly method?: string;
  readonly path: string;
  readonly headers?: Headers;
  readonly body?: string;
  /** The client certificate to present. */
  readonly as?: IssuedCertificate | undefined;
}

export interface ProtocolReply {
  readonly status: number;
  readonly headers: Readonly<Record<string, unknown>>;
  readonly text: string;
}

type Send = (request: ProtocolRequest) => Promise<ProtocolReply>;

/** Clients that send one request at a time over each of the protocols. */
export interface ProtocolClients {
  send(protocol: Protocol, request: ProtocolRequest): Promise<ProtocolReply>;
  close(): void;
}

export function createProtocolClients(gateway: TestGateway): ProtocolClients {
  const closers: (() => void)[] = [];
  const perCertificate = <T>(create: (as: IssuedCertificate | undefined) => T, close: (client: T) => void) => {
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
  const getHttp1Client = perCertificate(
    (as): HttpsClient => createHttpsClient({ port: gateway.port, ca: gateway.ca.pem, as, keepAlive: true }),
    (client) => client.close(),
  );
  const getSession = perCertificate(
    (as): ClientHttp2Session =>
      connect(`https://localhost:${gateway.port}`, {
        ca: gateway.ca.pem,
        ...(as && { cert: as.pem, key: as.keyPem }),
      }),
    (session) => session.destroy(),
  );
  const send: Record<Protocol, Send> = {
    async 'HTTP/1.1'({ as, ...init }) {
      const { status, headers, text } = await getHttp1Client(as).request(init);
      return { status, headers, text };
    },
    'HTTP/2': ({ as, ...init }) => sendOverHttp2(getSession(as), init),
  };
  return {
    send: (protocol, request) => send[protocol](request),
    close: () => closers.forEach((close) => close()),
  };
}

function sendOverHttp2(
  session: ClientHttp2Session,
  { method = 'GET', path, headers = {}, body }: ProtocolRequest,
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
