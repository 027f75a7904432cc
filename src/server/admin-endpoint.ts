import { type AdminApiDeps, handleAdminRequest } from '../admin/grants-api.ts';
import { type AdminListener, type AdminTls, openAdminListener, type ReadinessCheck } from '../admin/listener.ts';
import type { Settings } from '../config/schema.ts';
import { Console } from '../console/console.ts';
import { readPackageVersion } from '../lib/package-version.ts';
import { readSettingFile } from '../lib/read-file.ts';
import { formatExposition, mergeSnapshots } from '../observability/exposition.ts';
import { EMPTY_STATUS, type GatewayStatus } from '../observability/gateway-status.ts';
import { errorFields, type Logger } from '../observability/logger.ts';
import type { Snapshot } from '../observability/metric-registry.ts';
import type { RecentEventsQuery, RecentEventsResult } from '../observability/recent-events.ts';
import { Fault } from '../ports/fault.ts';
import { buildIntegrations } from './build-from-settings.ts';
import { createExplainContext } from './explain-context.ts';
import { toListenError } from './listeners.ts';
import type { OpenedStore } from './open-store.ts';

interface AdminEndpointOptions {
  readonly settings: Settings;
  readonly log: Logger;
  /** In addition to the checks of shutdown and of the store. */
  readonly checks: readonly ReadinessCheck[];
  readonly getSnapshots: () => Promise<readonly Snapshot[]>;
  /** Omitted: no console. */
  readonly console?: {
    /** As `getSnapshots`, as of a few seconds ago where that costs less. */
    readonly getRecentSnapshots: () => Promise<readonly Snapshot[]>;
    /** Of all processes. */
    readonly findRecentEvents: (query: RecentEventsQuery) => Promise<RecentEventsResult>;
    /** Changed settings that are in force after a restart. */
    readonly findPendingRestart: (current: Settings) => readonly string[];
    readonly now: () => number;
  };
}

/** The admin listener of this process. It may open before the store is reachable: alive, but not ready. */
export class AdminEndpoint {
  store: OpenedStore | undefined;
  api: AdminApiDeps | undefined;
  isDraining = false;
  /** The current configuration. */
  getSettings: () => Settings;
  /** Of all processes, for the console. */
  getStatus: () => Promise<GatewayStatus> = async () => EMPTY_STATUS;
  readonly #options: AdminEndpointOptions;
  #console: Console | undefined;
  #listener: AdminListener | undefined;
  /** Why the store was not reached at the last attempt. */
  #storeProblem = '';

  constructor(options: AdminEndpointOptions) {
    this.#options = options;
    this.getSettings = () => options.settings;
  }

  /** Undefined until it is open. */
  get port(): number | undefined {
    return this.#listener?.port;
  }

  async open(): Promise<void> {
    const { settings, log, checks } = this.#options;
    const { host, port, hostNames } = settings.admin;
    this.#console ??= this.#createConsole();
    try {
      this.#listener ??= await openAdminListener({
        host,
        port,
        hostNames,
        ...getCredentials(settings),
        tls: readAdminTls(settings),
        log,
        handleAdminRequest: async (request) => {
          if (this.api === undefined) throw new Fault('store_unavailable', 'has not been reached yet');
          return handleAdminRequest(this.api, request);
        },
        checks: [
          createCheck('accepting', () => this.isDraining, 'is shutting down'),
          {
            name: 'store',
            check: async () => {
              if (this.store === undefined) throw new Error(`has not been reached yet${this.#storeProblem}`);
              await this.store.probe();
            },
          },
          {
            // For probes that exclude `store`: while the store is unreachable, tokens are still validated.
            name: 'revocations',
            check: async () => {
              const lag = this.store === undefined ? Number.POSITIVE_INFINITY : this.store.revocationLag?.();
              if ((lag ?? 0) > settings.store.maxStaleness) throw new Error('are out of date');
            },
          },
          {
            // For probes that exclude `store`: other processes, whose clocks agree, can issue tokens.
            name: 'clock',
            check: async () => {
              const problem = this.store?.findClockProblem?.();
              if (problem !== undefined) throw new Error(problem);
            },
          },
          ...checks,
        ],
        metrics: async (results) => {
          const isHealthy = (name?: string): 0 | 1 =>
            results.some((check) => check.problem !== undefined && (name ?? check.name) === check.name) ? 0 : 1;
          const health: Snapshot = {
            gatehouse_ready: [['', isHealthy()]],
            gatehouse_store_up: [['', isHealthy('store')]],
          };
          return formatExposition(mergeSnapshots([...(await this.#options.getSnapshots()), health]));
        },
        handleConsole: this.#console?.handle,
      });
    } catch (error) {
      throw toListenError('admin', settings.admin, error);
    }
  }

  /** Alive, but not ready: the store was not reached. */
  async openWithoutStore({ message }: Fault): Promise<void> {
    this.#storeProblem = `: ${message}`;
    await this.open();
  }

  /** Uses renewed certificates. If they cannot be used, the old ones stay in use and the error is logged. */
  reloadTls(): void {
    const { settings, log } = this.#options;
    try {
      const tls = readAdminTls(settings);
      if (tls !== undefined) this.#listener?.setTls(tls);
    } catch (error) {
      log.error('admin_tls_reload_failed', errorFields(error));
    }
  }

  async close(): Promise<void> {
    this.#console?.close();
    await this.#listener?.close();
  }

  #createConsole(): Console | undefined {
    const { settings, log, console, getSnapshots } = this.#options;
    if (console === undefined || !settings.admin.console.enabled) return undefined;
    return new Console({
      credentials: getCredentials(settings),
      acceptsCertificates: settings.admin.tls?.clientCa !== undefined,
      sessionLifetime: settings.admin.console.sessionLifetime,
      accent: settings.pages.accent,
      getSettings: () => this.getSettings(),
      getApi: () => this.api,
      getSnapshot: async (isWatched) =>
        mergeSnapshots(await (isWatched ? getSnapshots() : console.getRecentSnapshots())),
      listReplicas: () => this.store?.listReplicas?.(),
      findRecent: console.findRecentEvents,
      findPendingRestart: console.findPendingRestart,
      getStatus: () => this.getStatus(),
      createExplainContext: cacheBySettings(createExplainContext),
      listIntegrations: cacheBySettings((current) => buildIntegrations(current, [])),
      log,
      now: console.now,
      version: readPackageVersion(),
    });
  }
}

/** Compiling thousands of routes for each view of the console would delay requests. */
function cacheBySettings<T extends object>(create: (settings: Settings) => T): (settings: Settings) => T {
  const cache = new WeakMap<Settings, T>();
  return (settings) => {
    const value = cache.get(settings) ?? create(settings);
    cache.set(settings, value);
    return value;
  };
}

const getCredentials = ({ admin: { tokenFile, readOnlyTokenFile, tls } }: Settings) => ({
  tokenFile,
  readOnlyTokenFile,
  operators: tls?.operators,
});

function readAdminTls({ admin: { tls } }: Settings): AdminTls | undefined {
  return (
    tls && {
      certificate: readSettingFile('admin.tls.certificate', tls.certificate),
      key: readSettingFile('admin.tls.key', tls.key),
      clientCa: readSettingFile('admin.tls.clientCa', tls.clientCa),
    }
  );
}

const createCheck = (name: string, hasFailed: () => boolean, problem: string): ReadinessCheck => ({
  name,
  check: async () => {
    if (hasFailed()) throw new Error(problem);
  },
});

/** Not ready while overloaded, so that load balancers send requests elsewhere. */
export const createEventLoopCheck = (isOverloaded: () => boolean): ReadinessCheck =>
  createCheck('event loop', isOverloaded, 'is overloaded');
