import type { Line, LineTerms } from '../line.ts';
import type { Target, Targets } from '../targets.ts';
import type { UpstreamSettings } from '../upstream-settings.ts';
import type { Deadlines } from './deadlines.ts';
import type { UpstreamSockets } from './upstream-sockets.ts';

/** An upstream that is spoken to over bare sockets. */
export interface BareUpstream {
  readonly timeouts: UpstreamSettings['timeouts'];
  readonly terms: LineTerms;
  readonly targets: Targets;
  readonly lineOf: (target: Target) => Line;
  readonly socketsOf: (target: Target) => UpstreamSockets;
  /** For those who have no clock of their own. */
  readonly deadlines: Deadlines;
}
