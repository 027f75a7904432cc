import { sendJson } from '../http/answer.ts';
import type { Call } from '../http/call.ts';
import document from './openapi.json' with { type: 'json' };

/** Below the service path. */
export const OPENAPI_PATH = '/openapi.json';

const WRITTEN_PATH = '/authsvc';

/** The OpenAPI document of both faces, with this house's own address and service path. Written once: it is long, and open to all. */
export function openApiOf(publicUrl: string, servicePath: string): Buffer {
  const paths = Object.entries(document.paths).map(([path, operations]) => [
    path.replace(new RegExp(`(^|/oauth-authorization-server)${WRITTEN_PATH}(?=/|$)`), `$1${servicePath}`),
    operations,
  ]);
  const served = { ...document, servers: [{ url: publicUrl }], paths: Object.fromEntries(paths) };
  return Buffer.from(JSON.stringify(served));
}

export function answerOpenApi(served: Buffer, call: Call): void {
  const { method = '' } = call.request;
  call.note({ rule: 'openapi' });
  const headers = { 'x-request-id': call.id };
  if (method !== 'GET' && method !== 'HEAD') {
    call.note({ decision: 'refused', reason: 'method_not_served' });
    return sendJson(call.response, {
      status: 405,
      body: { error: 'invalid_request', error_description: 'Use GET.' },
      headers: { ...headers, allow: 'GET, HEAD' },
    });
  }
  call.note({ decision: 'allowed' });
  call.response.writeHead(200, {
    ...headers,
    'content-type': 'application/json; charset=utf-8',
    'content-length': served.length,
    'cache-control': 'no-store',
    'x-content-type-options': 'nosniff',
  });
  call.response.end(method === 'HEAD' ? undefined : served);
}
