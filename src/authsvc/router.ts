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
import { NO_PARAMETERS, readParameters } from '../http/parameters.ts';
import { limitName } from '../http/rate-limit.ts';
import { describe } from '../http/wire-error.ts';
import { errorFields } from '../observability/logger.ts';
import { Fault } from '../ports/fault.ts';
import { certificate } from './certificate.ts';
import { device } from './device.ts';
import { revoke } from './revoke.ts';
import type { Operation, Service } from './service.ts';
import { token } from './token.ts';
import { verify } from './verify.ts';

export const OPERATIONS: readonly Operation[] = [token, certificate, device, revoke, verify];

/** Answers one call below the service path. `rest` is the path after it; words are compared without case. */
export async function answerAuthsvc(service: Service, call: Call, rest: string): Promise<void> {
  const operation = OPERATIONS.find(({ path }) => path === rest.toLowerCase());
  const { method = '' } = call.request;
  if (operation === undefined)
    return answerCall(call, problem(404, 'not_found', 'There is no such operation of the token service.'));
  call.note({ rule: `authsvc:${operation.name}` });
  if (method !== operation.method && !(method === 'HEAD' && operation.head)) {
    const allow = operation.head ? `${operation.method}, HEAD` : operation.method;
    return answerCall(call, problem(405, 'invalid_request', `Use ${operation.method}.`, { allow }));
  }
  // What ends a grant is always worth its time.
  if (operation.name !== 'revoke' && service.isPressed?.() === true) {
    call.note({ decision: 'failed', reason: 'overloaded' });
    return answerCall(call, temporary(operation, PRESSED_SECONDS));
  }
  try {
    answerCall(call, await perform(operation, service, call));
  } catch (error) {
    answerCall(call, failed(operation, service, call, error));
  }
}

async function perform(operation: Operation, service: Service, call: Call): Promise<Answer> {
  const address = limitName(call.clientAddress);
  const limited = async (caller: Caller): Promise<Answer | undefined> => {
    const wait = await service.rates[operation.name].take(caller ?? address);
    return wait > 0
      ? refusal(operation, service, call, { reason: 'too_many_requests', retryAfter: wait })
      : undefined;
  };

  if (service.isAmbiguous(call)) return refusal(operation, service, call, AMBIGUOUS_CERTIFICATE);
  let parameters = NO_PARAMETERS;
  if (operation.body !== undefined) {
    const { known, accepted } = operation.body;
    const read = await readParameters(call, known, accepted, service.bodyTimeout);
    if ('status' in read)
      return (
        (await limited(undefined)) ??
        problem(read.status, 'invalid_request', read.detail, { connection: 'close' })
      );
    if (!read.ok) return (await limited(undefined)) ?? refusal(operation, service, call, read.refusal);
    parameters = read.value;
  }
  const excess = await limited(await operation.caller?.(service, call, parameters));
  if (excess !== undefined) return excess;
  const outcome = await operation.answer(service, call, parameters);
  if (!outcome.ok) return refusal(operation, service, call, outcome.refusal);
  call.note({ decision: 'allowed' });
  return outcome.value;
}

function refusal(operation: Operation, service: Service, call: Call, why: Refusal): Answer {
  const { status, code, description } = describe(operation.errors, why);
  const retryAfter = retryAfterOf(why);
  call.note({ decision: 'refused', reason: why.reason });
  if (isDenial(why))
    service.desk.log.audit('grant_denied', {
      request_id: call.id,
      operation: operation.name,
      from: call.clientAddress,
      ...auditable(why),
    });
  return problem(status, code, description, {
    ...(retryAfter !== undefined && { 'retry-after': String(retryAfter) }),
    ...(status === 401 && { 'www-authenticate': challenge(operation, code) }),
    // A resumed session keeps only the leaf, so what its chain would have said is not known: that connection ends here.
    ...(why.reason === 'certificate_issuer_not_approved' &&
      call.certificate() !== undefined && { connection: 'close' }),
  });
}

function challenge(operation: Operation, code: string): string {
  const realm = 'realm="gatehouse"';
  if (operation.name === 'certificate') return `Mutual ${realm}`;
  return `Bearer ${realm}, error="${code}"`;
}

/** Our own failure is never told as the client's: temporary, and worth another try. */
function failed(operation: Operation, service: Service, call: Call, error: unknown): Answer {
  const known = error instanceof Fault;
  service.desk.log.error(known ? 'dependency_failed' : 'unexpected_error', {
    request_id: call.id,
    operation: operation.name,
    ...errorFields(error),
  });
  call.note({ decision: 'failed', reason: known ? error.code : 'unexpected_error' });
  return temporary(operation, known ? error.retryAfter : 1);
}

const temporary = ({ fault: { status, code } }: Operation, retryAfter: number): Answer =>
  problem(status, code, OWN_FAILURE, { 'retry-after': String(retryAfter) });

const problem = (
  status: number,
  code: string,
  description: string,
  headers: Readonly<Record<string, string>> = {},
): Answer => ({
  status,
  body: { Error: code, Error_description: description },
  headers,
  reason: description,
});
