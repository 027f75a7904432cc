import type { ServerResponse } from 'node:http';
import { connect as connectHttp2 } from 'node:http2';
import { onTestFinished } from 'vitest';
import {
  type Client,
  connect,
  createServeFolder,
  type ServeFolder,
  type ServeProcess,
  type StartOptions,
  startServe,
} from './serve-process.ts';

export interface HeldGateway {
  readonly server: ServeProcess;
  readonly folder: ServeFolder;
  /** Pending responses to `/held`, which the test sends. */
  readonly held: readonly ServerResponse[];
  /** Creates a client with one connection. */
  readonly client: () => Client;
}

/** Starts the program with an upstream whose responses to `/held` are sent by the test. Removed after the test. */
export async function startHeldGateway(
  workers: number,
  shutdown: { readonly preStop: string; readonly drain: string },
  options: StartOptions = {},
): Promise<HeldGateway> {
  const held: ServerResponse[] = [];
  const folder = await createServeFolder(
    (settings) => ({
      ...settings,
      listen: { ...settings.listen, workers },
      shutdown,
      log: { level: 'info', access: { enabled: false } },
      routes: [...(settings.routes ?? []), { path: '/held', public: true }],
    }),
    (request, response) => {
      if (request.url === '/held') held.push(response);
      else request.resume().on('end', () => response.end('ok'));
    },
  );
  onTestFinished(() => folder.remove());
  const server = await startServe(folder, options);
  const client = (): Client => {
    const connected = connect(folder, server.port, folder.alice);
    onTestFinished(() => connected.close());
    return connected;
  };
  return { server, folder, held, client };
}

interface Streamed {
  readonly status: number;
  readonly body: string;
}

/** An HTTP/2 client with one connection. */
export function http2Client(folder: ServeFolder, server: ServeProcess) {
  const session = connectHttp2(`https://localhost:${server.port}`, { ca: folder.ca.pem });
  let goneAway = false;
  session.on('error', () => {});
  session.on('goaway', () => {
    goneAway = true;
  });
  onTestFinished(() => session.destroy());
  return {
    goneAway: () => goneAway,
    get: (path: string) =>
      new Promise<Streamed>((resolve, reject) => {
        const stream = session.request({ ':path': path });
        let status = 0;
        let body = '';
        stream.setEncoding('utf8');
        stream.on('response', (fields) => {
          status = Number(fields[':status']);
        });
        stream.on('data', (part: string) => {
          body += part;
        });
        stream.on('error', reject).on('end', () => resolve({ status, body }));
        stream.end();
      }),
  };
}

export const hasLogged = (server: ServeProcess, event: string): boolean =>
  server.log.some((line) => line.event === event);

/** Runs `code` in the process on SIGWINCH, for errors and stalls that no request can cause. */
export const onSignal = (code: string) => ({
  nodeOptions: ['--import', `data:text/javascript,process.on('SIGWINCH',()=>{${encodeURIComponent(code)}})`],
});
