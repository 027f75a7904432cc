import type { ForwardRequest } from './exchange.ts';
import { getCorsFields, replaceCorsFields } from './policy/cors.ts';
import type { ClientFields, ResponseHead } from './upstream/response-head.ts';

/** The header fields of an upstream's response, as its client gets them. `X-Request-Id` is not among them. */
export function clientFields({ config, allowed, host, rawHeaders }: ForwardRequest, head: ResponseHead): ClientFields {
  const { headers, rewriter } = config;
  const { rule } = allowed;
  const isCacheable = !head.hasLocation && rule.cors === undefined;
  if (isCacheable && head.clientFields?.by === headers) return head.clientFields;
  const location = head.hasLocation ? rewriter.getLocationRewrite(allowed, host) : undefined;
  const list = headers.buildResponseHeaders(head.rawHeaders, head.status, location);
  const cors = getCorsFields(rule, rawHeaders);
  const fields: ClientFields = {
    by: headers,
    list: cors === undefined ? list : replaceCorsFields(list, cors),
    text: '',
    block: undefined,
  };
  if (isCacheable) head.clientFields = fields;
  return fields;
}
