import type { z } from 'zod';
import { type Integration, isConfidential } from '../domain/integration.ts';
import { hasCodeGrant } from '../grants/authorization-request.ts';
import { deviceAuthorization, pushedAuthorization } from './authorization-requests.ts';
import { JWKS_PATH } from './documents.ts';
import { introspect, mayClientIntrospect } from './introspect.ts';
import { revoke } from './revoke.ts';
import type { Metadata } from './schemas.ts';
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
