import { z } from 'zod';
import { sent, text, whole } from '../http/wire-fields.ts';

/**
 * What the operations read and answer. The names an operation reads come from here, its answers are held against these
 * types when it is compiled, and the OpenAPI document is made of them.
 */

const clientId = sent('The API integration.').meta({ examples: ['report-runner'] });
const scope = sent('`resource:permission,permission`, with spaces (or `;`) between items.').meta({
  examples: ['files:read reports:read,write'],
});

/** Read only to be refused: clients have no secrets here, and must not think that theirs was checked. */
export const SECRETS = ['client_secret', 'client_assertion'] as const;

export const GRANT_TYPES = [
  'urn:ietf:params:oauth:grant-type:device_code',
  'refresh_token',
  'client_credentials',
] as const;

export const TokenRequest = z.looseObject({
  grant_type: z.enum(GRANT_TYPES).meta({ description: 'RFC 8628 §3.4, RFC 6749 §6, RFC 6749 §4.4.' }),
  client_id: clientId,
  device_code: sent('With the device grant.').exactOptional(),
  refresh_token: sent('With refresh_token: of the latest answer.').exactOptional(),
  scope: scope.exactOptional().meta({
    description:
      'With client_credentials; left out: all that integration and identity allow. With refresh_token: within the grant.',
  }),
});

export const TokenAnswer = z.object({
  access_token: text('Sent as `Authorization: Bearer …`; opaque to the client.'),
  token_type: z.literal('Bearer'),
  expires_in: whole('Seconds until it ends.'),
  refresh_token: text('Buys the next pair, once. Not with client_credentials.').exactOptional(),
  scope: text('What was given.'),
});

export const DeviceAuthorizationRequest = z.looseObject({ client_id: clientId, scope });

export const DeviceAuthorizationAnswer = z.object({
  device_code: text('To ask with.'),
  user_code: text('To show to a person, as `XXXX-XXXX`.'),
  verification_uri: text('Where the person types it.'),
  verification_uri_complete: text('The same with the code, for a QR code.'),
  expires_in: whole('Seconds until the codes end.'),
  interval: whole('Seconds between two questions; 5 more after each slow_down.'),
});

export const RevocationRequest = z.looseObject({
  token: sent('An access or a refresh token.'),
  token_type_hint: sent('Not needed.').exactOptional(),
  client_id: clientId
    .exactOptional()
    .meta({ description: 'When sent, only a token of this integration is revoked.' }),
});

export const RevocationAnswer = z.object({});

export const IntrospectionRequest = z.looseObject({
  token: sent('An access token.'),
  token_type_hint: sent('Not needed.').exactOptional(),
  client_id: clientId.exactOptional().meta({ description: 'Not needed.' }),
});

export const IntrospectionAnswer = z.union([
  z.object({ active: z.literal(false) }),
  z.object({
    active: z.literal(true),
    scope: text('What it is worth now, with spaces between items.'),
    client_id: clientId,
    token_type: z.literal('Bearer'),
    exp: whole('When it ends.'),
    iat: whole('When it was made.'),
    sub: text('Whose it is, as `label:id`.'),
    aud: text('For whom.'),
    iss: text('By whom.'),
    jti: text('Grant and generation.'),
    cnf: z
      .object({ 'x5t#S256': text('SHA-256 of the certificate it works with (RFC 8705).') })
      .exactOptional(),
  }),
]);

export const Metadata = z.object({
  issuer: text('As the client was given it.'),
  token_endpoint: text('POST oauth2/token.'),
  device_authorization_endpoint: text('POST oauth2/device_authorization.').exactOptional(),
  revocation_endpoint: text('POST oauth2/revoke.'),
  introspection_endpoint: text('POST oauth2/introspect.').exactOptional(),
  jwks_uri: text('GET oauth2/jwks.'),
  grant_types_supported: z.array(z.string()),
  response_types_supported: z.array(z.string()),
  token_endpoint_auth_methods_supported: z.array(z.string()),
  revocation_endpoint_auth_methods_supported: z.array(z.string()),
  introspection_endpoint_auth_methods_supported: z.array(z.string()).exactOptional(),
  tls_client_certificate_bound_access_tokens: z.boolean(),
});

/** RFC 7517 §5. */
export const KeySet = z.object({
  keys: z.array(
    z.looseObject({
      kty: z.string(),
      kid: z.string(),
      alg: z.string(),
      use: z.literal('sig'),
      crv: z.string(),
      x: z.string(),
    }),
  ),
});
