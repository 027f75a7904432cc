import type { DoneCall } from '../http/call.ts';
import type { Logger } from '../observability/logger.ts';
import type { CallEnd } from '../tls/listener.ts';

/** One line for each request, when it has ended: who, what, which rule, what was decided, how long. Never the query. */
export const requestLog =
  (log: Logger) =>
  (call: DoneCall, end: CallEnd): void => {
    const { rule, decision, reason, identity, clientId, grantId, upstream, original } = call.notes;
    log.info('request', {
      request_id: call.id,
      from: call.clientAddress,
      method: call.request.method,
      path: pathOf(call.request.url),
      status: end.status,
      ...(end.aborted && { aborted: true }),
      ms: Math.round(end.seconds * 10_000) / 10,
      rule,
      decision,
      reason,
      identity,
      client: clientId?.slice(0, MAX_CLIENT_ID),
      grant: grantId,
      upstream,
      original: original?.slice(0, MAX_PATH),
    });
  };

const MAX_PATH = 512;
/** As long as a client id can be; a stranger may send a longer one. */
const MAX_CLIENT_ID = 256;

const pathOf = (url = ''): string => {
  const query = url.indexOf('?');
  return (query < 0 ? url : url.slice(0, query)).slice(0, MAX_PATH);
};
