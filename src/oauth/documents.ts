import { readFileSync } from 'node:fs';
import type { z } from 'zod';
import type { Epoch } from '../domain/epoch.ts';
import type { Reply } from '../http/reply.ts';
import type { RequestContext } from '../http/request-context.ts';
import { createServiceReply } from '../http/service-response.ts';
import { PACKAGE_ROOT } from '../lib/package-root.ts';
import type { Keyring } from '../tokens/keyring.ts';
import type { ProtectedResource } from './schemas.ts';

interface PublicDocument {
  readonly rule: string;
  readonly contentType: string;
  readonly cacheControl: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body: string | Buffer;
}

/** Serves a public document to GET and HEAD requests. */
function serveDocument(context: RequestContext, document: PublicDocument): Reply {
  const { rule, contentType, cacheControl, headers, body } = document;
  const { method } = context.request;
  if (method !== 'GET' && method !== 'HEAD') {
    context.note({ rule, decision: 'refused', reason: 'method_not_allowed' });
    return createServiceReply(context, {
      status: 405,
      body: { error: 'invalid_request', error_description: 'Use GET.' },
      headers: { allow: 'GET, HEAD' },
      reason: 'Use GET.',
    });
  }
  context.note({ rule, decision: 'allowed' });
  return {
    status: 200,
    headers: {
      'content-type': contentType,
      'cache-control': cacheControl,
      'x-content-type-options': 'nosniff',
      ...headers,
    },
    body,
  };
}

/** Below the service path. */
export const JWKS_PATH = '/oauth2/jwks';

/** RFC 7517 §5: the public keys of all signing keys that have not retired, including those not active yet. */
export const handleJwks = ({ signingKeys }: Keyring, context: RequestContext, now: Epoch): Reply =>
  serveDocument(context, {
    rule: 'oauth2:jwks',
    contentType: 'application/jwk-set+json',
    // Shorter than the time for which a new key is published before it signs (`gatehouse keys rotate --publish-before`).
    cacheControl: 'public, max-age=300',
    body: JSON.stringify({
      keys: signingKeys.filter(({ retireAt }) => now < retireAt).map(({ publicJwk }) => publicJwk),
    }),
  });

/** Below the service path. */
export const OPENAPI_PATH = '/openapi.json';

/** Generated from the schemas of both APIs (tools/openapi.ts). The package and the image contain it. */
const DOCUMENT_FILE = new URL('docs/openapi.json', PACKAGE_ROOT);
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

const RESOURCE_METADATA_RULE = 'oauth2:resource_metadata';

/** RFC 9728 §3.1: GET /.well-known/oauth-protected-resource, optionally followed by a path of the API. */
export function handleResourceMetadata(
  context: RequestContext,
  document: z.output<typeof ProtectedResource> | undefined,
): Reply {
  if (document !== undefined)
    return serveDocument(context, {
      rule: RESOURCE_METADATA_RULE,
      contentType: 'application/json',
      cacheControl: 'public, max-age=300',
      headers: { 'x-request-id': context.id },
      body: JSON.stringify(document),
    });
  const description = 'There is no protected resource at this path.';
  context.note({ rule: RESOURCE_METADATA_RULE, decision: 'refused', reason: 'no_resource' });
  return createServiceReply(context, {
    status: 404,
    body: { error: 'not_found', error_description: description },
    reason: description,
  });
}
