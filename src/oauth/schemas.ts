import * as z from 'zod';
import { deviceNameField, integerField, nonEmptyField, textField } from '../http/schema-fields.ts';
import { SUBJECT_TOKEN_TYPES, type SubjectTokenType } from '../tokens/trusted-issuers/trusted-issuers.ts';

/** Requests and responses. The endpoints take their parameter names and types from here, and so does the OpenAPI document. */

export const clientId = nonEmptyField('The API integration.').meta({ examples: ['report-runner'] });
const scope = nonEmptyField(
  '`resource:permission`, with spaces between items. The syntax of the token API (`;` between items, `,` between permissions) is accepted, too.',
).meta({
  examples: ['files:read reports:read reports:write'],
});

/** RFC 6749 §2.3.1, RFC 7521 §4.2. */
export const CLIENT_AUTH_PARAMETERS = ['client_secret', 'client_assertion', 'client_assertion_type'] as const;
export const CLIENT_ASSERTION_TYPE = 'urn:ietf:params:oauth:client-assertion-type:jwt-bearer';

const clientAuthentication = {
  client_secret: nonEmptyField('`client_secret_post`; or use HTTP Basic authentication.').exactOptional(),
  client_assertion: nonEmptyField('`private_key_jwt`: a JWT signed by the client (RFC 7523 §2.2).').exactOptional(),
  client_assertion_type: z
    .literal(CLIENT_ASSERTION_TYPE)
    .exactOptional()
    .meta({ description: 'With client_assertion.' }),
};
/** Omitted where the client authenticates with HTTP Basic or an assertion, which name it. */
const optionalClientId = clientId.exactOptional();

export const GRANT_TYPES = [
  'urn:ietf:params:oauth:grant-type:device_code',
  'refresh_token',
  'client_credentials',
  'urn:ietf:params:oauth:grant-type:token-exchange',
  'urn:ietf:params:oauth:grant-type:jwt-bearer',
  'authorization_code',
] as const;

/** RFC 8693 §3. */
const TOKEN_TYPE_PREFIX = 'urn:ietf:params:oauth:token-type:';
export const ACCESS_TOKEN_TYPE = `${TOKEN_TYPE_PREFIX}access_token`;
export const SUBJECT_TOKEN_TYPE_URNS: ReadonlyMap<string, SubjectTokenType> = new Map(
  SUBJECT_TOKEN_TYPES.map((type) => [`${TOKEN_TYPE_PREFIX}${type}`, type]),
);

export const TokenRequest = z.looseObject({
  grant_type: z.enum(GRANT_TYPES).meta({
    description: 'RFC 8628 §3.4, RFC 6749 §6, RFC 6749 §4.4, RFC 8693 §2.1, RFC 7523 §2.1, RFC 6749 §4.1.3.',
  }),
  client_id: optionalClientId,
  ...clientAuthentication,
  device_code: nonEmptyField('With the device grant.').exactOptional(),
  code: nonEmptyField('With authorization_code: from the authorization response; valid once.').exactOptional(),
  redirect_uri: nonEmptyField('With authorization_code: as in the authorization request.').exactOptional(),
  code_verifier: nonEmptyField('With authorization_code: matches the code_challenge (RFC 7636).').exactOptional(),
  refresh_token: nonEmptyField('With refresh_token: from the latest response.').exactOptional(),
  scope: scope.exactOptional().meta({
    description:
      'With client_credentials, token-exchange and jwt-bearer; if omitted, everything that the integration and the identity allow. With refresh_token: at most the scope of the grant.',
  }),
  subject_token: nonEmptyField('With token-exchange: a JWT from a trusted issuer.').exactOptional(),
  subject_token_type: z
    .enum([...SUBJECT_TOKEN_TYPE_URNS.keys()])
    .exactOptional()
    .meta({ description: 'With token-exchange: the type of subject_token (RFC 8693 §3).' }),
  requested_token_type: z
    .literal(ACCESS_TOKEN_TYPE)
    .exactOptional()
    .meta({ description: 'With token-exchange: only access tokens are issued.' }),
  actor_token: nonEmptyField('Not supported: refused.').exactOptional(),
  actor_token_type: nonEmptyField('Not supported: refused.').exactOptional(),
  resource: nonEmptyField(
    'The API that the token is for: an audience of the integration (RFC 8707), or the `resource` of protected resource metadata (RFC 9728). If omitted, the default audience.',
  ).exactOptional(),
  audience: nonEmptyField(
    'The same as resource (RFC 8693 §2.1). If both are sent, they must be equal.',
  ).exactOptional(),
  assertion: nonEmptyField('With jwt-bearer: a JWT from a trusted issuer.').exactOptional(),
});

export const TokenResponse = z.object({
  access_token: textField('Sent as `Authorization: Bearer …`; opaque to the client.'),
  token_type: z.enum(['Bearer', 'DPoP']).meta({
    description: 'DPoP if the request had a proof (RFC 9449 §5): requests with the token need one too.',
  }),
  expires_in: integerField('Seconds until the access token expires.'),
  issued_token_type: z
    .literal(ACCESS_TOKEN_TYPE)
    .exactOptional()
    .meta({ description: 'With token-exchange (RFC 8693 §2.2.1).' }),
  refresh_token: textField(
    'Exchanged for the next pair; valid once. Not returned for client_credentials, and for token-exchange and jwt-bearer only where the integration allows it.',
  ).exactOptional(),
  scope: textField('The granted scope, separated by spaces, with one permission per item (RFC 6749 §3.3).'),
});

export const DeviceAuthorizationRequest = z.looseObject({
  client_id: optionalClientId,
  ...clientAuthentication,
  scope,
  device_name: deviceNameField,
});

export const DeviceAuthorizationResponse = z.object({
  device_code: textField('Sent when polling for the token.'),
  user_code: textField('Shown to the user, as `XXXX-XXXX`.'),
  verification_uri: textField('Where the user enters it.'),
  verification_uri_complete: textField('The same URL with the code, for a QR code.'),
  expires_in: integerField('Seconds until the codes expire.'),
  interval: integerField('Minimum seconds between polls; 5 more after each slow_down.'),
});

/** PAR and GET oauth2/authorize take these parameters. */
export const authorizationParameters = {
  response_type: z.literal('code'),
  redirect_uri: nonEmptyField('One of `redirectUris` of the integration.'),
  code_challenge: nonEmptyField('RFC 7636 §4.2.'),
  code_challenge_method: z.literal('S256'),
  scope: scope.exactOptional().meta({
    description: 'If omitted, everything that the integration and the user allow.',
  }),
  state: nonEmptyField('Returned unchanged.').exactOptional(),
  resource: nonEmptyField('The API that the token is for (RFC 8707).').exactOptional(),
  audience: nonEmptyField('The same as resource.').exactOptional(),
  response_mode: z.literal('query').exactOptional(),
  prompt: nonEmptyField('`login`, `select_account`: a new sign-in. `none` is refused.').exactOptional(),
  max_age: nonEmptyField('Maximum age of the sign-in, in seconds.').exactOptional(),
  dpop_jkt: nonEmptyField('Thumbprint of the DPoP key of the token request (RFC 9449 §10).').exactOptional(),
};

export const PushedAuthorizationRequest = z.looseObject({
  client_id: optionalClientId,
  ...clientAuthentication,
  ...authorizationParameters,
});

export const PushedAuthorizationResponse = z.object({
  request_uri: textField('Sent to oauth2/authorize with client_id; decided once.'),
  expires_in: integerField('Seconds until it expires.'),
});

export const RevocationRequest = z.looseObject({
  token: nonEmptyField('An access or a refresh token.'),
  token_type_hint: nonEmptyField('Ignored.').exactOptional(),
  client_id: clientId.exactOptional().meta({ description: 'When sent, only a token of this integration is revoked.' }),
  ...clientAuthentication,
});

export const LogoutRequest = z.looseObject({
  logout_token: nonEmptyField('A logout token from a trusted issuer (OpenID Connect Back-Channel Logout 1.0).'),
});

export const IntrospectionRequest = z.looseObject({
  token: nonEmptyField('An access token.'),
  token_type_hint: nonEmptyField('Ignored.').exactOptional(),
  client_id: clientId
    .exactOptional()
    .meta({ description: 'The caller, with client_secret or client_assertion; otherwise ignored.' }),
  ...clientAuthentication,
});

export const IntrospectionResponse = z.union([
  z.object({ active: z.literal(false) }),
  z.object({
    active: z.literal(true),
    scope: textField('The current scope, separated by spaces, with one permission per item.'),
    client_id: clientId,
    token_type: z.enum(['Bearer', 'DPoP']).meta({ description: 'DPoP: each request needs a proof (RFC 9449).' }),
    exp: integerField('When it expires.'),
    iat: integerField('When it was issued.'),
    sub: textField('The user, as `label:id`.'),
    username: textField('The user name, if `tokens.claims` contains `name`.').exactOptional(),
    email: textField('The email address, if `tokens.claims` contains `email`.').exactOptional(),
    groups: z.array(z.string()).describe('The groups, if `tokens.claims` contains `groups`.').exactOptional(),
    aud: textField('The audience.'),
    iss: textField('The issuer.'),
    jti: textField('Grant and generation.'),
    cnf: z
      .object({
        'x5t#S256': textField('SHA-256 of the certificate that the token is bound to (RFC 8705 §3.1).').exactOptional(),
        jkt: textField('Thumbprint of the DPoP key that the token is bound to (RFC 9449 §6.1).').exactOptional(),
      })
      .exactOptional(),
  }),
]);

export const Metadata = z.object({
  issuer: textField('The issuer identifier.'),
  authorization_endpoint: textField('GET oauth2/authorize.').exactOptional(),
  pushed_authorization_request_endpoint: textField('POST oauth2/par.').exactOptional(),
  token_endpoint: textField('POST oauth2/token.'),
  device_authorization_endpoint: textField('POST oauth2/device_authorization.').exactOptional(),
  revocation_endpoint: textField('POST oauth2/revoke.'),
  introspection_endpoint: textField('POST oauth2/introspect.').exactOptional(),
  jwks_uri: textField('GET oauth2/jwks.'),
  grant_types_supported: z.array(z.string()),
  response_types_supported: z.array(z.string()),
  response_modes_supported: z.array(z.string()).exactOptional(),
  code_challenge_methods_supported: z.array(z.string()).exactOptional(),
  authorization_response_iss_parameter_supported: z.boolean().exactOptional(),
  client_id_metadata_document_supported: z.boolean().exactOptional(),
  token_endpoint_auth_methods_supported: z.array(z.string()),
  token_endpoint_auth_signing_alg_values_supported: z.array(z.string()).exactOptional(),
  revocation_endpoint_auth_methods_supported: z.array(z.string()),
  revocation_endpoint_auth_signing_alg_values_supported: z.array(z.string()).exactOptional(),
  introspection_endpoint_auth_methods_supported: z.array(z.string()).exactOptional(),
  introspection_endpoint_auth_signing_alg_values_supported: z.array(z.string()).exactOptional(),
  tls_client_certificate_bound_access_tokens: z.boolean(),
  dpop_signing_alg_values_supported: z.array(z.string()).exactOptional(),
});

/** RFC 9728 §2. */
export const ProtectedResource = z.object({
  resource: textField('URL of the API, or of the requested path.'),
  authorization_servers: z.array(z.string()).readonly().meta({ description: 'Issuers whose tokens are accepted.' }),
  scopes_supported: z.array(z.string()).readonly().exactOptional().meta({ description: 'Scopes that routes require.' }),
  bearer_methods_supported: z.array(z.literal('header')).readonly(),
  tls_client_certificate_bound_access_tokens: z.boolean(),
  dpop_signing_alg_values_supported: z
    .array(z.string())
    .readonly()
    .exactOptional()
    .meta({ description: 'Algorithms of DPoP proofs (RFC 9449); omitted if DPoP is off.' }),
  resource_name: textField('`resourceMetadata.name`.').exactOptional(),
  resource_documentation: textField('`resourceMetadata.documentation`.').exactOptional(),
});
