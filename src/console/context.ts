import type { AdminIdentity } from '../admin/authenticate.ts';
import type { AdminApiDeps } from '../admin/grants-api.ts';
import type { CheckResult } from '../admin/listener.ts';
import type { Settings } from '../config/schema.ts';
import type { Integration } from '../domain/integration.ts';
import type { Scope } from '../domain/scope.ts';
import type { GatewayStatus } from '../observability/gateway-status.ts';
import type { Logger } from '../observability/logger.ts';
import type { Snapshot } from '../observability/metric-registry.ts';
import type { RecentEventsQuery, RecentEventsResult } from '../observability/recent-events.ts';
import type { FormFields } from '../pages/form.ts';
import type { Markup } from '../pages/views/html.ts';
import type { ReplicaStatus } from '../ports/store.ts';
import { type ExplainContext, type Explanation, explain } from '../proxy/policy/explain.ts';
import type { History } from './history.ts';

export interface ConsoleDeps {
  /** The current configuration. */
  readonly getSettings: () => Settings;
  /** Undefined until the store has been reached. */
  readonly getApi: () => AdminApiDeps | undefined;
  /** Returns the metrics of all processes; unless `isWatched`, from a few seconds ago where that costs less. */
  readonly getSnapshot: (isWatched: boolean) => Promise<Snapshot>;
  /** Returns undefined if this store has no replicas. */
  readonly listReplicas: () => Promise<readonly ReplicaStatus[]> | undefined;
  /** Finds events of all processes. */
  readonly findRecent: (query: RecentEventsQuery) => Promise<RecentEventsResult>;
  /** Changed settings that are in force after a restart. */
  readonly findPendingRestart: (current: Settings) => readonly string[];
  /** Returns the status of all processes. */
  readonly getStatus: () => Promise<GatewayStatus>;
  readonly createExplainContext: (settings: Settings) => ExplainContext;
  readonly listIntegrations: (settings: Settings) => ReadonlyMap<string, Integration>;
  readonly log: Logger;
  readonly now: () => number;
  readonly version: string;
}

/** Paths of pages and form actions below `/console`. */
export type ConsolePath =
  | ''
  | '/grants'
  | '/grant'
  | '/revoke'
  | '/refusals'
  | '/refusal'
  | '/explain'
  | '/configuration'
  | '/audit'
  | '/sign-in'
  | '/certificate'
  | '/sign-out';

export interface ConsolePage {
  readonly status?: number;
  readonly title: string;
  readonly body: Markup;
}

export type ConsoleResponse = ConsolePage | { readonly redirect: string };

/** A request of a signed-in operator or viewer. */
export interface ConsoleRequest {
  readonly deps: ConsoleDeps;
  readonly identity: AdminIdentity;
  /** Address of the browser. */
  readonly peer: string;
  readonly query: URLSearchParams;
  readonly history: History;
  readonly runChecks: () => Promise<readonly CheckResult[]>;
  /** The hidden fields of a form: its CSRF token. `subject`: what the form is about. */
  readonly renderFormToken: (path: ConsolePath, subject?: string) => Markup;
}

export type ConsoleHandler = (request: ConsoleRequest) => Promise<ConsoleResponse>;
export type ConsoleFormHandler = (request: ConsoleRequest, fields: FormFields) => Promise<ConsoleResponse>;

export const CONSOLE_PATH = '/console';
export const urlFor = (path: ConsolePath, query?: Readonly<Record<string, string>>): string =>
  `${CONSOLE_PATH}${path}${query === undefined ? '' : `?${new URLSearchParams(query).toString()}`}`;

/** Recent events on one page. */
export const MAX_RECENT = 100;
export const MAX_SEARCH_TEXT = 256;
export const readSearchText = (query: URLSearchParams): string =>
  (query.get('q') ?? '').trim().slice(0, MAX_SEARCH_TEXT);

interface ExplainedRequest {
  readonly method: string;
  readonly path: string;
  /** Omitted or empty: the host of `publicUrl`. */
  readonly host?: string;
  readonly client: string | undefined;
  readonly scope: Scope | undefined;
}

/** What the proxy decides about a request with the configuration in use. */
export function explainRequest(deps: ConsoleDeps, { host, client, scope, ...request }: ExplainedRequest): Explanation {
  const settings = deps.getSettings();
  const integration = client === undefined ? undefined : deps.listIntegrations(settings).get(client);
  return explain(deps.createExplainContext(settings), {
    ...request,
    host: host || new URL(settings.publicUrl).host,
    ...(scope !== undefined && { scope }),
    ...(client !== undefined && { client }),
    ...(integration !== undefined && { integration }),
  });
}
