import type { Call } from '../http/call.ts';
import type { Logger } from '../observability/logger.ts';

/** One line for each request, when it has ended: who, what, which rule, what was decided, how long. Never the query. */
export function requestLog(log: Logger): (call: Call) => void {
  return (call) => {
    const { request, response } = call;
    const began = performance.now();
    response.once('close', () => {
      const { rule, decision, reason, identity, clientId, grantId, upstream } = call.notes;
      log.info('request', {
        request_id: call.id,
        from: call.clientAddress,
        method: request.method,
        path: pathOf(request.url),
        status: response.headersSent ? response.statusCode : undefined,
        ...(!response.writableFinished && { cut: true }),
        ms: Math.round((performance.now() - began) * 10) / 10,
        rule,
        decision,
        reason,
        identity,
        client: clientId,
        grant: grantId,
        upstream,
      });
    });
  };
}

const MAX_PATH = 512;

const pathOf = (url = ''): string => {
  const query = url.indexOf('?');
  return (query < 0 ? url : url.slice(0, query)).slice(0, MAX_PATH);
};
