import { readFileSync } from 'node:fs';
import type { z } from 'zod';
import type { Epoch } from '../domain/grant.ts';
import { type Integration, isConfidential } from '../domain/integration.ts';
import { hasCodeGrant } from '../grants/authorization-request.ts';
import type { Reply } from '../http/reply.ts';
import type { RequestContext } from '../http/request-context.ts';
import { createServiceReply } from '../http/service-response.ts';
import { PACKAGE_ROOT } from '../lib/package-root.ts';
import type { Keyring } from '../tokens/keyring.ts';
import { deviceAuthorization, pushedAuthorization } from './authorization-requests.ts';
import { introspect, mayClientIntrospect } from './introspect.ts';
import { revoke } from './revoke.ts';
import type { Metadata, ProtectedResource } from './schemas.ts';
import type { OAuthService } from './service.ts';
import { getSupportedGrantTypes, hasCertificateGrant, token } from './token.ts';

/** Below the service path; served by the pages. */
export const AUTHORIZATION_PATH = '/oauth2/authorize';

/** RFC 9207 §2: `iss` in the response is the issuer whose metadata the client has read. */
const formatAuthorizationEndpoint = (url: string, issuerPath: string): string =>
  issuerPath === '' ? url : `${url}?issuer_path=${encodeURIComponent(issuerPath)}`;

/** RFC 8705 §2.1.1. */
const TLS_CLIENT_AUTH = 'tls_client_auth';

/** The methods of clients that have a secret or a key. */
const listClientAuthMethods = (integrations: readonly Integration[]): readonly string[] => [
  ...(integrations.some(({ secretHashes = [] }) => secretHashes.length > 0)
    ? ['client_secret_basic', 'client_secret_post']
    : []),
  ...(integrations.some(({ hasKeys }) => hasKeys === true) ? ['private_key_jwt'] : []),
];

/** RFC 8414 §2. `issuerPath` is the path of the requested issuer (§3.1): clients compare `issuer` exactly (§3.3). */
export function createMetadata(service: OAuthService, issuerPath: string): z.output<typeof Metadata> {
  const { publicUrl, path, grantDeps, introspection } = service;
  const endpointUrl = (subpath: string): string => `${publicUrl}${path}${subpath}`;
  const hasDocuments = grantDeps.integrations.values().some(({ documentHosts = [] }) => documentHosts.length > 0);
  const hasCode = grantDeps.integrations.values().some(hasCodeGrant);
  const integrations = [...grantDeps.integrations.values()];
  const clientAuthMethods = listClientAuthMethods(integrations);
  const introspecting = integrations.filter((integration) => mayClientIntrospect(introspection, integration));
  const introspectionAuthMethods = [
    ...(service.acceptsCertificates && introspection.access.length > 0 ? [TLS_CLIENT_AUTH] : []),
    ...listClientAuthMethods(introspecting),
    ...(introspection.requires === undefined ? [] : ['Bearer']),
  ];
  /** RFC 8414 §2: required with private_key_jwt. */
  const listAlgorithms = (endpoint: 'token' | 'revocation' | 'introspection', methods: readonly string[]) =>
    methods.includes('private_key_jwt') && {
      [`${endpoint}_endpoint_auth_signing_alg_values_supported` as const]: [...service.assertionAlgorithms],
    };
  return {
    issuer: `${publicUrl}${issuerPath}`,
    token_endpoint: endpointUrl(token.path),
    ...(grantDeps.policy.device.enabled && {
      device_authorization_endpoint: endpointUrl(deviceAuthorization.path),
    }),
    revocation_endpoint: endpointUrl(revoke.path),
    ...(introspectionAuthMethods.length > 0 && { introspection_endpoint: endpointUrl(introspect.path) }),
    jwks_uri: endpointUrl(JWKS_PATH),
    grant_types_supported: getSupportedGrantTypes(service),
    ...(hasCode
      ? {
          authorization_endpoint: formatAuthorizationEndpoint(endpointUrl(AUTHORIZATION_PATH), issuerPath),
          pushed_authorization_request_endpoint: endpointUrl(pushedAuthorization.path),
          response_types_supported: ['code'],
          response_modes_supported: ['query'],
          code_challenge_methods_supported: ['S256'],
          authorization_response_iss_parameter_supported: true,
          ...(hasDocuments && { client_id_metadata_document_supported: true }),
        }
      : { response_types_supported: [] }),
    token_endpoint_auth_methods_supported: [
      ...(integrations.every(isConfidential) ? [] : ['none']),
      ...(hasCertificateGrant(service) ? [TLS_CLIENT_AUTH] : []),
      ...clientAuthMethods,
    ],
    ...listAlgorithms('token', clientAuthMethods),
    revocation_endpoint_auth_methods_supported: ['none', ...clientAuthMethods],
    ...listAlgorithms('revocation', clientAuthMethods),
    ...(introspectionAuthMethods.length > 0 && {
      introspection_endpoint_auth_methods_supported: introspectionAuthMethods,
    }),
    ...listAlgorithms('introspection', introspectionAuthMethods),
    tls_client_certificate_bound_access_tokens: grantDeps.integrations
      .values()
      .some(({ bindToCertificate }) => bindToCertificate),
    ...(service.proofs !== undefined && {
      dpop_signing_alg_values_supported: [...service.proofs.algorithms],
    }),
  };
}

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
