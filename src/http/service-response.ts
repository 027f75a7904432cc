import type { Refusal } from '../domain/refusal.ts';
import { redactStart } from '../lib/redact.ts';
import type { JsonResponse } from './json-response.ts';
import { createJsonReply, type Reply } from './reply.ts';
import type { RequestContext } from './request-context.ts';

/** Retry-After, in seconds, while the process is overloaded. */
export const OVERLOADED_RETRY_AFTER = 2;

export const INTERNAL_ERROR_DESCRIPTION =
  'Temporary internal error. Your credentials are not the problem; retry later.';

/** The certificate header of a front proxy is repeated, or there is one of a similar name. */
export const AMBIGUOUS_CERTIFICATE = {
  reason: 'request_malformed',
  detail: 'The forwarded client certificate is ambiguous.',
} as const satisfies Refusal;

/** Slots become free when device codes expire. */
const DEVICE_REQUESTS_FULL_RETRY_AFTER = 60;

/** Seconds after which a retry may succeed; undefined if it cannot. */
export const getRetryAfter = (refusal: Refusal): number | undefined =>
  'retryAfter' in refusal
    ? refusal.retryAfter
    : refusal.reason === 'too_many_device_requests'
      ? DEVICE_REQUESTS_FULL_RETRY_AFTER
      : undefined;

/** Polling of a pending device request is not denied, and not audited. Neither is a request that the client repeats with a nonce. */
export const isDenial = ({ reason }: Refusal): boolean =>
  reason !== 'device_pending' && reason !== 'device_polled_too_soon' && reason !== 'proof_nonce_required';

/** The names that all events use. */
const AUDIT_FIELD_NAMES: Readonly<Record<string, string>> = {
  clientId: 'client',
  grantId: 'grant',
  redirectUri: 'redirect_uri',
};

const MAX_AUDIT_TEXT = 256;

/** Refusals contain no secrets, but text from clients may: it is redacted before it is truncated. */
export function toAuditFields(refusal: Refusal): Readonly<Record<string, string | number>> {
  const fields: Record<string, string | number> = {};
  for (const [name, value] of Object.entries(refusal))
    fields[AUDIT_FIELD_NAMES[name] ?? name] =
      typeof value === 'string' ? redactStart(value, MAX_AUDIT_TEXT) : Number(value);
  return fields;
}

/** With the request id, by which operators find the log lines. */
export const createServiceReply = ({ id }: Pick<RequestContext, 'id'>, jsonResponse: JsonResponse): Reply =>
  createJsonReply({ ...jsonResponse, headers: { 'x-request-id': id, ...jsonResponse.headers } });
