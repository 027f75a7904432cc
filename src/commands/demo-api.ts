import { createServer, type IncomingHttpHeaders, type IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import { readBody } from '../http/body.ts';

/** A small REST API for the demo. It asks for nothing itself: it stands behind the gateway and says who called. */
export interface DemoApi {
  readonly port: number;
  close(): Promise<void>;
}

const FILES = ['welcome.txt', 'prices.csv', 'map.png'];

interface Reply {
  readonly status: number;
  readonly body: Readonly<Record<string, unknown>>;
}

/** Listens on the given loopback port, or on a free one when that is taken. */
export async function openDemoApi(port: number): Promise<DemoApi> {
  const reports: string[] = ['Opening day'];
  const server = createServer({ requestTimeout: 30_000 }, (request, response) => {
    void answer(request, reports).then(({ status, body }) => {
      response.writeHead(status, { 'content-type': 'application/json' });
      response.end(JSON.stringify({ ...body, ...caller(request.headers) }));
    });
  });
  const listen = (at: number): Promise<void> =>
    new Promise((resolve, reject) => {
      server.once('error', reject);
      server.listen(at, '127.0.0.1', () => {
        server.off('error', reject);
        resolve();
      });
    });
  try {
    await listen(port);
  } catch {
    await listen(0);
  }
  return {
    port: (server.address() as AddressInfo).port,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}

/** What the gateway tells about the caller; nothing on public routes. */
const caller = (headers: IncomingHttpHeaders): object => {
  const { 'x-forwarded-user': user, 'x-forwarded-client-id': client, 'x-forwarded-scope': scope } = headers;
  return user === undefined ? {} : { caller: user, client, scope };
};

async function answer(request: IncomingMessage, reports: string[]): Promise<Reply> {
  const { method = '', url = '' } = request;
  const [, resource = '', name = ''] = new URL(url, 'http://demo').pathname
    .split('/')
    .map(decodeURIComponent);
  const body = await readBody(request, 10_000, 10);
  if (body.kind !== 'whole') return { status: 400, body: { problem: 'the body is too large or broken' } };
  switch (`${method === 'HEAD' ? 'GET' : method} ${resource}`) {
    case 'GET health':
      return { status: 200, body: { status: 'well' } };
    case 'GET whoami':
      return { status: 200, body: {} };
    case 'GET files':
      if (name === '') return { status: 200, body: { files: FILES } };
      if (FILES.includes(name)) return { status: 200, body: { file: name } };
      break;
    case 'GET reports':
      return { status: 200, body: { reports } };
    case 'POST reports':
      // A demo that runs for days stays small.
      if (reports.length >= 100) reports.shift();
      reports.push(body.bytes.toString('utf8').slice(0, 200));
      return { status: 201, body: { added: reports.at(-1) } };
    default:
  }
  return { status: 404, body: { problem: `the demo API has no ${method} ${url}` } };
}
