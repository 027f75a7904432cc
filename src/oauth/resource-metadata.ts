import type { z } from 'zod';
import type { Reply } from '../http/reply.ts';
import type { RequestContext } from '../http/request-context.ts';
import { createServiceReply } from '../http/service-response.ts';
import { serveDocument } from './document.ts';
import type { ProtectedResource } from './schemas.ts';

const RULE = 'oauth2:resource_metadata';

/** RFC 9728 §3.1: GET /.well-known/oauth-protected-resource, optionally followed by a path of the API. */
export function handleResourceMetadata(
  context: RequestContext,
  document: z.output<typeof ProtectedResource> | undefined,
): Reply {
  if (document !== undefined)
    return serveDocument(context, {
      rule: RULE,
      contentType: 'application/json',
      cacheControl: 'public, max-age=300',
      headers: { 'x-request-id': context.id },
      body: JSON.stringify(document),
    });
  const description = 'There is no protected resource at this path.';
  context.note({ rule: RULE, decision: 'refused', reason: 'no_resource' });
  return createServiceReply(context, {
    status: 404,
    body: { error: 'not_found', error_description: description },
    reason: description,
  });
}
