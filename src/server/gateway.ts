import { setTimeout as pause } from 'node:timers/promises';
import { findRestartChanges, isSupervisorSetting } from '../config/restart-settings.ts';
import type { Settings } from '../config/schema.ts';
import type { PublicListener } from '../listener/listener.ts';
import type { GatewayStatus } from '../observability/gateway-status.ts';
import type { Logger } from '../observability/logger.ts';
import { createMetrics, type Metrics } from '../observability/metrics.ts';
import {
  createRecentEvents,
  NO_RECENT_EVENTS,
  type RecentEventsQuery,
  type RecentEventsResult,
} from '../observability/recent-events.ts';
import type { SharedLimits } from '../ports/shared-limits.ts';
import { ClientRequest, type RequestEnvironment } from '../proxy/client-request.ts';
import { AdminEndpoint, createAdminApi, createCheck, ensureAdminTokens } from './admin-endpoint.ts';
import type { EventLoopMonitor } from './event-loop-monitor.ts';
import { createListenerCounters, registerGatewayMetrics } from './gateway-metrics.ts';
import { ensureKeyFile } from './keys.ts';
import { createTlsContextOptions, startPublicListener } from './listeners.ts';
import { openObservability } from './observability.ts';
import { instrumentStore, type OpenedStore, openStore, retryWhileUnreachable } from './open-store.ts';
import { createProcessState, type ProcessState } from './process-state.ts';
import { createReportingAuthenticator } from './record-authentication.ts';
import { ReloadState } from './reload-state.ts';
import { createRequestRecorder, type RequestRecorder } from './request-recorder.ts';
import { buildRuntimeConfig, type RuntimeConfig } from './runtime-config.ts';
import { TicketSecretRotation } from './ticket-secret-rotation.ts';

export interface GatewayOptions {
  readonly settings: Settings;
  readonly log: Logger;
  readonly now?: () => number;
  /** A `worker` shares its port and store with others, under a supervisor that holds the store's lock and serves the admin listener. */
  readonly role?: 'standalone' | 'worker';
  /** Limits shared with other processes, for a store that does not share them. */
  readonly limits?: SharedLimits;
  readonly eventLoop?: Pick<EventLoopMonitor, 'isOverloaded'>;
  readonly metrics?: Metrics;
  /** Problems of the configuration on disk, if `settings` are those of an earlier one. */
  readonly rejectedProblems?: readonly string[] | undefined;
  /** Milliseconds for one Redis command. */
  readonly commandTimeout?: number | undefined;
  readonly describe?: DescribeMessages | undefined;
}

/** Adds setting and line to messages that begin with a setting or a file. */
export type DescribeMessages = (messages: readonly string[]) => readonly string[];

/** How long before the end of the pre-stop time connections without requests are closed. */
const IDLE_CLOSE_SECONDS = 1;

/** Seconds; the defaults are those of `shutdown`. */
export interface DrainOptions {
  readonly preStop?: number | undefined;
  readonly drain?: number | undefined;
}

type Foundation = Awaited<ReturnType<typeof openFoundation>>;

/** What a reload replaces. */
interface ActiveConfig {
  config: RuntimeConfig;
  recordRequest: RequestRecorder;
}

export const openGateway = async (options: GatewayOptions): Promise<Gateway> => new Gateway(await openParts(options));

type GatewayParts = Awaited<ReturnType<typeof openParts>>;

async function openParts(options: GatewayOptions) {
  // Closes what is open, in reverse order, when a later phase fails.
  await using resources = new AsyncDisposableStack();
  const foundation = await openFoundation(options, resources);
  const { role, store, log, metrics, now, admin } = foundation;
  const processState = createProcessState({
    ...foundation,
    store: instrumentStore(store, metrics),
    limits: store.limits ?? options.limits,
  });
  resources.defer(() => processState.stop());
  const active = await activateFirstConfig(foundation, processState, resources);
  const ticketSecrets = await TicketSecretRotation.start({
    isShared: () => active.config.settings.listen.tls?.sessionTickets === 'shared',
    notes: processState.store.notes,
    keyring: () => active.config.keyring,
    now,
    log,
  });
  resources.defer(() => ticketSecrets.stop());
  const listener = await openListener(foundation, active, ticketSecrets);
  ticketSecrets.subscribe((secret) => listener.setTicketSecret(secret));
  await processState.outageTracker.start();
  const reloads = new ReloadState(now, options.rejectedProblems);
  const getStatus = (): GatewayStatus => ({
    rejectedReload: reloads.rejected,
    issuers: processState.issuerKeys.listStatus(),
    introspection: processState.issuerKeys.listIntrospection(),
  });
  admin.getStatus = async () => getStatus();
  registerGatewayMetrics(processState, reloads, listener, () => active.config.files);
  resources.defer(() => listener.close());
  if (role === 'standalone') await admin.open();
  logWarnings(active.config, log, options.describe);
  log.audit('service_started');
  const owned = resources.move();
  return { foundation, processState, active, ticketSecrets, listener, reloads, getStatus, resources: owned };
}

/** Opens what is opened once per process, before the first configuration is built. */
async function openFoundation(options: GatewayOptions, resources: AsyncDisposableStack) {
  const { settings, role = 'standalone', eventLoop, metrics = createMetrics() } = options;
  const { now = () => Date.now() / 1_000 } = options;
  const isOverloaded = (): boolean => eventLoop?.isOverloaded() === true;
  const recentEvents = settings.admin.console.enabled ? createRecentEvents(now) : undefined;
  const { log, audit, tracer, ...observability } = await openObservability(
    settings,
    options.log,
    metrics,
    recentEvents,
  );
  resources.defer(() => observability.close());
  const admin = new AdminEndpoint({
    settings,
    log,
    checks: [createCheck('event loop', () => isOverloaded() && 'is overloaded')],
    getSnapshots: async () => [await metrics.snapshot()],
    getRecentSnapshots: async () => [await metrics.snapshot()],
    findRecentEvents: async (query) => recentEvents?.find(query) ?? NO_RECENT_EVENTS,
    findPendingRestart: (current) => findRestartChanges(settings, current),
    now,
  });
  resources.defer(() => admin.close());
  const authenticator = createReportingAuthenticator(log, metrics, now);
  const store = await openStore({
    settings,
    log,
    now,
    authenticator,
    metrics,
    role,
    commandTimeout: options.commandTimeout,
    onUnreachable: async (fault) => {
      if (role === 'standalone') await admin.openWithoutStore(fault);
    },
  });
  admin.store = store;
  resources.defer(() => store.close());
  if (role === 'standalone') {
    await ensureKeyFile(settings, store);
    ensureAdminTokens(settings, log);
  }
  return {
    settings,
    role,
    log,
    audit,
    tracer,
    metrics,
    now,
    isOverloaded,
    isAuditAvailable: () => !settings.audit.failClosed || !audit.isBlocked(),
    authenticator,
    store,
    admin,
    /** It is undefined if the console is off. */
    recentEvents,
  };
}

async function activateFirstConfig(
  { settings, role, log, metrics, tracer, now, authenticator, admin, recentEvents }: Foundation,
  processState: ProcessState,
  resources: AsyncDisposableStack,
): Promise<ActiveConfig> {
  const build = (): Promise<RuntimeConfig> => buildRuntimeConfig(settings, processState);
  // Verifies the keys against the store: Redis may become unreachable meanwhile.
  const report = (reason: string, seconds: number): void =>
    log.error('store_unreachable_at_start', {
      reason,
      ...(seconds >= 1 && { unreachable_s: Math.round(seconds) }),
      note: 'no request is served before the keys are verified against the store; retrying until it is reachable',
    });
  const config = await (settings.store.type === 'redis'
    ? retryWhileUnreachable(build, report, async (fault) => {
        if (role === 'standalone') await admin.openWithoutStore(fault);
      })
    : build());
  const recordRequest = createRequestRecorder(settings, { log, metrics, tracer, recentEvents });
  const active: ActiveConfig = { config, recordRequest };
  resources.defer(() => active.config.close());
  config.activate();
  authenticator.setKeyring(config.keyring);
  processState.streams.applyRules(config);
  admin.getSettings = () => active.config.settings;
  admin.api = createAdminApi({ store: processState.store, log, now }, () => active.config.settings);
  return active;
}

/** The public listener, and what serves its requests. */
function openListener(
  { settings, log, metrics, tracer, now }: Foundation,
  active: ActiveConfig,
  ticketSecrets: TicketSecretRotation,
): Promise<PublicListener> {
  const environment: RequestEnvironment = {
    maxTargetLength: settings.limits.url,
    getConfig: () => active.config.requests,
    onRequestStart: () => metrics.requestStarted(),
    onRequestEnd: (request, outcome) => active.recordRequest(request, outcome),
    startSpan: tracer && ((traceparent, isTrusted) => tracer.startSpan(traceparent, isTrusted)),
    log,
    now,
  };
  return startPublicListener(active.config, ticketSecrets.current(), {
    createHandler: (connection, downstream) => new ClientRequest(environment, connection, downstream),
    ...createListenerCounters(metrics),
    log,
    now,
  });
}

/** A running gateway process. */
export class Gateway {
  readonly port: number;
  readonly adminPort: number | undefined;
  readonly store: OpenedStore;
  readonly metrics: Metrics;
  readonly #parts: GatewayParts;
  /** Resolves after the pre-stop time; undefined until the shutdown is announced. */
  #preStop: Promise<void> | undefined;

  constructor(parts: GatewayParts) {
    this.#parts = parts;
    this.port = parts.listener.port;
    this.adminPort = parts.foundation.admin.port;
    this.store = parts.foundation.store;
    this.metrics = parts.foundation.metrics;
  }

  settings(): Settings {
    return this.#parts.active.config.settings;
  }

  /** For the console, which the supervisor serves. */
  findRecentEvents(query: RecentEventsQuery): RecentEventsResult {
    return this.#parts.foundation.recentEvents?.find(query) ?? NO_RECENT_EVENTS;
  }

  /** For the console. */
  getStatus(): GatewayStatus {
    return this.#parts.getStatus();
  }

  /** After log rotation: reopens the audit file. */
  reopenFiles(): void {
    this.#parts.foundation.audit.reopen();
  }

  /**
   * Applies new settings and returns the changed ones that need a restart. Throws a `StartError`, and keeps the old settings,
   * when the new ones cannot be used.
   */
  async reload(next: Settings, describe?: DescribeMessages): Promise<readonly string[]> {
    const { foundation, processState, active, ticketSecrets, listener, reloads } = this.#parts;
    const { settings: startSettings, authenticator, admin } = foundation;
    const previous = active.config;
    const recordRequest = createRequestRecorder(next, foundation);
    const config = await buildRuntimeConfig(next, processState, previous.files);
    // The process changes from here on: nothing can be rejected any more.
    const tls = createTlsContextOptions(config, ticketSecrets.current());
    if (tls !== undefined) listener.setSecureContext(tls);
    active.config = config;
    active.recordRequest = recordRequest;
    config.activate();
    // Reads the files named at startup: other paths need a restart.
    admin.reloadTls();
    authenticator.setKeyring(config.keyring);
    ticketSecrets.check();
    previous.retire();
    processState.streams.applyRules(config);
    reloads.apply();
    const pendingRestart = findRestartChanges(startSettings, next);
    logReload(foundation, previous, config, pendingRestart);
    logWarnings(config, foundation.log, describe);
    return pendingRestart;
  }

  /** Records that the configuration on disk cannot be used. */
  rejectReload(problems: readonly string[]): void {
    this.metrics.counter('gatehouse_config_reload_failed_total').value += 1;
    this.#parts.reloads.reject(problems);
  }

  /**
   * Reports "not ready", and serves every request and connection as before, but asks clients to use other connections. Connections
   * without requests are closed shortly before the end of the pre-stop time, when the upstream may stop as well.
   */
  announceShutdown(): void {
    // Without a pre-stop time, requests may still be in flight on idle connections.
    const seconds = Math.max(this.settings().shutdown.preStop, 2 * IDLE_CLOSE_SECONDS);
    if (this.#preStop === undefined)
      this.#parts.foundation.log.info('shutdown_announced', { pre_stop_seconds: seconds });
    this.#announceShutdown(seconds);
  }

  #announceShutdown(seconds: number): void {
    const { foundation, listener } = this.#parts;
    foundation.admin.isDraining = true;
    if (this.#preStop !== undefined) return;
    listener.announceClose();
    const lastSeconds = Math.min(IDLE_CLOSE_SECONDS, seconds / 2);
    setTimeout(() => listener.closeIdle(), (seconds - lastSeconds) * 1_000).unref();
    this.#preStop = pause(seconds * 1_000, undefined, { ref: false });
  }

  /**
   * Announces the shutdown, unless it is announced already, serves for the pre-stop time, lets requests end and closes. False:
   * some were cut off.
   */
  async drain(options: DrainOptions = {}): Promise<boolean> {
    const { foundation, active, processState, listener, reloads } = this.#parts;
    foundation.admin.isDraining = true;
    reloads.stop();
    const { shutdown } = active.config.settings;
    const { preStop = shutdown.preStop, drain = shutdown.drain } = options;
    foundation.log.info('draining', { pre_stop_seconds: preStop, drain_seconds: drain });
    if (preStop > 0) {
      this.#announceShutdown(preStop);
      await Promise.race([this.#preStop, pause(preStop * 1_000, undefined, { ref: false })]);
    }
    await processState.streams.drain();
    const isClean = await listener.drain(drain);
    await this.close();
    return isClean;
  }

  /** Closes at once. */
  async close(): Promise<void> {
    const { foundation, resources } = this.#parts;
    if (!resources.disposed) foundation.log.audit('service_stopped');
    // Before the store that it reads.
    await foundation.admin.close();
    await resources.disposeAsync();
  }
}

function logReload(
  { log, role }: Foundation,
  previous: RuntimeConfig,
  config: RuntimeConfig,
  pendingRestart: readonly string[],
): void {
  // The supervisor logs its own settings.
  logRestartNeeded(
    log,
    pendingRestart.filter((setting) => role !== 'worker' || !isSupervisorSetting(setting)),
  );
  if (previous.settings.publicUrl !== config.settings.publicUrl)
    log.warn('public_url_changed', {
      note: 'publicUrl is the issuer of tokens: tokens issued under the old one are rejected; clients obtain new ones with a refresh',
    });
  const sections = listChangedSections(previous.settings, config.settings);
  // A file that the configuration names may have changed instead.
  if (sections.length > 0) log.audit('configuration_changed', { sections });
  if (config.keyIds !== previous.keyIds) log.audit('keys_changed', { keys: config.keyIds });
}

/** Names of the changed sections, without their values. */
function listChangedSections(previous: Settings, next: Settings): string[] {
  const serialize = (value: unknown): string =>
    JSON.stringify(value, (_name, inner: unknown) =>
      inner instanceof Map || inner instanceof Set ? [...inner] : inner,
    ) ?? '';
  const before = new Map(Object.entries(previous).map(([name, value]) => [name, serialize(value)]));
  return Object.entries(next).flatMap(([name, value]) => (before.get(name) === serialize(value) ? [] : [name]));
}

function logWarnings(
  { files, tlsFileValidity, keyWarnings }: RuntimeConfig,
  log: Logger,
  describe: DescribeMessages = (messages) => messages,
): void {
  for (const problem of describe([...files.expired, ...tlsFileValidity.expired]))
    log.error('certificate_expired', { problem });
  for (const warning of describe([...files.warnings, ...tlsFileValidity.warnings]))
    log.warn('certificate_warning', { warning });
  for (const warning of keyWarnings) log.warn('key_warning', { warning });
}

/** Logged at each reload until the restart. */
export function logRestartNeeded(log: Pick<Logger, 'warn'>, settings: readonly string[]): void {
  for (const setting of settings)
    log.warn('restart_needed', {
      setting,
      note: 'this setting is read at startup; the old value stays in use until gatehouse is restarted',
    });
}
