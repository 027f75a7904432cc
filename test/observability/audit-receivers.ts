import { createServer as createHttpServer, type IncomingHttpHeaders } from 'node:http';
import { listenTcp } from '../support/tcp-server.ts';

export interface Delivery {
  readonly path: string;
  readonly headers: IncomingHttpHeaders;
  readonly body: string;
}

export interface HttpReceiver {
  readonly url: string;
  readonly deliveries: readonly Delivery[];
  /** The status of future responses. */
  respond(status: number): void;
  close(): Promise<void>;
}

export async function startHttpReceiver(): Promise<HttpReceiver> {
  const deliveries: Delivery[] = [];
  let status = 200;
  const server = createHttpServer((request, response) => {
    let body = '';
    request.setEncoding('utf8');
    request.on('data', (part: string) => {
      body += part;
    });
    request.on('end', () => {
      deliveries.push({ path: request.url ?? '', headers: request.headers, body });
      response.writeHead(status, status === 307 ? { location: 'http://127.0.0.1:1/' } : {}).end('{}');
    });
  });
  const { port, close } = await listenTcp(server);
  return {
    url: `http://127.0.0.1:${port}`,
    deliveries,
    respond(next) {
      status = next;
    },
    close,
  };
}
