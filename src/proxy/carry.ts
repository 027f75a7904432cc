import type { IncomingMessage } from 'node:http';
import { pipeline } from 'node:stream';
import type { AccessRule } from '../domain/access-rule.ts';
import { allowsOrigin } from '../domain/cors.ts';
import type { Call } from '../http/call.ts';
import { errorFields, type Logger } from '../observability/logger.ts';
import { Carriage, type CarriageRoom, type EndStreams, tellEnded, tellFault } from './carriage.ts';
import { corsOf, originOf, withCors } from './cors.ts';
import { GrantEnded, refusalFor } from './exchange.ts';
import type { ForwardFacts, HeaderRules } from './headers.ts';
import type { LiveStreams, StreamEnd } from './live-streams.ts';
import { type ProxyRefusal, reasonOf } from './refuse.ts';
import type { RequestHead } from './request-head.ts';
import type { UpstreamSettings } from './upstream-settings.ts';
import type { Upstreams, Way } from './upstreams.ts';
import { type Admitted, bearerOf, isEventStream, type WaysOut, wirePath } from './way-out.ts';

export type { EndStreams } from './carriage.ts';

export interface CarrierDeps {
  readonly upstreams: Readonly<Record<string, UpstreamSettings>>;
  readonly ways: Upstreams;
  readonly out: WaysOut;
  readonly headers: HeaderRules;
  readonly maxBodyBytes: number;
  readonly trusts: (peer: string) => boolean;
  readonly streams: LiveStreams;
  readonly endStreams: EndStreams;
  readonly log: Logger;
  readonly turnAway: (call: Call, refusal: ProxyRefusal, rule: AccessRule) => void;
}

export interface Carrier {
  /** The way to where a rule leads, for those who go by themselves. */
  wayOf(rule: AccessRule): Way | undefined;
  carry(call: Call, head: RequestHead, admitted: Admitted): void;
  close(withinSeconds: number): Promise<void>;
}

/** Sends on what was admitted, and keeps an eye on what takes long. */
export function createCarrier(deps: CarrierDeps): Carrier {
  const { headers, maxBodyBytes, out, streams, endStreams, log } = deps;
  const lease = deps.ways.lease(deps.upstreams);

  const room: CarriageRoom = {
    headers,
    maxBodyBytes,
    streams,
    endStreams,
    out,
    log,
    turnAway: deps.turnAway,
  };

  const forward = (call: Call, head: RequestHead, admitted: Admitted, way: Way, list: string[]): void => {
    const carriage = new Carriage(room, call, head, admitted, list);
    if (head.expectsContinue && carriage.hasBody) call.response.writeContinue();
    const carried = way.upstream.forward(carriage);
    if (carried !== undefined) carriage.begun(carried);
  };

  const openWebSocket = (
    call: Call,
    head: RequestHead,
    admitted: Admitted,
    { tunnels }: Way,
    list: string[],
  ): void => {
    const { request, response, upgrade } = call;
    const { rule, target } = admitted;
    const location = out.locationFor(admitted, target.authority ?? head.host);
    const report = (event: string, cause: unknown): void => tellFault(log, call, rule, event, cause);
    if (upgrade === undefined) return;
    const bearer = endStreams === 'none' ? undefined : bearerOf(admitted);
    // The token may expire or be revoked while the upstream takes its time with the handshake.
    let end = (why: StreamEnd): void => {
      const ended = new GrantEnded(why);
      pending?.cancel(refusalFor(ended), ended);
    };
    let unwatch = streams.add({ bearer, upgraded: true, end: (why) => end(why) });
    response.once('close', () => unwatch());
    const pending = tunnels.carry({
      ...upgrade,
      path: wirePath(rule, target),
      headers: list,
      answerHeaders: (raw, status) => headers.forClient(raw, status, call.id),
      opened(tunnel) {
        response.statusCode = 101;
        end = (why) => {
          tellEnded(log, call, admitted, why);
          if (why === 'going_away') tunnel.end(1001, 'going away');
          else tunnel.end(1008, `access token ${why.replaceAll('_', ' ')}`);
        };
      },
      declined(answer: IncomingMessage) {
        const status = answer.statusCode ?? 502;
        const given = headers.forClient(answer.rawHeaders, status, call.id, location);
        const cors = corsOf(rule, request.rawHeaders);
        call.note({ reason: 'upgrade_declined' });
        response.writeHead(status, cors === undefined ? given : withCors(given, cors));
        // From here on an ordinary response, which ends with its token as it would have without the upgrade.
        unwatch();
        let ended = false;
        const cut = (why: StreamEnd): void => {
          ended = true;
          tellEnded(log, call, admitted, why);
          response.destroy();
        };
        if (bearer !== undefined && (endStreams === 'all' || isEventStream(answer.rawHeaders)))
          unwatch = streams.add({ bearer, upgraded: false, end: cut });
        pipeline(answer, response, (error) => {
          if (error && !ended) report('upstream_broke_off', error);
        });
      },
      failed(refusal, cause) {
        if (refusal.reason.startsWith('upstream')) report('upstream_failed', cause);
        deps.turnAway(call, refusal, rule);
      },
      broken(cause) {
        call.note({ reason: 'broke_off' });
        log.debug('websocket_broke_off', { request_id: call.id, ...errorFields(cause), stack: undefined });
      },
    });
  };

  return {
    carry(call, head, admitted) {
      const { request, upgrade } = call;
      const { rule, target, caller, wouldRefuse } = admitted;
      const turnAway = (refusal: ProxyRefusal): void => deps.turnAway(call, refusal, rule);
      if (upgrade === undefined ? offersWebSocket(head) : rule.websocket !== true)
        return turnAway({ reason: 'upgrade_not_served' });
      // Browsers ask nobody before they open a WebSocket (RFC 6455 §10.2): the rule's list holds here all the same.
      const origin = upgrade && rule.cors && originOf(request.rawHeaders);
      if (rule.cors !== undefined && origin !== undefined && !allowsOrigin(rule.cors, origin))
        return turnAway({ reason: 'origin_not_allowed' });
      if ((head.contentLength ?? 0) > maxBodyBytes) return turnAway({ reason: 'body_too_large' });
      const way = lease.get(rule.upstream);
      if (way === undefined) return turnAway({ reason: 'upstream_failed' });
      const told: ForwardFacts = {
        requestId: call.id,
        peer: call.peer,
        encrypted: 'encrypted' in request.socket,
        trustedPeer: call.sourceUnknown !== true && deps.trusts(call.peer),
        host: target.authority ?? head.host,
        forwardAuthorization: rule.forwardAuthorization,
        caller,
        trace: call.notes.trace,
      };
      const list = headers.forUpstream(request.rawHeaders, head, told);
      const { trace = '' } = told;
      list.push(...out.assertion(admitted));
      call.note(
        wouldRefuse === undefined
          ? { decision: 'forwarded', trace }
          : { decision: 'would_refuse', reason: reasonOf(wouldRefuse), trace },
      );
      if (upgrade === undefined) forward(call, head, admitted, way, list);
      else openWebSocket(call, head, admitted, way, list);
    },
    wayOf: ({ upstream }) => lease.get(upstream),
    close: (withinSeconds) => lease.release(withinSeconds),
  };
}

/** In a form that is no handshake: nobody upstream may take it for one. */
const offersWebSocket = ({ upgrade }: RequestHead): boolean =>
  upgrade !== undefined && /(?:^|,)\s*websocket\s*(?:,|$)/i.test(upgrade);
