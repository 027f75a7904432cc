import { once } from 'node:events';
import { createServer, type IncomingHttpHeaders, type IncomingMessage } from 'node:http';
import type { AddressInfo } from 'node:net';
import { readMessageBody } from '../../admin/node-request.ts';

export type DemoApi = Awaited<ReturnType<typeof openDemoApi>>;

const FILES = ['welcome.txt', 'prices.csv', 'map.png'];

/**
 * A small REST API behind the demo gateway. It does no authorization itself, and returns the caller. Listens on the given
 * loopback port, or on a free one if that is in use.
 */
export async function openDemoApi(port: number) {
  const reports: string[] = ['Opening day'];
  const server = createServer({ requestTimeout: 30_000 }, (request, response) => {
    void handleRequest(request, reports).then(({ status, body }) => {
      response.writeHead(status, { 'content-type': 'application/json' });
      response.end(JSON.stringify({ ...body, ...describeCaller(request.headers) }));
    });
  });
  const listen = async (candidate: number): Promise<unknown> =>
    once(server.listen(candidate, '127.0.0.1'), 'listening');
  await listen(port).catch(() => listen(0));
  return {
    port: (server.address() as AddressInfo).port,
    async close(): Promise<void> {
      server.close().closeAllConnections();
      await once(server, 'close');
    },
  };
}

/** The identity headers of the gateway; absent on public routes. */
const describeCaller = (headers: IncomingHttpHeaders): object => {
  const { 'x-forwarded-user': user, 'x-forwarded-client-id': client, 'x-forwarded-scope': scope } = headers;
  return user === undefined ? {} : { caller: user, client, scope };
};

async function handleRequest(request: IncomingMessage, reports: string[]) {
  const { method = '', url = '' } = request;
  const [, resource = '', name = ''] = new URL(url, 'http://demo').pathname.split('/').map(decodeURIComponent);
  const body = await readMessageBody(request, 10_000, 10);
  if (body.kind !== 'complete') return { status: 400, body: { problem: 'the body is too large or incomplete' } };
  switch (`${method === 'HEAD' ? 'GET' : method} ${resource}`) {
    case 'GET health':
      return { status: 200, body: { status: 'ok' } };
    case 'GET whoami':
      return { status: 200, body: {} };
    case 'GET files':
      if (name === '') return { status: 200, body: { files: FILES } };
      if (FILES.includes(name)) return { status: 200, body: { file: name } };
      break;
    case 'GET reports':
      return { status: 200, body: { reports } };
    case 'POST reports':
      // Bounded, for a demo that runs for days.
      if (reports.length >= 100) reports.shift();
      reports.push(body.bytes.toString('utf8').slice(0, 200));
      return { status: 201, body: { added: reports.at(-1) } };
    default:
  }
  return { status: 404, body: { problem: `the demo API has no ${method} ${url}` } };
}
