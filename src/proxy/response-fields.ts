import { encodeResponseFields } from '../listener/http2/hpack-encoder.ts';
import { formatFields } from './downstream/response-text.ts';
import type { ForwardRequest } from './exchange.ts';
import { getCorsFields, replaceCorsFields } from './policy/cors.ts';
import type { ClientFields, ResponseHead } from './upstream/response-head.ts';

/** The header fields of an upstream's response, as its client gets them. `X-Request-Id` is not among them. */
export function clientFields(
  { config, allowed, host, rawHeaders }: ForwardRequest,
  head: ResponseHead,
): ClientFields {
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

/** The same as one text, each field with its CRLF. */
export function clientFieldsText(request: ForwardRequest, head: ResponseHead): string {
  const fields = clientFields(request, head);
  if (fields.text === '') fields.text = formatFields(fields.list);
  return fields.text;
}

/** The same as a header block of HTTP/2, with the status. */
export function clientFieldsBlock(request: ForwardRequest, head: ResponseHead): Buffer {
  const fields = clientFields(request, head);
  fields.block ??= encodeResponseFields(head.status, fields.list);
  return fields.block;
}
