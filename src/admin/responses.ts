import type { JsonResponse } from '../http/json-response.ts';

export const createErrorResponse = (
  status: number,
  error: string,
  error_description?: string,
  headers: Readonly<Record<string, string>> = {},
): JsonResponse => ({
  status,
  body: { error, ...(error_description !== undefined && { error_description }) },
  headers,
});

export const METHOD_NOT_ALLOWED = createErrorResponse(405, 'method_not_allowed', undefined, {
  allow: 'GET, HEAD',
});

/** RFC 9110 §15.5.20. */
export const MISDIRECTED = createErrorResponse(
  421,
  'misdirected_request',
  'The admin listener does not serve this host name; use an IP address, or add the name to admin.hostNames and restart gatehouse.',
);

export const FROM_BROWSER = createErrorResponse(403, 'access_denied', 'Requests from web pages are not accepted.');

export const UNAUTHENTICATED = createErrorResponse(
  401,
  'invalid_token',
  'Send the admin token as Authorization: Bearer, or a client certificate issued by admin.tls.clientCa.',
  { 'www-authenticate': 'Bearer realm="gatehouse administration"' },
);

export const READ_ONLY = createErrorResponse(403, 'access_denied', 'This credential may view grants, not revoke them.');

export const STORE_NOT_READY = createErrorResponse(
  503,
  'temporarily_unavailable',
  'The store has not been reached yet.',
  { 'retry-after': '1' },
);
