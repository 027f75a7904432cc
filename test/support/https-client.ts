import type { ClientRequest, IncomingHttpHeaders } from 'node:http';
import { request as httpRequest } from 'node:http';
import { Agent, request as httpsRequest, type RequestOptions } from 'node:https';
import type { TLSSocket } from 'node:tls';
import type { IssuedCertificate } from './pki.ts';

export interface Reply {
  readonly status: number;
  readonly reason: string;
  readonly headers: IncomingHttpHeaders;
  readonly text: string;
  /** Empty if the body is not JSON. */
  readonly json: Record<string, unknown>;
  readonly socket: TLSSocket;
}

export interface TokenGrant {
  readonly access_token: string;
  readonly refresh_token: string;
  readonly expires_in: number;
  readonly expires: number;
  readonly token_type: string;
  readonly scope: string;
  readonly refresh_until: number;
  readonly identity?: string;
}

export type Headers = Readonly<Record<string, string | string[]>>;

export interface RequestParams extends Omit<RequestOptions, 'timeout' | 'headers'> {
  readonly port: number;
  readonly path: string;
  readonly headers?: Headers | undefined;
  /** Without TLS. */
  readonly plain?: boolean;
  /** Deadline for the complete response. */
  readonly seconds?: number;
}

const DEADLINE_SECONDS = 30;

/** Sends the head of a request; the caller writes the body. Never retried. */
export function beginRequest({ plain = false, seconds = DEADLINE_SECONDS, ...options }: RequestParams): {
  readonly sent: ClientRequest;
  readonly reply: Promise<Reply>;
} {
  const { method = 'GET', path, port, headers } = options;
  const sent = (plain ? httpRequest : httpsRequest)({
    host: '127.0.0.1',
    servername: 'localhost',
    agent: false,
    ...options,
    headers: { host: `localhost:${port}`, ...headers },
  });
  const reply = new Promise<Reply>((resolve, reject) => {
    const deadline = setTimeout(() => {
      reject(new Error(`no complete response to ${method} ${path} in ${seconds} s`));
      sent.destroy();
    }, seconds * 1_000);
    const fail = (error: Error): void => {
      clearTimeout(deadline);
      reject(error);
    };
    sent.on('error', fail).on('response', (response) => {
      // Node removes the socket from the response when the response ends.
      const socket = response.socket as TLSSocket;
      const parts: Buffer[] = [];
      response.on('data', (part: Buffer) => parts.push(part)).on('error', fail);
      response.on('end', () => {
        clearTimeout(deadline);
        const text = Buffer.concat(parts).toString();
        const { statusCode: status = 0, statusMessage: reason = '' } = response;
        resolve({ status, reason, headers: response.headers, text, json: parseJson(text), socket });
      });
    });
  });
  return { sent, reply };
}

export function sendRequest({ body, ...options }: RequestParams & { readonly body?: string | Buffer | undefined }) {
  const { sent, reply } = beginRequest(options);
  sent.end(body);
  return reply;
}

export function parseJson(text: string): Record<string, unknown> {
  try {
    return JSON.parse(text) as Record<string, unknown>;
  } catch {
    return {};
  }
}

export interface ClientRequestInit {
  readonly path: string;
  readonly method?: string;
  readonly headers?: Headers;
  readonly body?: string | Buffer;
}

export type Post = (path: string, body: unknown) => Promise<Reply>;

/** A client with keep-alive connections. With one connection, the same worker always serves it. */
export interface HttpsClient {
  readonly agent: Agent;
  request(init: ClientRequestInit): Promise<Reply>;
  /** POST with a JSON body to a path under /authsvc. */
  readonly post: Post;
  getWithToken(path: string, token: string): Promise<Reply>;
  /** Throws if the grant is rejected. */
  grant(scope?: string): Promise<TokenGrant>;
  refresh(token: string): Promise<Reply>;
  revoke(accessToken: string): Promise<Reply>;
  /** Whether both the proxy and Authorize/Verify accept this access token. */
  isAccepted(accessToken: string): Promise<boolean>;
  close(): void;
}

export interface HttpsClientOptions {
  readonly port: number;
  readonly ca: string;
  /** The client certificate to present. */
  readonly as?: IssuedCertificate | undefined;
  readonly connections?: number;
  readonly keepAlive?: boolean;
  /** Deadline for each response. */
  readonly seconds?: number;
}

export function createHttpsClient(options: HttpsClientOptions): HttpsClient {
  const { port, ca, as, connections = 1, keepAlive = true, seconds = DEADLINE_SECONDS } = options;
  const agent = new Agent({
    keepAlive,
    maxSockets: connections,
    ca,
    ...(as && { cert: as.pem, key: as.keyPem }),
  });
  const request: HttpsClient['request'] = (init) => sendRequest({ port, agent, seconds, ...init });
  const post: Post = (path, body) => request(jsonPostInit(path, body));
  const getWithToken: HttpsClient['getWithToken'] = (path, token) =>
    request({ path, headers: { authorization: `Bearer ${token}` } });
  return {
    agent,
    request,
    post,
    getWithToken,
    grant: async (scope) => requestGrant(post, { scope }),
    refresh: (token) => requestRefresh(post, token),
    revoke: (token) => getWithToken('/authsvc/Revoke/Token', token),
    async isAccepted(token) {
      const proxied = (await getWithToken('/whoami', token)).status;
      const verified = (await getWithToken('/authsvc/Authorize/Verify', token)).status;
      if (proxied !== verified) throw new Error(`the proxy responds ${proxied}, Verify ${verified}`);
      if (proxied !== 200 && proxied !== 401) throw new Error(`neither accepted nor rejected: ${proxied}`);
      return proxied === 200;
    },
    close: () => agent.destroy(),
  };
}

export const jsonPostInit = (path: string, body: unknown) => {
  const text = JSON.stringify(body);
  const headers = { 'content-type': 'application/json', 'content-length': String(Buffer.byteLength(text)) };
  return {
    path: `/authsvc${path}`,
    method: 'POST',
    body: text,
    headers,
  } as const satisfies ClientRequestInit;
};

export async function requestGrant(
  post: Post,
  { clientId = 'report-runner', scope = 'files:read' }: { clientId?: string; scope?: string | undefined },
): Promise<TokenGrant> {
  const reply = await post('/Authorize/Certificate', { client_id: clientId, scope });
  if (reply.status !== 200) throw new Error(`no grant: ${reply.status} ${reply.text}`);
  return reply.json as unknown as TokenGrant;
}

export const requestRefresh = (post: Post, token: string, more: Record<string, unknown> = {}): Promise<Reply> =>
  post('/Authorize/Token', { client_id: 'report-runner', refresh_token: token, ...more });
