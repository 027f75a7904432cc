/**
 * What both faces of the token service do alike: whom they tell to wait and how long, what of a refusal is written
 * down, and how an answer is sent. The words on the wire are each face's own.
 */
import type { Refusal } from '../domain/refusal.ts';
import { type Answer, sendJson } from './answer.ts';
import type { Call } from './call.ts';

/** After how many seconds to come again when this process does not keep up. */
export const PRESSED_SECONDS = 2;

export const OWN_FAILURE =
  'The service has a temporary problem of its own. Nothing is wrong with your credentials; retry.';

/** Of a front proxy whose requests carry the certificate header twice, or in another spelling. */
export const AMBIGUOUS_CERTIFICATE = {
  reason: 'request_malformed',
  detail: 'It is ambiguous which client certificate is forwarded.',
} as const satisfies Refusal;

/** Where devices wait in such numbers, a place becomes free when codes end. */
const FULL_SECONDS = 60;

/** After how many seconds asking again may help; undefined where it does not. */
export const retryAfterOf = (why: Refusal): number | undefined =>
  'retryAfter' in why ? why.retryAfter : why.reason === 'device_requests_full' ? FULL_SECONDS : undefined;

/** A device that asks whether its person has decided is told to wait, not denied: that is no event. */
export const isDenial = ({ reason }: Refusal): boolean =>
  reason !== 'device_pending' && reason !== 'device_polled_early';

/** A refusal's facts are fit for the log: none is a secret. Free text from strangers is kept short. */
export function auditable(why: Refusal): Readonly<Record<string, string | number>> {
  const fields: Record<string, string | number> = {};
  for (const [name, value] of Object.entries(why))
    fields[name] = typeof value === 'string' ? value.slice(0, 256) : Number(value);
  return fields;
}

/** With the id that the log lines of this call carry: what a person asks about, an operator finds. */
export const answerCall = (call: Call, answer: Answer): void =>
  sendJson(call.response, { ...answer, headers: { 'x-request-id': call.id, ...answer.headers } });
