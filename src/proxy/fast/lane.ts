import type { Socket } from 'node:net';
import type { Epoch } from '../../domain/epoch.ts';
import type { DoneCall } from '../../http/call.ts';
import type { Logger } from '../../observability/logger.ts';
import type { FirstReader } from '../../tls/first-reader.ts';
import { type CallEnd, URL_LENGTH } from '../../tls/listener-options.ts';
import { type Deadlines, deadlines } from '../leg/deadlines.ts';
import { FastConnection } from './connection.ts';
import type { FastGeneration } from './generation.ts';
import type { HandOver } from './grammar.ts';
import { type LentBuffers, lentBuffers } from './lent-buffers.ts';
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
  readonly deadlines: Deadlines;
  readonly memory: FieldMemory;
  readonly buffers: LentBuffers;
  handedOver(socket: Socket, reason: HandOver): void;
}

export interface FastLane extends FirstReader {
  /** How many requests it has answered itself, and how many connections it gave to the full lane, by reason. */
  readonly counts: { fast: number; readonly handedOver: Record<HandOver, number> };
  /** Why the full lane has this connection; undefined when the fast lane never had it. */
  reasonOf(socket: object): HandOver | undefined;
}

export function createFastLane(options: FastLaneOptions): FastLane {
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
  const office: LaneOffice = {
    ...options,
    onDone(call, end) {
      counts.fast += 1;
      options.onDone(call, end);
    },
    maxUrl: options.limits.url ?? URL_LENGTH,
    deadlines: deadlines(),
    memory: fieldMemory(),
    buffers: lentBuffers(),
    handedOver(socket, reason) {
      counts.handedOver[reason] += 1;
      reasons.set(socket, reason);
    },
  };
  return {
    take: (taken) => new FastConnection(office, taken),
    counts,
    reasonOf: (socket) => reasons.get(socket),
  };
}
