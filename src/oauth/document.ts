import type { Reply } from '../http/reply.ts';
import type { RequestContext } from '../http/request-context.ts';
import { createServiceReply } from '../http/service-response.ts';

interface PublicDocument {
  readonly rule: string;
  readonly contentType: string;
  readonly cacheControl: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly body: string | Buffer;
}

/** Serves a public document to GET and HEAD requests. */
export function serveDocument(context: RequestContext, document: PublicDocument): Reply {
  const { rule, contentType, cacheControl, headers, body } = document;
  const { method } = context.request;
  if (method !== 'GET' && method !== 'HEAD') {
    context.note({ rule, decision: 'refused', reason: 'method_not_allowed' });
    return createServiceReply(context, {
      status: 405,
      body: { error: 'invalid_request', error_description: 'Use GET.' },
      headers: { allow: 'GET, HEAD' },
      reason: 'Use GET.',
    });
  }
  context.note({ rule, decision: 'allowed' });
  return {
    status: 200,
    headers: {
      'content-type': contentType,
      'cache-control': cacheControl,
      'x-content-type-options': 'nosniff',
      ...headers,
    },
    body,
  };
}
