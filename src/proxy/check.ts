import type { ShownCertificate } from '../domain/bearer.ts';
import type { Epoch } from '../domain/epoch.ts';
import type { Call } from '../http/call.ts';
import { errorFields, type Logger } from '../observability/logger.ts';
import { Fault } from '../ports/fault.ts';
import { type Admission, type AdmissionDesk, admit, type Caller } from './admission.ts';
import { type Preflight, readPreflight } from './cors.ts';
import { readCredentials } from './credentials.ts';
import { type HeaderPolicy, identityHeaders } from './headers.ts';
import { type OriginalRequest, readOriginal } from './original-request.ts';
import {
  AMBIGUOUS_CERTIFICATE,
  answerEarly,
  type ProxyRefusal,
  reasonOf,
  refuse,
  wordingOf,
} from './refuse.ts';
import { readHead } from './request-head.ts';

/**
 * Forward-auth: another gateway asks whether it may pass a request on, and as whom. The request in question is judged
 * by the desk of the proxy, so that both ways give the same answer.
 *
 * Answers are 200 with every identity header, 401, 403, and 503 for our own failure: gateways know no others
 * (docs/decisions/0010-forward-auth.md).
 */
export interface CheckDeps {
  readonly desk: AdmissionDesk;
  readonly realm: string;
  readonly headers: HeaderPolicy;
  /** Is this peer a listed gateway (`trustedProxies`), which may tell about the requests of others? */
  readonly trusts: (peer: string) => boolean;
  /** The client certificate that came with the request in question. */
  readonly certificateOf: (call: Call) => ShownCertificate | undefined;
  /** Is it ambiguous which client certificate the gateway forwards? */
  readonly isAmbiguous: (call: Call) => boolean;
  /** Does this path belong to the token service, so that it is never passed on to an API? */
  readonly isServicePath: (path: string) => boolean;
  readonly now: () => Epoch;
  readonly log: Logger;
}

export interface Check {
  /** `rest` is what stands after `/check` in the target of the call, untouched. */
  handle(call: Call, rest: string): void | Promise<void>;
}

export function createCheck(deps: CheckDeps): Check {
  const { desk, realm, headers, log } = deps;

  const turnAway = (call: Call, refusal: ProxyRefusal, reason = reasonOf(refusal), close = false): void => {
    call.note({ decision: 'refused', reason });
    const instead = { status: statusOf(refusal), close };
    refuse(call.response, refusal, { realm, requestId: call.id, instead });
  };

  const unclear = (call: Call, detail: string): void => {
    // Clients cannot cause this through a gateway that is set up well, so its operator should hear of it.
    log.warn('check_unclear', { request_id: call.id, peer: call.peer, detail });
    turnAway(call, { reason: 'original_unclear', detail });
  };

  const answer = (call: Call, original: OriginalRequest, admission: Admission): void => {
    if (call.response.destroyed) return;
    if (admission.kind === 'asterisk') return unclear(call, 'it is a question to the gateway itself');
    const { rule, caller } = admission;
    if (rule !== undefined) call.note({ rule: rule.name });
    if (caller !== undefined) {
      const { identity, clientId, grantId } = caller.bearer;
      call.note({ identity, clientId, grantId });
    }
    if (admission.kind === 'refused')
      return turnAway(call, admission.refusal, admission.tried && `no_rule (${admission.tried})`);
    if (!passesAsItIs(call, original, admission.target.path)) return;
    const { wouldRefuse } = admission;
    if (wouldRefuse === undefined) call.note({ decision: 'allowed' });
    else call.note({ decision: 'would_refuse', reason: reasonOf(wouldRefuse) });
    letPass(call, caller);
  };

  /** A gateway passes on what it got: we cannot rewrite it, and the rule matched the decoded form. */
  const passesAsItIs = (call: Call, original: OriginalRequest, path: string): boolean => {
    if (pathOf(original.url) !== path)
      turnAway(call, { reason: 'malformed', detail: 'an encoding in the path that is not needed' });
    else if (deps.isServicePath(path)) turnAway(call, { reason: 'no_rule' }, 'service_path');
    else return true;
    return false;
  };

  const letPass = (call: Call, caller: Caller | undefined, more?: Readonly<Record<string, string>>): void =>
    answerEarly(call.response, {
      status: 200,
      text: '',
      close: false,
      headers: { ...pairs(identityHeaders(headers, caller)), ...more, 'X-Request-Id': call.id },
    });

  /**
   * A browser asks by it whether a page may send a request; it carries no token, and is judged by the rule of the request
   * it announces. Whoever answers it behind the gateway may copy our words.
   */
  const answerPreflight = (
    call: Call,
    original: OriginalRequest,
    { rule, target, fields }: Preflight,
  ): void => {
    call.note({ rule: rule.name });
    if (fields === undefined) return turnAway(call, { reason: 'origin_not_allowed' });
    if (!passesAsItIs(call, original, target.path)) return;
    call.note({ decision: 'allowed', reason: 'preflight' });
    letPass(call, undefined, fields);
  };

  const stumble = (call: Call, error: unknown): void => {
    log.error('check_failed', { request_id: call.id, ...errorFields(error) });
    turnAway(call, { reason: 'unavailable', retryAfter: error instanceof Fault ? error.retryAfter : 1 });
  };

  return {
    async handle(call, rest) {
      const { request, peer } = call;
      if (call.sourceUnknown === true || !deps.trusts(peer)) {
        log.warn('check_peer_not_listed', {
          request_id: call.id,
          peer,
          setting: 'trustedProxies',
          note: 'only peers listed there may ask about the requests of others',
        });
        return turnAway(call, { reason: 'peer_not_listed' });
      }
      const reading = readHead(request);
      // Here the question itself is faulty, so that nobody can say where the next one starts.
      if (!reading.ok) return turnAway(call, reading.refusal, undefined, true);
      if (deps.isAmbiguous(call)) return unclear(call, AMBIGUOUS_CERTIFICATE.detail);
      const { host, authorization } = reading.head;
      const { method = '', rawHeaders } = request;
      const told = readOriginal({ method, host, rest, rawHeaders });
      if (!told.ok) return unclear(call, told.detail);
      const { original } = told;
      call.note({ original: `${original.method} ${original.url.split('?', 1)[0]}` });
      if (original.host === undefined && (desk.rules.hosts.size > 0 || desk.pagesHost !== undefined))
        return unclear(call, 'no header names its host, and there are rules that ask for one, or pages.url');
      if (reading.head.serviceWorker && desk.pagesHost === undefined)
        return turnAway(call, { reason: 'service_worker_script' });
      const asked = { method: original.method, url: original.url, rawHeaders };
      const preflight = readPreflight(desk, asked, { host: original.host ?? '', authorization });
      if (preflight !== undefined) return answerPreflight(call, original, preflight);
      try {
        const admission = await admit(desk, {
          method: original.method,
          url: original.url,
          host: original.host ?? '',
          credentials: readCredentials(authorization),
          certificate: () => deps.certificateOf(call),
          now: deps.now(),
        });
        answer(call, original, admission);
      } catch (error) {
        stumble(call, error);
      }
    },
  };
}

/** nginx makes 500 of everything but 2xx, 401 and 403, and a 500 looks like a fault where it is a refusal. */
export function statusOf(refusal: ProxyRefusal): number {
  const { status } = wordingOf(refusal);
  return status === 401 || status === 503 ? status : 403;
}

/** The path as it was sent, apart from the case of hexadecimal digits, which changes nothing (RFC 3986 §6.2.2.1). */
const pathOf = (url: string): string =>
  url
    .replace(/^https?:\/\/[^/?#]*/i, '')
    .replace(/\?.*$/s, '')
    .replace(/%[0-9a-f]{2}/gi, (escape) => escape.toUpperCase());

function pairs(list: readonly string[]): Record<string, string> {
  const fields: Record<string, string> = {};
  for (let at = 0; at + 1 < list.length; at += 2) fields[list[at] ?? ''] = list[at + 1] ?? '';
  return fields;
}
