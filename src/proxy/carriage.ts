import type { IncomingMessage, ServerResponse } from 'node:http';
import type { AccessRule } from '../domain/access-rule.ts';
import type { Bearer } from '../domain/bearer.ts';
import type { Call } from '../http/call.ts';
import { errorFields, type Logger } from '../observability/logger.ts';
import { networkKey } from './client-pace.ts';
import { corsOf, withCors } from './cors.ts';
import { type Carried, type ForwardJob, GrantEnded } from './exchange.ts';
import type { HeaderRules } from './headers.ts';
import type { AnswerHead } from './leg/answer-head.ts';
import type { LiveStreams, StreamEnd } from './live-streams.ts';
import type { ProxyRefusal } from './refuse.ts';
import { BodyFault } from './request-body.ts';
import type { RequestHead } from './request-head.ts';
import { type Admitted, bearerOf, isEventStream, type WaysOut, wirePath } from './way-out.ts';

/** What ends with the token it began with. */
export type EndStreams = 'all' | 'upgrades-and-events' | 'none';

/** What all requests of one configuration are carried with. */
export interface CarriageRoom {
  readonly headers: HeaderRules;
  readonly maxBodyBytes: number;
  readonly streams: LiveStreams;
  readonly endStreams: EndStreams;
  readonly out: WaysOut;
  readonly log: Logger;
  readonly turnAway: (call: Call, refusal: ProxyRefusal, rule: AccessRule) => void;
}

/** One request on its way to an upstream, as the rule says that admitted it. A class: there is one for each request. */
export class Carriage implements ForwardJob {
  readonly request: IncomingMessage;
  readonly response: ServerResponse;
  readonly method: string;
  readonly path: string;
  readonly headers: string[];
  readonly hasBody: boolean;
  readonly bodyLength: number | undefined;
  readonly maxBodyBytes: number;
  readonly shareKey: string;
  readonly #room: CarriageRoom;
  readonly #call: Call;
  readonly #admitted: Admitted;
  readonly #host: string;
  readonly #bearer: Bearer | undefined;
  #carried: Carried | undefined;

  constructor(room: CarriageRoom, call: Call, head: RequestHead, admitted: Admitted, list: string[]) {
    const { rule, target } = admitted;
    this.request = call.request;
    this.response = call.response;
    this.method = call.request.method ?? '';
    this.path = wirePath(rule, target);
    this.headers = list;
    this.hasBody = head.framing !== 'none';
    this.bodyLength = head.contentLength;
    this.maxBodyBytes = room.maxBodyBytes;
    this.shareKey = admitted.caller?.bearer.identity ?? networkKey(call.clientAddress);
    this.#room = room;
    this.#call = call;
    this.#admitted = admitted;
    this.#host = target.authority ?? head.host;
    this.#bearer = room.endStreams === 'none' ? undefined : bearerOf(admitted);
  }

  begun(carried: Carried): void {
    this.#carried = carried;
    this.#call.note({ carried });
    if (this.#room.endStreams === 'all') this.#watch();
  }

  answerHeaders(raw: readonly string[], status: number, head?: AnswerHead): string[] {
    const isWatchable = this.#bearer !== undefined && this.#room.endStreams !== 'all';
    if (isWatchable && (head?.events ?? isEventStream(raw))) this.#watch();
    const given = head === undefined ? this.#fieldsFor(raw, status) : this.#knownFieldsFor(head);
    const cors = corsOf(this.#admitted.rule, this.request.rawHeaders);
    return cors === undefined ? given : withCors(given, cors);
  }

  #fieldsFor(raw: readonly string[], status: number): string[] {
    const { headers, out } = this.#room;
    return headers.forClient(raw, status, this.#call.id, out.locationFor(this.#admitted, this.#host));
  }

  /** An upstream says the same again and again; what the rules leave of it is the same but for the id, unless it leads elsewhere. */
  #knownFieldsFor(head: AnswerHead): string[] {
    const { headers } = this.#room;
    if (head.leads) return this.#fieldsFor(head.rawHeaders, head.status);
    if (head.listedBy !== headers) {
      head.listed = this.#fieldsFor(head.rawHeaders, head.status);
      head.listedBy = headers;
      if (head.listed[1] !== this.#call.id) throw new Error('the header rules begin with the id');
    }
    const list = head.listed.slice();
    list[1] = this.#call.id;
    return list;
  }

  tokenFault(): StreamEnd | undefined {
    const bearer = bearerOf(this.#admitted);
    return bearer && this.#room.streams.faultOf(bearer);
  }

  failed(refusal: ProxyRefusal, cause: unknown): void {
    if (refusal.reason.startsWith('upstream')) this.#report('upstream_failed', cause);
    this.#room.turnAway(this.#call, refusal, this.#admitted.rule);
  }

  repeated(cause: unknown): void {
    this.#report('upstream_asked_again', cause);
  }

  broken(cause: unknown): void {
    if (cause instanceof GrantEnded) return tellEnded(this.#room.log, this.#call, this.#admitted, cause.why);
    if (!(cause instanceof BodyFault)) this.#report('upstream_broke_off', cause);
    this.#call.note({ reason: brokenBy(cause) });
  }

  #watch(): void {
    const [bearer, carried] = [this.#bearer, this.#carried];
    if (bearer === undefined || carried === undefined) return;
    const end = (why: StreamEnd): void => carried.cut(why);
    this.response.once('close', this.#room.streams.add({ bearer, upgraded: false, end }));
  }

  #report(event: string, cause: unknown): void {
    tellFault(this.#room.log, this.#call, this.#admitted.rule, event, cause);
  }
}

function brokenBy(cause: unknown): string {
  if (!(cause instanceof BodyFault)) return 'upstream_broke_off';
  return cause.kind === 'client_too_slow' ? 'client_too_slow' : 'client_left';
}

export const tellFault = (log: Logger, call: Call, rule: AccessRule, event: string, cause: unknown): void =>
  log.warn(event, { request_id: call.id, upstream: rule.upstream, ...errorFields(cause), stack: undefined });

export function tellEnded(log: Logger, call: Call, { rule, caller }: Admitted, why: StreamEnd): void {
  call.note({ reason: `ended: ${why === 'going_away' ? why : `token_${why}`}` });
  log.info('stream_ended', { request_id: call.id, rule: rule.name, grant: caller?.bearer.grantId, why });
}
