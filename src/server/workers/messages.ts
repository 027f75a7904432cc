import type { GatewayStatus } from '../../observability/gateway-status.ts';
import type { Snapshot } from '../../observability/metric-registry.ts';
import type { RecentEventsQuery, RecentEventsResult } from '../../observability/recent-events.ts';
import type { DrainOptions } from '../gateway.ts';
import type { RateLimitRequest, RateLimitResponse } from './rate-limit-ipc.ts';

export type WorkerMessage =
  | { readonly kind: 'ready'; readonly port: number }
  | { readonly kind: 'start_failed'; readonly problems: readonly string[] }
  /** The configuration file is invalid: requests its last valid text. */
  | { readonly kind: 'config_request' }
  | {
      readonly kind: 'reloaded';
      readonly text: string | undefined;
      readonly pendingRestart: readonly string[];
    }
  | { readonly kind: 'overload'; readonly overloaded: boolean }
  | { readonly kind: 'snapshot'; readonly snapshot: Snapshot }
  | { readonly kind: 'recent_events'; readonly id: number; readonly events: RecentEventsResult }
  | { readonly kind: 'status'; readonly id: number; readonly status: GatewayStatus }
  | RateLimitRequest;

export type SupervisorMessage =
  | { readonly kind: 'reload' }
  | { readonly kind: 'announce_shutdown' }
  | ({ readonly kind: 'drain' } & DrainOptions)
  | { readonly kind: 'settings'; readonly text: string | undefined }
  | { readonly kind: 'snapshot_request' }
  | { readonly kind: 'recent_events_request'; readonly id: number; readonly query: RecentEventsQuery }
  | { readonly kind: 'status_request'; readonly id: number }
  | RateLimitResponse;
