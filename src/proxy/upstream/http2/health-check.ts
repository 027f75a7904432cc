import { encodeNumber, encodeString } from '../../../grpc/protobuf.ts';
import { frameMessage } from '../../../grpc/unary-call.ts';
import type { ResponseHandler } from '../connection.ts';
import type { UpstreamSettings } from '../targets.ts';
import { createUpstreamSecureContext, type UpstreamTlsFiles } from '../tls-files.ts';
import { Http2Pool } from './pool.ts';

type HealthCheckSettings = NonNullable<UpstreamSettings['health']>;

interface Target {
  readonly serverName: string | undefined;
  readonly tlsFiles: UpstreamTlsFiles;
}

/** What of a response is read. */
const MAX_BODY = 65_536;
/** `HealthCheckResponse { status: SERVING }`, as a message of gRPC. */
const SERVING = frameMessage(encodeNumber(1, 1));
const GRPC_FIELDS = 'content-type: application/grpc\r\nuser-agent: gatehouse-health\r\n';

interface Response {
  readonly status: number;
  readonly body: Buffer;
  readonly trailers: readonly string[];
}

/** Requests `path`, or the status of `grpcService`, on a connection of its own. */
export async function isHealthyOverHttp2(
  url: string,
  { path, grpcService, timeout }: HealthCheckSettings,
  { serverName, tlsFiles }: Target,
  stopped: AbortSignal,
): Promise<boolean> {
  const pool = new Http2Pool(url, { serverName, secureContext: createUpstreamSecureContext(tlsFiles) });
  try {
    const signal = AbortSignal.any([stopped, AbortSignal.timeout(timeout * 1_000)]);
    const response = await request(pool, path, grpcService ?? '', signal);
    if (path !== undefined) return response.status >= 200 && response.status < 400;
    const { status, body, trailers } = response;
    return status === 200 && isStatusOk(trailers) && body.equals(SERVING);
  } catch {
    return false;
  } finally {
    await pool.close();
  }
}

const isStatusOk = (trailers: readonly string[]): boolean =>
  trailers.some((name, at) => at % 2 === 0 && name === 'grpc-status' && trailers[at + 1] === '0');

function request(
  pool: Http2Pool,
  path: string | undefined,
  grpcService: string,
  signal: AbortSignal,
): Promise<Response> {
  const { promise, resolve, reject } = Promise.withResolvers<Response>();
  const stream = pool.acquire();
  const parts: Buffer[] = [];
  let status = 0;
  let size = 0;
  const handler: ResponseHandler = {
    onConnected() {
      if (path !== undefined)
        stream.send(
          { method: 'GET', path, fields: 'user-agent: gatehouse-health\r\n', acceptsTrailers: false },
          '',
          undefined,
        );
      else
        stream.send(
          { method: 'POST', path: '/grpc.health.v1.Health/Check', fields: GRPC_FIELDS, acceptsTrailers: true },
          '',
          // `HealthCheckRequest { service }`
          frameMessage(grpcService === '' ? Buffer.alloc(0) : encodeString(1, grpcService)),
        );
    },
    onDrain() {},
    onHead: (head) => void (status = head.status),
    onData(bytes, start, end) {
      size += end - start;
      // The rest decides nothing.
      if (size > MAX_BODY) {
        stream.discard();
        resolve({ status, body: Buffer.alloc(0), trailers: [] });
      } else parts.push(Buffer.from(bytes.subarray(start, end)));
      return true;
    },
    onReadEnd() {},
    onEnd: (_, trailers = []) => resolve({ status, body: Buffer.concat(parts), trailers }),
    onError: reject,
    onInternalError: reject,
  };
  signal.addEventListener('abort', () => reject(signal.reason as Error), { once: true });
  stream.assign(handler, false);
  return promise;
}
