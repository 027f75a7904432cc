import { type Bearer, bearerFault, type ShownCertificate } from '../domain/bearer.ts';
import type { Epoch } from '../domain/epoch.ts';
import type { TokenFault } from '../domain/refusal.ts';
import { errorFields, type Logger } from '../observability/logger.ts';
import type { RevocationLog } from '../ports/revocation-log.ts';
import { certificateShownWith } from './admission.ts';

/** Why something that was being carried is ended. */
export type StreamEnd = TokenFault | 'unknown' | 'going_away';

export interface LiveStream {
  /** By whose leave it runs; undefined when it needs none. */
  readonly bearer: Bearer | undefined;
  /** A WebSocket: at a shutdown it is told to go elsewhere, since it would not end by itself. */
  readonly upgraded: boolean;
  end(why: StreamEnd): void;
}

/**
 * What is being carried longer than a glance: a request is judged when it begins, and these live on while the token
 * they began with expires or is revoked (docs/decisions/0011-streams-end-with-their-grant.md).
 */
export interface LiveStreams {
  /** Returns how to take it off the list again. */
  add(stream: LiveStream): () => void;
  count(): number;
  /**
   * Why a request that was admitted before, and has waited for its body or for a connection, may not be forwarded now;
   * undefined: it may.
   */
  faultOf(bearer: Bearer): StreamEnd | undefined;
  /**
   * A configuration came into force: streams end now if their integration is gone or the certificate that their token is
   * bound to is no longer accepted.
   */
  judgeBy(rules: StreamRules): void;
  goAway(): void;
  stop(): void;
}

export interface StreamRules {
  readonly knowsClient: (clientId: string) => boolean;
  /** Is this client certificate (DER) accepted now? */
  readonly acceptsCertificate: (der: Uint8Array) => boolean;
}

export interface LiveStreamsOptions {
  readonly revocations: Pick<RevocationLog, 'isRevoked'>;
  readonly now: () => Epoch;
  readonly log: Logger;
}

/** With the time a closing connection is given, within the promised second. */
const LOOK_MS = 400;
/** How long streams go on while nobody can say whether they may. */
const UNKNOWN_SECONDS = 5;

export function liveStreams({ revocations, now, log }: LiveStreamsOptions): LiveStreams {
  const streams = new Set<LiveStream>();
  let rules: StreamRules = { knowsClient: () => true, acceptsCertificate: () => true };
  let timer: NodeJS.Timeout | undefined;
  let unknownSince: Epoch | undefined;

  const end = (stream: LiveStream, why: StreamEnd): void => {
    streams.delete(stream);
    stream.end(why);
  };

  const judge = (bearer: Bearer, at: Epoch): TokenFault | undefined =>
    bearerFault(bearer, {
      now: at,
      revoked: revocations.isRevoked(bearer),
      clientKnown: rules.knowsClient(bearer.clientId),
      certificate: () => certificateOf(bearer),
    });

  /** One pass over all of them: nobody has a timer of its own. */
  const look = (): void => {
    const at = now();
    try {
      for (const stream of streams) {
        const { bearer } = stream;
        if (bearer === undefined) continue;
        const why = judge(bearer, at);
        if (why !== undefined) end(stream, why);
      }
      unknownSince = undefined;
    } catch (error) {
      if (unknownSince === undefined) log.error('streams_not_judged', errorFields(error));
      unknownSince ??= at;
      if (at - unknownSince < UNKNOWN_SECONDS) return;
      for (const stream of streams) if (stream.bearer !== undefined) end(stream, 'unknown');
    }
  };

  /** The connection is still the one on which it was shown. */
  const certificateOf = (bearer: Bearer): ShownCertificate | undefined => {
    const der = certificateShownWith(bearer);
    return bearer.boundTo === undefined || der === undefined
      ? undefined
      : { fingerprint: bearer.boundTo, accepted: rules.acceptsCertificate(der) };
  };

  const rest = (): void => {
    if (streams.size > 0 || timer === undefined) return;
    clearInterval(timer);
    timer = undefined;
  };

  return {
    add(stream) {
      streams.add(stream);
      timer ??= setInterval(() => {
        look();
        rest();
      }, LOOK_MS).unref();
      return () => void streams.delete(stream);
    },
    count: () => streams.size,
    faultOf(bearer) {
      try {
        return judge(bearer, now());
      } catch {
        // As with a new request: 503.
        return 'unknown';
      }
    },
    judgeBy(next) {
      rules = next;
      look();
    },
    goAway() {
      for (const stream of streams) if (stream.upgraded) end(stream, 'going_away');
    },
    stop() {
      clearInterval(timer);
      timer = undefined;
    },
  };
}
