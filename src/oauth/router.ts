import type { Refusal } from '../domain/refusal.ts';
import type { Caller } from '../grants/caller.ts';
import type { Answer } from '../http/answer.ts';
import type { Call } from '../http/call.ts';
import {
  AMBIGUOUS_CERTIFICATE,
  answerCall,
  auditable,
  isDenial,
  OWN_FAILURE,
  PRESSED_SECONDS,
  retryAfterOf,
} from '../http/face.ts';
import { NO_PARAMETERS, type Parameters, readParameters } from '../http/parameters.ts';
import { limitName } from '../http/rate-limit.ts';
import { describe, type ErrorTable } from '../http/wire-error.ts';
import { errorFields } from '../observability/logger.ts';
import { Fault } from '../ports/fault.ts';
import { deviceAuthorization } from './device-authorization.ts';
import { introspect } from './introspect.ts';
import { metadataOf } from './metadata.ts';
import { revoke } from './revoke.ts';
import type { OAuthService, Operation } from './service.ts';
import { token } from './token.ts';
import { SECRETS } from './wire.ts';

export const OPERATIONS: readonly Operation[] = [token, deviceAuthorization, revoke, introspect];

/** Everything of the standard face is below this, after the service path. */
export const OAUTH_PATH = '/oauth2';

/** Answers one call below `{service}/oauth2`. `rest` is the path after the service path, in lower case. */
export async function answerOAuth(service: OAuthService, call: Call, rest: string): Promise<void> {
  const operation = OPERATIONS.find(({ path }) => path === rest);
  if (operation === undefined)
    return answerCall(call, problem(404, 'not_found', 'There is no such operation of the token service.'));
  call.note({ rule: `oauth2:${operation.name}` });
  if (call.request.method !== 'POST')
    return answerCall(call, problem(405, 'invalid_request', 'Use POST.', { allow: 'POST' }));
  // What ends a grant is always worth its time.
  if (operation.name !== 'revoke' && service.isPressed?.() === true) {
    call.note({ decision: 'failed', reason: 'overloaded' });
    return answerCall(call, temporary(PRESSED_SECONDS));
  }
  try {
    answerCall(call, await perform(operation, service, call));
  } catch (error) {
    answerCall(call, failed(operation, service, call, error));
  }
}

/** GET /.well-known/oauth-authorization-server, and with the service path behind it. */
export function answerMetadata(service: OAuthService, call: Call, below: string): void {
  const { method = '' } = call.request;
  call.note({ rule: 'oauth2:metadata' });
  if (method !== 'GET' && method !== 'HEAD')
    return answerCall(call, problem(405, 'invalid_request', 'Use GET.', { allow: 'GET, HEAD' }));
  call.note({ decision: 'allowed' });
  answerCall(call, { status: 200, body: metadataOf(service, below) });
}

async function perform(operation: Operation, service: OAuthService, call: Call): Promise<Answer> {
  const refuse = (why: Refusal, parameters = NO_PARAMETERS): Answer =>
    refusal(operation, operation.errors(parameters), service, call, why);

  const address = limitName(call.clientAddress);
  const limited = async (caller: Caller): Promise<Answer | undefined> => {
    const wait = await service.rates[operation.name].take(caller ?? address);
    return wait > 0 ? refuse({ reason: 'too_many_requests', retryAfter: wait }) : undefined;
  };

  if (service.isAmbiguous(call)) return refuse(AMBIGUOUS_CERTIFICATE);
  const read = await readParameters(call, [...operation.known, ...SECRETS], ['form'], service.bodyTimeout);
  if ('status' in read)
    return (
      (await limited(undefined)) ??
      problem(read.status, 'invalid_request', read.detail, { connection: 'close' })
    );
  if (!read.ok) return (await limited(undefined)) ?? refuse(read.refusal);
  const parameters = read.value;
  const excess = await limited(await operation.caller?.(service, call, parameters));
  if (excess !== undefined) return excess;
  if (triesSecret(call, parameters))
    return refuse({ reason: 'client_authentication_unsupported' }, parameters);

  const outcome = await operation.answer(service, call, parameters);
  if (!outcome.ok) return refuse(outcome.refusal, parameters);
  call.note({ decision: 'allowed' });
  return outcome.value;
}

/** RFC 6749 §5.2: an authentication method that is not supported is told, and not taken for no authentication. */
const triesSecret = (call: Call, parameters: Parameters): boolean =>
  SECRETS.some((name) => parameters.get(name) !== undefined) || triesBasic(call);

const triesBasic = ({ request }: Call): boolean =>
  (request.headersDistinct['authorization'] ?? []).some((credentials) => /^basic(?:\s|$)/i.test(credentials));

function refusal(
  operation: Operation,
  table: ErrorTable,
  service: OAuthService,
  call: Call,
  why: Refusal,
): Answer {
  const { status, code, description } = describe(table, why);
  const retryAfter = retryAfterOf(why);
  call.note({ decision: 'refused', reason: why.reason });
  if (isDenial(why))
    service.desk.log.audit('grant_denied', {
      request_id: call.id,
      operation: `oauth2:${operation.name}`,
      from: call.clientAddress,
      ...auditable(why),
    });
  return problem(status, code, description, {
    ...(retryAfter !== undefined && { 'retry-after': String(retryAfter) }),
    ...(status === 401 && { 'www-authenticate': challenge(operation, code, call) }),
  });
}

/** RFC 6749 §5.2: in the scheme the client tried. A certificate has no scheme of its own; RFC 9110 asks for one all the same. */
function challenge(operation: Operation, code: string, call: Call): string {
  const realm = 'realm="gatehouse"';
  if (triesBasic(call)) return `Basic ${realm}`;
  if (operation.name !== 'introspect') return `Mutual ${realm}`;
  return code === 'invalid_client' ? `Bearer ${realm}, Mutual ${realm}` : `Bearer ${realm}, error="${code}"`;
}

/** Our own failure is never told as the client's: temporary, and worth another try. */
function failed(operation: Operation, service: OAuthService, call: Call, error: unknown): Answer {
  const known = error instanceof Fault;
  service.desk.log.error(known ? 'dependency_failed' : 'unexpected_error', {
    request_id: call.id,
    operation: `oauth2:${operation.name}`,
    ...errorFields(error),
  });
  call.note({ decision: 'failed', reason: known ? error.code : 'unexpected_error' });
  return temporary(known ? error.retryAfter : 1);
}

const temporary = (retryAfter: number): Answer =>
  problem(503, 'temporarily_unavailable', OWN_FAILURE, { 'retry-after': String(retryAfter) });

const problem = (
  status: number,
  error: string,
  description: string,
  headers: Readonly<Record<string, string>> = {},
): Answer => ({
  status,
  body: { error, error_description: asDescription(description) },
  headers,
  reason: description,
});

/** RFC 6749 §5.2: printable ASCII without quotes and backslashes. */
const asDescription = (text: string): string =>
  text.replaceAll('"', "'").replace(/[^\x20-\x5b\x5d-\x7e]/g, '?');
