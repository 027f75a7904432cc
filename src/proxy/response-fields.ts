import type { ForwardRequest } from './exchange.ts';
import { getCorsFields, replaceCorsFields } from './policy/cors.ts';
import type { ClientFields, ResponseHead } from './upstream/response-head.ts';

/** The header fields of an upstream's response, as its client gets them. `X-Request-Id` is not among them. */
export function clientFields(request: ForwardRequest, head: ResponseHead): ClientFields {
  const { headers: by } = request.config;
  const isCacheable = !head.hasLocation && request.allowed.rule.cors === undefined;
  if (isCacheable && head.clientFields?.by === by) return head.clientFields;
  const list = listClientFields(request, head.rawHeaders, head.status, head.hasLocation);
  const fields: ClientFields = { by, list, text: '', block: undefined };
  if (isCacheable) head.clientFields = fields;
  return fields;
}

/** `hasLocation`: one of the fields may be `Location`. */
export function listClientFields(
  { config, allowed, host, rawHeaders }: Pick<ForwardRequest, 'config' | 'allowed' | 'host' | 'rawHeaders'>,
  upstreamHeaders: readonly string[],
  status: number,
  hasLocation: boolean,
): readonly string[] {
  const location = hasLocation ? config.rewriter.getLocationRewrite(allowed, host) : undefined;
  const list = config.headers.buildResponseHeaders(upstreamHeaders, status, location);
  const cors = getCorsFields(allowed.rule, rawHeaders);
  return cors === undefined ? list : replaceCorsFields(list, cors);
}
