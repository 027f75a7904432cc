import type { PresentedCertificate } from '../domain/grant.ts';
import type { Outcome, Refusal } from '../domain/refusal.ts';
import { describeRefusal, type ErrorTable } from '../http/error-table.ts';
import type { JsonResponse } from '../http/json-response.ts';
import { type Encoding, NO_PARAMETERS, type Parameters, readParameters } from '../http/parameters.ts';
import type { Reply } from '../http/reply.ts';
import type { RequestContext } from '../http/request-context.ts';
import {
  AMBIGUOUS_CERTIFICATE,
  createServiceReply,
  getRetryAfter,
  INTERNAL_ERROR_DESCRIPTION,
  isDenial,
  OVERLOADED_RETRY_AFTER,
  toAuditFields,
} from '../http/service-response.ts';
import { getRateLimitKey, type RateLimiter } from '../lib/rate-limiter.ts';
import { errorFields, type LogFields } from '../observability/logger.ts';
import { Fault } from '../ports/fault.ts';
import { forRequest, type GrantDeps } from './deps.ts';
import { describeCertificate } from './issue.ts';
import type { RateLimitKey } from './rate-limit-key.ts';

const MAX_CLIENT_ID_LENGTH = 256;

/** What the token API (`Authorize/…`) and the OAuth endpoints (`oauth2/…`) have in common. */
export interface EndpointService<Name extends string> {
  readonly grantDeps: GrantDeps;
  /** The issuer of access tokens. */
  readonly publicUrl: string;
  /** Origin of the confirmation pages. */
  readonly pagesUrl: string;
  /** The first service path; responses refer to it. */
  readonly path: string;
  /** Seconds in which a request body must arrive. */
  readonly bodyTimeout: number;
  /** Kept across reloads, so that a reload resets no counter. */
  readonly rateLimits: Readonly<Record<Name, RateLimiter>>;
  /** The client certificate of the TLS connection, or the one that a trusted proxy forwards. */
  readonly getCertificate: (context: RequestContext) => ClientCertificate | undefined;
  /** The same with its validity now, for certificate-bound tokens. */
  readonly getPresentedCertificate: (
    context: RequestContext,
  ) => PresentedCertificate | undefined | Promise<PresentedCertificate | undefined>;
  /** Is it ambiguous which client certificate a proxy forwards? */
  readonly isCertificateAmbiguous: (context: RequestContext) => boolean;
  readonly isOverloaded?: () => boolean;
}

export interface ClientCertificate {
  readonly der: Uint8Array;
  /** SHA-256, base64url. */
  readonly fingerprint: string;
}

export interface Endpoint<Name extends string, Service extends EndpointService<Name>> {
  readonly name: Name;
  readonly method: 'POST' | 'GET';
  /** HEAD is served like GET; not where a GET has an effect. */
  readonly allowsHead?: true;
  /** Below the service path, in lower case. */
  readonly path: string;
  readonly errors: (parameters: Parameters) => ErrorTable;
  /** Where the specification allows only 400, internal errors are reported with it. Omitted: 503. */
  readonly internalErrorStatus?: 400;
  readonly body?: { readonly parameterNames: readonly string[]; readonly encodings: readonly Encoding[] };
  /** The caller, if the credential proves it. Omitted or undefined: requests are counted by address. */
  identifyCaller?(
    service: Service,
    context: RequestContext,
    parameters: Parameters,
  ): RateLimitKey | Promise<RateLimitKey>;
  handle(service: Service, context: RequestContext, parameters: Parameters): Promise<Outcome<JsonResponse>>;
}

interface ErrorFormat {
  readonly formatError: (code: string, description: string) => unknown;
}

/** How one API differs from the other on the wire and in the logs. */
export interface EndpointSet<Name extends string, Service extends EndpointService<Name>> extends ErrorFormat {
  readonly endpoints: readonly Endpoint<Name, Service>[];
  /** Name of an endpoint in the request log and in audit events. */
  readonly getRule: (name: Name) => string;
  readonly getAuditName: (name: Name) => string;
  /** RFC 9110 §11.6.1: the WWW-Authenticate field of a 401 response. */
  readonly formatChallenge: (name: Name, code: string, context: RequestContext) => string;
  /** Requests that no endpoint of this API accepts. */
  readonly findRefusal?: (name: Name, context: RequestContext, parameters: Parameters) => Refusal | undefined;
  readonly getRefusalHeaders?: (refusal: Refusal) => Readonly<Record<string, string>>;
  /** Whether the client needs a new connection for its next attempt. */
  readonly closesConnection?: (refusal: Refusal, context: RequestContext) => boolean;
}

/** Handles a request for `subpath` below the service path. */
export async function handleEndpoint<Name extends string, Service extends EndpointService<Name>>(
  api: EndpointSet<Name, Service>,
  service: Service,
  context: RequestContext,
  subpath: string,
): Promise<Reply> {
  return createServiceReply(context, await respond(api, service, context, subpath));
}

async function respond<Name extends string, Service extends EndpointService<Name>>(
  api: EndpointSet<Name, Service>,
  service: Service,
  context: RequestContext,
  subpath: string,
): Promise<JsonResponse> {
  const endpoint = api.endpoints.find(({ path }) => path === subpath.toLowerCase());
  if (endpoint === undefined) {
    context.note({ decision: 'refused', reason: 'no_such_endpoint' });
    return createErrorResponse(api, 404, 'not_found', 'No such endpoint of the token service.');
  }
  const { name, method, allowsHead } = endpoint;
  context.note({ rule: api.getRule(name) });
  if (context.request.method !== method && !(context.request.method === 'HEAD' && allowsHead)) {
    context.note({ decision: 'refused', reason: 'method_not_allowed' });
    const allow = allowsHead ? `${method}, HEAD` : method;
    return createErrorResponse(api, 405, 'invalid_request', `Use ${method}.`, { allow });
  }
  // Never shed revocations under load.
  if (name !== 'revoke' && name !== 'logout' && service.isOverloaded?.() === true) {
    context.note({ decision: 'failed', reason: 'overloaded' });
    return createInternalErrorResponse(api, endpoint, OVERLOADED_RETRY_AFTER);
  }
  try {
    return await runEndpoint(api, endpoint, service, context);
  } catch (error) {
    const isFault = error instanceof Fault;
    service.grantDeps.log.error(isFault ? 'dependency_failed' : 'internal_error', {
      request_id: context.id,
      operation: api.getAuditName(name),
      ...errorFields(error),
    });
    context.note({ decision: 'failed', reason: isFault ? error.code : 'internal_error' });
    return createInternalErrorResponse(api, endpoint, isFault ? error.retryAfter : 1);
  }
}

/** As the request states it, authenticated or not. */
function describeStatedClient(parameters: Parameters): LogFields {
  const clientId = parameters.get('client_id');
  return clientId === undefined ? {} : { client: clientId.slice(0, MAX_CLIENT_ID_LENGTH) };
}

async function runEndpoint<Name extends string, Service extends EndpointService<Name>>(
  api: EndpointSet<Name, Service>,
  endpoint: Endpoint<Name, Service>,
  sharedService: Service,
  context: RequestContext,
): Promise<JsonResponse> {
  const service = { ...sharedService, grantDeps: forRequest(sharedService.grantDeps, context) };
  const { name } = endpoint;
  let parameters = NO_PARAMETERS;
  const refuse = (refusal: Refusal): JsonResponse => {
    const { status, code, description } = describeRefusal(endpoint.errors(parameters), refusal);
    const retryAfter = getRetryAfter(refusal);
    context.note({ decision: isDenial(refusal) ? 'refused' : 'handled', reason: refusal.reason });
    if (isDenial(refusal))
      service.grantDeps.log.audit('grant_denied', {
        operation: api.getAuditName(name),
        ...describeStatedClient(parameters),
        ...toAuditFields(refusal),
        ...describePresentedCertificate(service, context, refusal),
      });
    const headers = {
      ...(retryAfter !== undefined && { 'retry-after': String(retryAfter) }),
      ...(status === 401 && { 'www-authenticate': api.formatChallenge(name, code, context) }),
      ...api.getRefusalHeaders?.(refusal),
    };
    return {
      ...createErrorResponse(api, status, code, description, headers),
      close: api.closesConnection?.(refusal, context) ?? false,
    };
  };
  const checkRateLimit = async (caller: RateLimitKey): Promise<JsonResponse | undefined> => {
    const key = caller ?? getRateLimitKey(context.clientAddress);
    const retryAfter = await service.rateLimits[name].take(key);
    return retryAfter > 0 ? refuse({ reason: 'too_many_requests', retryAfter }) : undefined;
  };

  if (service.isCertificateAmbiguous(context)) return refuse(AMBIGUOUS_CERTIFICATE);
  // Where no body identifies the caller, requests over the limit of the address are refused before the body is read.
  const isCountedByAddress = endpoint.identifyCaller === undefined;
  const addressResponse = isCountedByAddress ? await checkRateLimit(undefined) : undefined;
  if (addressResponse !== undefined) return addressResponse;
  if (endpoint.body !== undefined) {
    const { parameterNames, encodings } = endpoint.body;
    const result = await readParameters(context, parameterNames, encodings, service.bodyTimeout);
    if ('status' in result || !result.ok) {
      const limitResponse = isCountedByAddress ? undefined : await checkRateLimit(undefined);
      if (limitResponse !== undefined) return limitResponse;
      if (!('status' in result)) return refuse(result.refusal);
      const { status, detail } = result;
      context.note({ decision: 'refused', reason: status === 413 ? 'body_too_large' : 'client_too_slow' });
      return { ...createErrorResponse(api, status, 'invalid_request', detail), close: true };
    }
    parameters = result.value;
  }
  if (!isCountedByAddress) {
    const limitResponse = await checkRateLimit(await endpoint.identifyCaller?.(service, context, parameters));
    if (limitResponse !== undefined) return limitResponse;
  }
  const refusal = api.findRefusal?.(name, context, parameters);
  if (refusal !== undefined) return refuse(refusal);
  const outcome = await endpoint.handle(service, context, parameters);
  if (!outcome.ok) return refuse(outcome.refusal);
  context.note({ decision: 'allowed' });
  return outcome.value;
}

/** Names the certificate that was refused, and its issuer. */
function describePresentedCertificate<Name extends string>(
  { grantDeps, getCertificate }: EndpointService<Name>,
  context: RequestContext,
  { reason }: Refusal,
): LogFields {
  return /^(?:certificate|identity)_/.test(reason) ? describeCertificate(grantDeps, getCertificate(context)?.der) : {};
}

/** Temporary, and never reported as an error of the client. */
const createInternalErrorResponse = (
  api: ErrorFormat,
  { internalErrorStatus }: { readonly internalErrorStatus?: 400 },
  retryAfter: number,
): JsonResponse =>
  createErrorResponse(
    api,
    internalErrorStatus ?? 503,
    internalErrorStatus === undefined ? 'temporarily_unavailable' : 'invalid_request',
    INTERNAL_ERROR_DESCRIPTION,
    { 'retry-after': String(retryAfter) },
  );

export const createErrorResponse = (
  { formatError }: ErrorFormat,
  status: number,
  code: string,
  description: string,
  headers: Readonly<Record<string, string>> = {},
): JsonResponse => ({ status, body: formatError(code, description), headers, reason: description });
