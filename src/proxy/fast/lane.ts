import type { Socket } from 'node:net';
import type { Epoch } from '../../domain/epoch.ts';
import type { DoneCall } from '../../http/call.ts';
import type { Logger } from '../../observability/logger.ts';
import type { FirstReader } from '../../tls/first-reader.ts';
import { type CallEnd, URL_LENGTH } from '../../tls/listener-options.ts';
import { FastConnection } from './connection.ts';
import type { FastGeneration } from './generation.ts';
import type { HandOver } from './grammar.ts';
import { type FieldMemory, fieldMemory } from './repeated-fields.ts';

export interface FastLaneOptions {
  readonly limits: {
    /** Bytes of a request head. */
    readonly headers: number;
    /** Characters of a request's target. */
    readonly url?: number;
    /** Seconds for a request head. */
    readonly headerTimeout: number;
  };
  /** The configuration in force; undefined where the lane is switched off. */
  readonly current: () => FastGeneration | undefined;
  /** A request has begun, which will be told as done. */
  readonly onBegin?: (call: DoneCall) => void;
  readonly onDone: (call: DoneCall, end: CallEnd) => void;
  readonly log: Logger;
  readonly now: () => Epoch;
}

/** What the connections of the lane share. */
export interface LaneOffice extends FastLaneOptions {
  readonly maxUrl: number;
  readonly connections: Set<FastConnection>;
  readonly memory: FieldMemory;
  handedOver(socket: Socket, reason: HandOver): void;
  /** For a deadline, by `performance.now()`: not before it, and later by two ticks. */
  deadlineIn(seconds: number): number;
}

export interface FastLane extends FirstReader {
  /** How many requests it has answered itself, and how many connections it gave to the full lane, by reason. */
  readonly counts: { fast: number; readonly handedOver: Record<HandOver, number> };
  /** Why the full lane has this connection; undefined when the fast lane never had it. */
  reasonOf(socket: object): HandOver | undefined;
  stop(): void;
}

/** How often deadlines are looked at: one look at all of them costs less than a timer for each. */
const TICK_MS = 200;
const STOPPED_MS = 5 * TICK_MS;

export function createFastLane(options: FastLaneOptions): FastLane {
  const connections = new Set<FastConnection>();
  const reasons = new WeakMap<object, HandOver>();
  const counts: FastLane['counts'] = {
    fast: 0,
    handedOver: {
      head: 0,
      size: 0,
      framing: 0,
      connection: 0,
      service: 0,
      refused: 0,
      rule: 0,
      upstream: 0,
      host: 0,
      off: 0,
    },
  };
  /** When the deadlines were last looked at. Each request has several, and a look at the clock costs more than all of them. */
  let ticked = performance.now();
  const office: LaneOffice = {
    ...options,
    onDone(call, end) {
      counts.fast += 1;
      options.onDone(call, end);
    },
    maxUrl: options.limits.url ?? URL_LENGTH,
    connections,
    memory: fieldMemory(),
    handedOver(socket, reason) {
      counts.handedOver[reason] += 1;
      reasons.set(socket, reason);
    },
    deadlineIn: (seconds) => ticked + TICK_MS + seconds * 1_000,
  };
  const timer = setInterval(() => {
    const now = performance.now();
    // A stop of our own is nobody's delay.
    const stopped = now - ticked > STOPPED_MS ? now - ticked : 0;
    ticked = now;
    if (stopped > 0) for (const connection of connections) connection.deadline += stopped;
    for (const connection of connections)
      if (connection.deadline <= now)
        try {
          connection.late(now);
        } catch (error) {
          connection.stumble(error);
        }
  }, TICK_MS).unref();
  return {
    take: (taken) => new FastConnection(office, taken),
    counts,
    reasonOf: (socket) => reasons.get(socket),
    stop: () => clearInterval(timer),
  };
}
