import type { LookupFunction } from 'node:net';
import type { Agent } from 'undici';
import { checkKeyPair } from './key-pair.ts';

/**
 * The client for control-plane HTTP: undici without redirects, without proxies from the environment, and with limits
 * on time and bytes.
 */
export interface HttpClient {
  send(url: string | URL, request?: HttpRequest): Promise<HttpResponse>;
  /** For other requests with the same CA and certificate. */
  getAgent(): Promise<Agent>;
  /** Waits for requests in progress. */
  close(): Promise<void>;
  /** Aborts requests in progress. */
  destroy(): Promise<void>;
}

interface HttpClientOptions {
  /** For a whole exchange, including the response body. */
  readonly timeoutMs: number;
  /** PEM. Omitted: the CAs of the runtime. */
  readonly ca?: string | Buffer | undefined;
  /** Client certificate and private key, PEM. */
  readonly certificate?: { readonly cert: string | Buffer; readonly key: string | Buffer } | undefined;
  /** False only where nothing is sent and only the status is used. */
  readonly verifyServer?: false;
  /** Resolves host names. Omitted: as the operating system does. */
  readonly lookup?: LookupFunction;
  /** Connections to one origin. Omitted: unlimited. */
  readonly maxConnections?: number;
}

export interface HttpRequest {
  readonly method?: string | undefined;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body?: string | Uint8Array | undefined;
  /** Overrides the timeout of the client. */
  readonly timeoutMs?: number | undefined;
}

export interface HttpResponse {
  readonly status: number;
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly body: AsyncIterable<Uint8Array>;
}

const MAX_HEADER_BYTES = 16 * 1_024;

export function createHttpClient(options: HttpClientOptions): HttpClient {
  const { timeoutMs, ca, certificate, verifyServer = true, maxConnections, lookup } = options;
  // undici is loaded with the first request: it takes 60 ms.
  const openAgent = async (): Promise<Agent> => {
    if (certificate !== undefined) checkKeyPair(certificate);
    const { Agent } = await import('undici');
    return new Agent({
      allowH2: false,
      maxHeaderSize: MAX_HEADER_BYTES,
      ...(maxConnections !== undefined && { connections: maxConnections }),
      connect: {
        timeout: timeoutMs,
        // Explicit, because NODE_TLS_REJECT_UNAUTHORIZED changes the default.
        rejectUnauthorized: verifyServer,
        ...(ca !== undefined && { ca }),
        ...(lookup !== undefined && { lookup }),
        ...(certificate !== undefined && { cert: certificate.cert, key: certificate.key }),
      },
    });
  };
  let agent: Promise<Agent> | undefined;
  const getAgent = (): Promise<Agent> => (agent ??= openAgent());
  return {
    async send(url, { method = 'GET', headers = {}, body, timeoutMs: requestTimeoutMs = timeoutMs } = {}) {
      // The timeout covers loading undici, connecting and, through the signal, reading the body.
      const signal = AbortSignal.timeout(requestTimeoutMs);
      const [{ request }, dispatcher] = await Promise.all([import('undici'), getAgent()]);
      const content = body === undefined ? {} : { body };
      const response = await request(url, { method, headers, ...content, dispatcher, signal });
      return { status: response.statusCode, headers: response.headers, body: response.body };
    },
    getAgent,
    close: async () => (await agent?.catch(() => undefined))?.close(),
    destroy: async () => (await agent?.catch(() => undefined))?.destroy(),
  };
}

interface SingleRequest<T> extends HttpClientOptions {
  readonly request?: HttpRequest;
  readonly read: (response: HttpResponse) => Promise<T>;
}

/** One request over a connection of its own. */
export async function sendOnce<T>(url: URL, { read, request, ...options }: SingleRequest<T>): Promise<T> {
  const client = createHttpClient(options);
  try {
    return await read(await client.send(url, request));
  } finally {
    await client.destroy();
  }
}

/** Returns undefined if the stream is longer. It is then closed, and the rest is not received. */
export async function readAtMost(
  stream: AsyncIterable<Uint8Array | string>,
  maxBytes: number,
): Promise<Buffer | undefined> {
  const parts: Uint8Array[] = [];
  let length = 0;
  for await (const part of stream) {
    const bytes = typeof part === 'string' ? Buffer.from(part) : part;
    length += bytes.length;
    if (length > maxBytes) return undefined;
    parts.push(bytes);
  }
  return Buffer.concat(parts);
}
