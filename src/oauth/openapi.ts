import { readFileSync } from 'node:fs';
import type { Reply } from '../http/reply.ts';
import type { RequestContext } from '../http/request-context.ts';
import { serveDocument } from './document.ts';

/** Below the service path. */
export const OPENAPI_PATH = '/openapi.json';

/** Generated from the schemas of both APIs (tools/openapi.ts). The package and the image contain it. */
const DOCUMENT_FILE = new URL('../../docs/openapi.json', import.meta.url);
const DOCUMENT_SERVICE_PATH = '/authsvc';

/** The OpenAPI document of both APIs, with the URL and service path of this gateway. Serialized once per configuration. */
export function serializeOpenApi(publicUrl: string, servicePath: string): Buffer {
  const document = JSON.parse(readFileSync(DOCUMENT_FILE, 'utf8')) as { readonly paths: object };
  const paths = Object.entries(document.paths).map(([path, operations]) => [
    path.replace(new RegExp(`(^|/oauth-authorization-server)${DOCUMENT_SERVICE_PATH}(?=/|$)`), `$1${servicePath}`),
    operations,
  ]);
  const localized = { ...document, servers: [{ url: publicUrl }], paths: Object.fromEntries(paths) };
  return Buffer.from(JSON.stringify(localized));
}

export const handleOpenApi = (body: Buffer, context: RequestContext): Reply =>
  serveDocument(context, {
    rule: 'openapi',
    contentType: 'application/json; charset=utf-8',
    cacheControl: 'no-store',
    headers: { 'x-request-id': context.id },
    body,
  });
