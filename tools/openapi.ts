import { z } from 'zod';
import { createDocument, type ZodOpenApiOperationObject, type ZodOpenApiResponsesObject } from 'zod-openapi';
import packageJson from '../package.json' with { type: 'json' };
import * as seed from '../src/authsvc/token-api.ts';
import { nonEmptyField } from '../src/http/schema-fields.ts';
import * as standard from '../src/oauth/schemas.ts';
import { type DocumentedOperation, listErrorCodes, OAUTH_ENDPOINTS, TOKEN_API } from './errors-page.ts';

/** The default service path; gatehouse replaces it with the configured one when it serves the document. */
const SERVICE = '/authsvc';
const FORM = 'application/x-www-form-urlencoded';

const EmptyResponse = z.object({});

/** RFC 7517 §5. */
const JwkSet = z.object({
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

/** GET oauth2/authorize. */
const AuthorizationQuery = z.looseObject({
  client_id: standard.clientId,
  ...standard.authorizationParameters,
  response_type: standard.authorizationParameters.response_type.exactOptional(),
  redirect_uri: standard.authorizationParameters.redirect_uri.exactOptional(),
  code_challenge: standard.authorizationParameters.code_challenge.exactOptional(),
  code_challenge_method: standard.authorizationParameters.code_challenge_method.exactOptional(),
  request_uri: nonEmptyField(
    'From oauth2/par; replaces all other parameters except client_id. Without it, response_type, redirect_uri and code_challenge are required.',
  ).exactOptional(),
});

/** Defines the schema once in `components` and references it elsewhere. */
const named = <S extends z.ZodType>(id: string, schema: S): S => schema.meta({ ...schema.meta(), id });

const header = (description: string) => z.string().meta({ description });
const HEADERS = {
  'Retry-After': header('Seconds to wait; then the same request is worth another try.'),
  'WWW-Authenticate': header('What to authenticate with.'),
  'Cache-Control': header('`no-store`'),
  'X-Request-Id': header('The `request_id` of the log lines of this request.'),
};

const responseHeaders = (...names: (keyof typeof HEADERS)[]) =>
  z.object(Object.fromEntries(names.map((name) => [name, HEADERS[name].exactOptional()])));

const STATUS_DESCRIPTIONS: Readonly<Record<number, string>> = {
  200: 'OK',
  400: 'Refused, for what was sent or for what it is worth. With `Retry-After`: nothing is wrong with the client.',
  401: 'Not authenticated.',
  408: 'The body did not arrive in time.',
  413: 'The body is larger than 16 KiB.',
  429: 'Too many requests.',
  503: 'A failure of our own; temporary.',
};

/** The error format of the token API or of the OAuth endpoints. */
interface ErrorFormat {
  readonly operations: readonly DocumentedOperation[];
  readonly body: (codes: readonly [string, ...string[]]) => z.ZodType;
}

const TOKEN_API_ERRORS: ErrorFormat = {
  operations: TOKEN_API,
  body: (codes) => z.object({ Error: z.enum(codes), Error_description: z.string() }),
};
const OAUTH_ERRORS: ErrorFormat = {
  operations: OAUTH_ENDPOINTS,
  body: (codes) => z.object({ error: z.enum(codes), error_description: z.string() }),
};

interface OperationErrors {
  readonly format: ErrorFormat;
  readonly path: string;
  readonly fault: 400 | 503;
  readonly hasBody: boolean;
}

/** The error responses of an operation: those of its table, and those that all operations share. */
function errorResponses({ format, path, fault, hasBody }: OperationErrors): ZodOpenApiResponsesObject {
  const codes = listErrorCodes(format.operations, path);
  const add = (status: number, code: string): void =>
    void codes.set(status, (codes.get(status) ?? new Set()).add(code));
  if (hasBody) {
    add(408, 'invalid_request');
    add(413, 'invalid_request');
  }
  add(fault, fault === 503 ? 'temporarily_unavailable' : 'invalid_request');
  const responses: ZodOpenApiResponsesObject = {};
  for (const [status, names] of [...codes].toSorted(([a], [b]) => a - b)) {
    const [first = '', ...rest] = [...names].toSorted();
    responses[`${status}` as '400'] = {
      description: STATUS_DESCRIPTIONS[status] ?? '',
      headers: responseHeaders(
        'Cache-Control',
        'X-Request-Id',
        ...(status === 401 ? (['WWW-Authenticate'] as const) : []),
        ...([400, 429, 503].includes(status) ? (['Retry-After'] as const) : []),
      ),
      content: { 'application/json': { schema: format.body([first, ...rest]) } },
    };
  }
  return responses;
}

const okResponse = (schema: z.ZodType, type = 'application/json'): ZodOpenApiResponsesObject => ({
  200: {
    description: STATUS_DESCRIPTIONS[200] ?? '',
    headers: responseHeaders('Cache-Control', 'X-Request-Id'),
    content: { [type]: { schema } },
  },
});

/** HEAD has the same responses as GET, without a body. */
const headOperation = ({ responses, ...operation }: ZodOpenApiOperationObject): ZodOpenApiOperationObject => ({
  ...operation,
  operationId: `${operation.operationId}Head`,
  summary: `${operation.summary} (head only)`,
  responses: Object.fromEntries(
    Object.entries(responses).map(([status, { content: _content, ...rest }]) => [status, rest]),
  ),
});

const TOKEN_API_TAG = 'Token service';
const OAUTH_TAG = 'OAuth 2.0';

const tokenApiPost = (
  operationId: string,
  path: string,
  summary: string,
  request: z.ZodType,
  forms: boolean,
  granted: z.ZodType,
  security: ZodOpenApiOperationObject['security'] = [],
): ZodOpenApiOperationObject => ({
  operationId,
  summary,
  tags: [TOKEN_API_TAG],
  ...(security && { security }),
  requestBody: {
    required: true,
    content: { 'application/json': { schema: request }, ...(forms && { [FORM]: { schema: request } }) },
  },
  responses: {
    ...okResponse(granted),
    ...errorResponses({ format: TOKEN_API_ERRORS, path, fault: 400, hasBody: true }),
  },
});

const tokenApiGet = (operationId: string, path: string, summary: string, granted: z.ZodType) => ({
  operationId,
  summary,
  tags: [TOKEN_API_TAG],
  security: [{ bearer: [] }],
  responses: {
    ...okResponse(granted),
    ...errorResponses({ format: TOKEN_API_ERRORS, path, fault: 503, hasBody: false }),
  },
});

const oauthPost = (
  operationId: string,
  path: string,
  summary: string,
  request: z.ZodType,
  granted: z.ZodType,
  security: NonNullable<ZodOpenApiOperationObject['security']> = [],
): ZodOpenApiOperationObject => ({
  operationId,
  summary,
  tags: [OAUTH_TAG],
  security,
  requestBody: { required: true, content: { [FORM]: { schema: request } } },
  responses: {
    ...okResponse(granted),
    ...errorResponses({ format: OAUTH_ERRORS, path, fault: 503, hasBody: true }),
  },
});

/** Public metadata, without authentication. */
const publicGet = (
  operationId: string,
  summary: string,
  granted: z.ZodType,
  type = 'application/json',
): ZodOpenApiOperationObject => ({
  operationId,
  summary,
  tags: [OAUTH_TAG],
  security: [],
  responses: okResponse(granted, type),
});

const proxyError = z.object({
  error: z.string(),
  error_description: z.string(),
  request_id: z.string(),
});

const check: ZodOpenApiOperationObject = {
  operationId: 'check',
  summary: 'Forward-auth: may this request pass, and as whom?',
  description:
    'For gateways listed in `trustedProxies`, by any method. They tell the original request in `X-Forwarded-Method`, `X-Forwarded-Uri` and `X-Forwarded-Host`, in `X-Original-Method` and `X-Original-URL`, or as this request itself with its path after `/check`. See docs/forward-auth.md.',
  tags: ['Forward-auth'],
  security: [{ bearer: [] }, {}],
  responses: {
    200: {
      description: 'It may pass. Every identity header is set, and empty where there is nobody.',
      headers: z.object({
        'X-Forwarded-User': header('Who is calling.').exactOptional(),
        'X-Forwarded-Client-Id': header('By which API integration.').exactOptional(),
        'X-Forwarded-Scope': header('What for, in normal form.').exactOptional(),
        'X-Request-Id': HEADERS['X-Request-Id'].exactOptional(),
      }),
    },
    ...Object.fromEntries(
      ([401, 403, 429, 503] as const).map((status) => [
        status,
        {
          description: STATUS_DESCRIPTIONS[status] ?? 'It may not pass, or it is not clear what is asked.',
          headers: responseHeaders('Cache-Control', ...(status === 401 ? (['WWW-Authenticate'] as const) : [])),
          content: { 'application/json': { schema: proxyError } },
        },
      ]),
    ),
  },
};

const metadata = publicGet('metadata', 'Where everything is (RFC 8414)', named('Metadata', standard.Metadata));
const resourceMetadata: ZodOpenApiOperationObject = {
  ...publicGet(
    'resourceMetadata',
    'What the API requires, and where tokens are issued (RFC 9728)',
    named('ProtectedResource', standard.ProtectedResource),
  ),
  description:
    'Followed by a path of the API, it describes that path; 404 where no token is required. Not served if `resourceMetadata.enabled` is false.',
};
const jwks = publicGet(
  'keys',
  'The public keys of JWT access tokens (RFC 7517)',
  named('JwkSet', JwkSet),
  'application/jwk-set+json',
);
const openApiDocument = publicGet('openapi', 'This document', z.looseObject({ openapi: z.string() }));
const verify = tokenApiGet(
  'verify',
  '/Authorize/Verify',
  'What a token is worth now',
  named('VerifyResponse', seed.VerifyResponse),
);

const authorize: ZodOpenApiOperationObject = {
  operationId: 'oauthAuthorize',
  summary: 'Starts an authorization in the browser of the user (RFC 6749 §4.1.1, RFC 7636, RFC 9126)',
  description:
    'For navigations only. Users sign in and decide on the pages; then the browser is redirected to `redirect_uri` with `code`, or `error` and `error_description`, and `state` and `iss`. Not served unless an integration has `grants: [code]`.',
  tags: [OAUTH_TAG],
  security: [],
  requestParams: { query: AuthorizationQuery },
  responses: {
    200: {
      description: 'A page that continues with the sign-in.',
      content: { 'text/html': { schema: z.string() } },
    },
    303: {
      description: 'To the redirect URI, with an error; or to the host of the pages.',
      headers: z.object({ Location: header('With `error`, `error_description`, `state` and `iss`.') }),
    },
    ...Object.fromEntries(
      (
        [
          [400, 'Client or redirect URI are not valid: nothing is sent to the redirect URI.'],
          [403, 'Not a navigation.'],
          [429, STATUS_DESCRIPTIONS[429]],
        ] as const
      ).map(([status, description]) => [
        status,
        { description: description ?? '', content: { 'text/html': { schema: z.string() } } },
      ]),
    ),
  },
};
const pushedResponses = oauthPost(
  'oauthPar',
  '/oauth2/par',
  'Pushes an authorization request; returns a reference to it (RFC 9126)',
  named('OAuthPushedAuthorizationRequest', standard.PushedAuthorizationRequest),
  named('OAuthPushedAuthorizationResponse', standard.PushedAuthorizationResponse),
);
const pushAuthorization: ZodOpenApiOperationObject = {
  ...pushedResponses,
  responses: Object.fromEntries(
    Object.entries(pushedResponses.responses).map(([status, response]) =>
      status === '200' ? ['201', { ...response, description: 'Created' }] : [status, response],
    ),
  ),
};

/** Operation ids must be unique, so the same operation at another path or method gets a suffix. */
const withIdSuffix = (operation: ZodOpenApiOperationObject, suffix: string): ZodOpenApiOperationObject => ({
  ...operation,
  operationId: `${operation.operationId}${suffix}`,
});

export const renderOpenApi = (): string =>
  `${JSON.stringify(
    createDocument({
      openapi: '3.1.0',
      info: {
        title: 'gatehouse',
        version: packageJson.version,
        description:
          'The token service, in two dialects over one core: its own, and OAuth 2.0 as the RFCs have it. Other methods are answered 405 with `Allow`. docs/token-api.md tells how to use it, docs/errors.md tells every error.',
        license: { name: 'MIT', identifier: 'MIT' },
      },
      servers: [{ url: 'https://localhost:8443', description: '`publicUrl`' }],
      tags: [{ name: TOKEN_API_TAG }, { name: OAUTH_TAG }, { name: 'Forward-auth' }],
      paths: {
        [`${SERVICE}/Authorize/Token`]: {
          post: tokenApiPost(
            'token',
            '/Authorize/Token',
            'Refreshes a token, or gives the first one after device authorization',
            named('TokenRequest', seed.TokenRequest),
            true,
            named('TokenGrant', seed.TokenGrant),
          ),
        },
        [`${SERVICE}/Authorize/Certificate`]: {
          post: tokenApiPost(
            'certificate',
            '/Authorize/Certificate',
            'A token for a caller identified by its client certificate',
            named('CertificateRequest', seed.CertificateRequest),
            false,
            named('CertificateGrant', seed.CertificateGrant),
            [{ certificate: [] }],
          ),
        },
        [`${SERVICE}/Authorize/Device`]: {
          post: tokenApiPost(
            'device',
            '/Authorize/Device',
            'Codes that a person confirms in a browser',
            named('DeviceRequest', seed.DeviceRequest),
            true,
            named('DeviceResponse', seed.DeviceResponse),
          ),
        },
        [`${SERVICE}/Authorize/Verify`]: { get: verify, head: headOperation(verify) },
        [`${SERVICE}/Revoke/Token`]: {
          get: tokenApiGet('revoke', '/Revoke/Token', 'Ends the whole grant of a token', EmptyResponse),
        },
        [`${SERVICE}/oauth2/token`]: {
          post: oauthPost(
            'oauthToken',
            '/oauth2/token',
            'A token, by authorization code, device code, refresh token or client certificate (RFC 6749, 8628, 8705)',
            named('OAuthTokenRequest', standard.TokenRequest),
            named('OAuthTokenResponse', standard.TokenResponse),
            [{}, { certificate: [] }],
          ),
        },
        [`${SERVICE}/oauth2/authorize`]: { get: authorize, head: headOperation(authorize) },
        [`${SERVICE}/oauth2/par`]: {
          post: pushAuthorization,
        },
        [`${SERVICE}/oauth2/device_authorization`]: {
          post: oauthPost(
            'oauthDevice',
            '/oauth2/device_authorization',
            'Codes that a person confirms in a browser (RFC 8628)',
            named('OAuthDeviceAuthorizationRequest', standard.DeviceAuthorizationRequest),
            named('OAuthDeviceAuthorizationResponse', standard.DeviceAuthorizationResponse),
          ),
        },
        [`${SERVICE}/oauth2/revoke`]: {
          post: oauthPost(
            'oauthRevoke',
            '/oauth2/revoke',
            'Ends the whole grant of a token; also 200 for a token that is not ours (RFC 7009)',
            named('OAuthRevocationRequest', standard.RevocationRequest),
            named('OAuthRevocationResponse', EmptyResponse),
          ),
        },
        [`${SERVICE}/oauth2/backchannel_logout`]: {
          post: oauthPost(
            'oauthLogout',
            '/oauth2/backchannel_logout',
            'A trusted issuer reports a logout (OpenID Connect Back-Channel Logout 1.0); only if `trustedIssuers.<name>.logout` is set',
            named('OAuthLogoutRequest', standard.LogoutRequest),
            named('OAuthLogoutResponse', z.object({})),
          ),
        },
        [`${SERVICE}/oauth2/introspect`]: {
          post: oauthPost(
            'oauthIntrospect',
            '/oauth2/introspect',
            'What an access token is worth now, for resource servers (RFC 7662)',
            named('OAuthIntrospectionRequest', standard.IntrospectionRequest),
            named('OAuthIntrospectionResponse', standard.IntrospectionResponse),
            [{ bearer: [] }, { certificate: [] }],
          ),
        },
        [`${SERVICE}/oauth2/jwks`]: { get: jwks, head: headOperation(jwks) },
        [`${SERVICE}/openapi.json`]: { get: openApiDocument, head: headOperation(openApiDocument) },
        [`${SERVICE}/check`]: { get: check },
        '/.well-known/oauth-protected-resource': {
          get: resourceMetadata,
          head: headOperation(resourceMetadata),
        },
        '/.well-known/oauth-authorization-server': { get: metadata, head: headOperation(metadata) },
        [`/.well-known/oauth-authorization-server${SERVICE}`]: {
          get: withIdSuffix(metadata, 'OfServicePath'),
          head: headOperation(withIdSuffix(metadata, 'OfServicePath')),
        },
      },
      components: {
        securitySchemes: {
          bearer: { type: 'http', scheme: 'bearer', description: 'An access token.' },
          certificate: { type: 'mutualTLS', description: 'A client certificate of an approved issuer.' },
        },
      },
    }),
    null,
    2,
  )}\n`;
