import type { z } from 'zod';
import { deviceAuthorization } from './device-authorization.ts';
import { introspect } from './introspect.ts';
import { JWKS_PATH } from './jwks.ts';
import { revoke } from './revoke.ts';
import type { OAuthService } from './service.ts';
import { grantTypes, token } from './token.ts';
import type { Metadata } from './wire.ts';

/**
 * RFC 8414 §2: where everything is, and what is served under this configuration. `below` is the path of the issuer
 * whose metadata was asked for (§3.1): clients compare `issuer` with the one they were given, to the letter.
 */
export function metadataOf(service: OAuthService, below: string): z.output<typeof Metadata> {
  const { publicUrl, path, desk, introspection } = service;
  const at = (operation: string): string => `${publicUrl}${path}${operation}`;
  const byCertificate = service.certificates ? ['tls_client_auth'] : [];
  const introspects = [
    ...(introspection.access.length > 0 ? byCertificate : []),
    ...(introspection.requires === undefined ? [] : ['Bearer']),
  ];
  return {
    issuer: `${publicUrl}${below}`,
    token_endpoint: at(token.path),
    ...(desk.policy.device.enabled && { device_authorization_endpoint: at(deviceAuthorization.path) }),
    revocation_endpoint: at(revoke.path),
    ...(introspects.length > 0 && { introspection_endpoint: at(introspect.path) }),
    jwks_uri: at(JWKS_PATH),
    grant_types_supported: grantTypes(service),
    // There is no authorization endpoint, so there are none.
    response_types_supported: [],
    token_endpoint_auth_methods_supported: ['none', ...byCertificate],
    revocation_endpoint_auth_methods_supported: ['none'],
    ...(introspects.length > 0 && { introspection_endpoint_auth_methods_supported: introspects }),
    tls_client_certificate_bound_access_tokens: desk.integrations
      .values()
      .some(({ bindToCertificate }) => bindToCertificate),
  };
}
