import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';

/** An introspection endpoint (RFC 7662) whose responses a test controls. */
export interface IntrospectionServer {
  readonly url: string;
  /** By token; others are inactive. */
  readonly active: Map<string, Readonly<Record<string, unknown>>>;
  /** In place of the regular response. */
  respond: (() => { readonly status: number; readonly type: string; readonly body: string }) | undefined;
  /** While set, responses wait for it. */
  gate: Promise<void> | undefined;
  readonly requests: readonly { readonly token: string | null; readonly authorization: string | undefined }[];
  /** Most requests at a time. */
  readonly peak: number;
  close(): void;
}

export async function startIntrospectionServer(): Promise<IntrospectionServer> {
  const requests: { token: string | null; authorization: string | undefined }[] = [];
  let [running, peak] = [0, 0];
  const handle = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    running += 1;
    peak = Math.max(peak, running);
    let body = '';
    for await (const part of request) body += String(part);
    const token = new URLSearchParams(body).get('token');
    requests.push({ token, authorization: request.headers.authorization });
    await state.gate;
    running -= 1;
    const custom = state.respond?.();
    const claims = state.active.get(token ?? '');
    response
      .writeHead(custom?.status ?? 200, {
        'content-type': custom?.type ?? 'application/json',
        ...(custom?.status === 302 && { location: `${state.url}/elsewhere` }),
      })
      .end(custom?.body ?? JSON.stringify(claims === undefined ? { active: false } : { active: true, ...claims }));
  };
  const server = createServer((request, response) => void handle(request, response)).listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  const state: IntrospectionServer = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/introspect`,
    active: new Map(),
    respond: undefined,
    gate: undefined,
    requests,
    get peak() {
      return peak;
    },
    close() {
      server.closeAllConnections();
      server.close();
    },
  };
  return state;
}
