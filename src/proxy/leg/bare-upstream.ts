import type { PaceTerms } from '../client-pace.ts';
import type { Slots } from '../slots.ts';
import type { Target, Targets } from '../targets.ts';
import type { UpstreamSettings } from '../upstream-settings.ts';
import type { Deadlines } from './deadlines.ts';
import type { UpstreamSockets } from './upstream-sockets.ts';

/** An upstream that is spoken to over bare sockets. */
export interface BareUpstream {
  readonly timeouts: UpstreamSettings['timeouts'];
  readonly pace: PaceTerms;
  readonly bodyBuffer: number;
  readonly targets: Targets;
  readonly slotsOf: (target: Target) => Slots;
  readonly socketsOf: (target: Target) => UpstreamSockets;
  /** For those who have no clock of their own. */
  readonly deadlines: Deadlines;
}
