import { longestGrant } from '../config/lifetimes.ts';
import { isOfSupervisor, needsRestart } from '../config/read-at-start.ts';
import type { Settings } from '../config/schema.ts';
import type { Call, DoneCall } from '../http/call.ts';
import { errorFields, type Logger } from '../observability/logger.ts';
import { createMetrics, type Metrics } from '../observability/metrics.ts';
import { headerValue } from '../observability/trace.ts';
import type { AdminListener } from '../ops/admin.ts';
import type { AdministrationDeps } from '../ops/administration.ts';
import { Fault } from '../ports/fault.ts';
import type { SharedLimits } from '../ports/shared-limits.ts';
import { createFastLane } from '../proxy/fast/lane.ts';
import type { CallEnd } from '../tls/listener.ts';
import { ensureAdminToken } from './admin-token.ts';
import { lookupsOf } from './administration-lookups.ts';
import { keepsUp, materialOf, openAdminFor, openPublic, renewAdminTls } from './doors.ts';
import { gatewayMetrics, laneCounts, secured, turnedAway } from './gateway-metrics.ts';
import { buildGeneration, type Generation } from './generation.ts';
import { ensureKeyFile } from './keys.ts';
import type { LoopGuard } from './loop-guard.ts';
import { openObservers } from './observe.ts';
import { type OpenedStore, openStore } from './open-store.ts';
import { createPermanent } from './permanent.ts';
import { acceptedGrants, recordAuthentication, revocationsRestored } from './record-authentication.ts';
import { factsOf, requestEnded } from './request-log.ts';
import { rewriteGrants } from './rewrite-grants.ts';
import { StartError } from './start-error.ts';
import { keepTicketSecret } from './ticket-secret.ts';
import { timedStore } from './timed-store.ts';

export interface GatewayOptions {
  readonly settings: Settings;
  readonly log: Logger;
  readonly now?: () => number;
  /**
   * `alone`: the one process. `worker`: one of several that share a port and a store, under a supervisor that
   * holds the store's lock and answers probes.
   */
  readonly role?: 'alone' | 'worker';
  /** Counts that are shared with other processes, where the store does not keep them. */
  readonly limits?: SharedLimits;
  /** Whether this process keeps up; left out, it is taken to. */
  readonly loop?: Pick<LoopGuard, 'isPressed'>;
  /** Where this process counts; left out, a place of its own. */
  readonly metrics?: Metrics;
  /** Milliseconds that a Redis command may take. */
  readonly commandTimeout?: number | undefined;
}

/** Seconds; what is left out is as configured. */
export interface DrainTerms {
  readonly preStop?: number | undefined;
  readonly drain?: number | undefined;
}

/** A running gatehouse: opened, reloaded, drained, closed. */
export interface Gateway {
  readonly port: number;
  readonly adminPort: number | undefined;
  readonly store: OpenedStore;
  readonly settings: () => Settings;
  readonly metrics: Metrics;
  /** Files that are written to were moved away: goes on with new ones. */
  reopenFiles(): void;
  /**
   * Moves to new settings; throws a `StartError` and stays as it was when they cannot be used. Tells which of the changed
   * settings count only after a restart.
   */
  reload(settings: Settings): Promise<readonly string[]>;
  /**
   * Says "not ready", goes on serving for the pre-stop time, lets running requests end, closes. True: all ended by
   * themselves, and none was cut off.
   */
  drain(terms?: DrainTerms): Promise<boolean>;
  /** Closes at once. */
  close(): Promise<void>;
}

const systemClock = (): number => Date.now() / 1_000;

export async function openGateway(options: GatewayOptions): Promise<Gateway> {
  const { settings, now = systemClock, role = 'alone', loop, metrics = createMetrics() } = options;
  // Not ready comes first; what is in front of us needs the pre-stop time to notice it.
  let ready = true;
  let opened: OpenedStore | undefined;
  const closing: (() => Promise<void>)[] = [];
  let admin: AdminListener | undefined;
  let administration: AdministrationDeps | undefined;
  const answerProbes = async (): Promise<void> => {
    if (role !== 'alone' || admin !== undefined) return;
    admin = await openAdminFor(
      settings,
      () => opened,
      () => !ready,
      [keepsUp(() => loop?.isPressed() === true)],
      async () => [await metrics.snapshot()],
      () => administration,
      options.log,
    );
    closing.push(async () => admin?.close());
  };
  try {
    const { log, audit, tracer, ...observers } = await openObservers(settings, options.log, metrics);
    closing.push(() => observers.close());
    const authenticator = recordAuthentication({ settings, log, metrics, now });
    const store = await openStore({
      settings,
      log,
      now,
      authenticator,
      onRestored: revocationsRestored({ log, metrics }),
      role,
      commandTimeout: options.commandTimeout,
      // Alive, and not ready: whoever probes us should wait as we do.
      onWaiting: answerProbes,
    });
    opened = store;
    closing.push(() => store.close());
    if (role === 'alone') {
      await ensureKeyFile(settings, store);
      ensureAdminToken(settings.admin.tokenFile, log);
    }
    const permanent = createPermanent({
      settings,
      store: timedStore(store, metrics),
      log,
      now,
      metrics,
      mayRecord: () => !settings.audit.failClosed || !audit.isBlocked(),
      limits: store.limits ?? options.limits,
      isTraced: tracer !== undefined,
      isPressed: () => loop?.isPressed() === true,
    });
    closing.push(() => permanent.stop());
    let current = await onceThere(
      () => buildGeneration(settings, permanent),
      settings,
      async (fault) => {
        log.error('store_away_at_start', {
          reason: fault.message,
          note: 'nobody is served before the keys were held against the store; trying again until it answers',
        });
        await answerProbes();
      },
    );
    authenticator.use(current.keyring);
    const judgeStreams = (): void => {
      const clients = new Set(current.settings.integrations.map(({ clientId }) => clientId));
      permanent.streams.judgeBy({
        knowsClient: (clientId) => clients.has(clientId),
        acceptsCertificate: current.acceptsCertificate,
      });
    };
    judgeStreams();
    closing.push(() => current.close());
    administration = {
      store: permanent.store,
      log,
      now,
      longestGrant: () => longestGrant(current.settings),
      ...lookupsOf(() => current.settings),
    };
    let draining = false;

    const onCall = (call: Call): void => {
      const generation = current;
      if (draining) call.response.setHeader('connection', 'close');
      const span =
        tracer !== undefined &&
        tracer.begin(
          headerValue(call.request.rawHeaders, 'traceparent'),
          call.sourceUnknown !== true && generation.settings.trustedProxies.includes(call.peer),
        );
      if (span) call.note(span);
      lanes.full(lane.reasonOf(call.request.socket));
      serve(generation, call, log);
    };
    const lanes = laneCounts(metrics);
    const watchers = { log, metrics, tracer };
    let ended = requestEnded(current.settings, watchers);
    const hooks = {
      onBegin: () => metrics.requestBegan(),
      onDone: (call: DoneCall, end: CallEnd) => ended(factsOf(call, end)),
    };
    const lane = createFastLane({
      limits: settings.limits,
      current: () => current.fast,
      onBegin() {
        lanes.fast();
        hooks.onBegin();
      },
      onDone: hooks.onDone,
      log,
      now,
    });
    const tickets = await keepTicketSecret({
      isShared: () => current.settings.listen.tls?.sessionTickets === 'shared',
      notes: permanent.store.notes,
      keyring: () => current.keyring,
      now,
      log,
    });
    closing.push(() => tickets.stop());
    const listener = await openPublic(current, log, now, tickets.current(), {
      // Whom to believe follows every reload, here as in the generation.
      trustedProxies: {
        get some() {
          return current.settings.trustedProxies.some;
        },
        includes: (address) => current.settings.trustedProxies.includes(address),
      },
      onCall,
      ...hooks,
      onSecured: secured(metrics),
      onTurnedAway: turnedAway(metrics),
      // It gives everything away while the generation in force has no fast lane.
      firstReader: lane,
    });
    tickets.follow((secret) => listener.setTicketSecret(secret));
    await permanent.serving.start();
    if (role === 'alone' && settings.store.unauthenticatedRecords === 'accept') {
      const rewriting = rewriteGrants({ store, log, accepted: acceptedGrants(metrics) });
      closing.push(() => rewriting.stop());
    }
    const takenAt = gatewayMetrics(metrics, {
      files: () => current.files,
      upstreams: permanent.upstreams,
      listener,
      store,
      now,
    });
    closing.push(() => listener.close());
    await answerProbes();
    tellWarnings(current, log);
    log.audit('service_started');

    const close = async (): Promise<void> => {
      if (closing.length > 0) log.audit('service_stopped');
      while (closing.length > 0) await closing.pop()?.();
    };
    return {
      port: listener.port,
      adminPort: admin?.port,
      store,
      settings: () => current.settings,
      metrics,
      reopenFiles: () => audit.reopen(),
      async reload(next) {
        const built = await buildGeneration(next, permanent, current);
        try {
          const material = materialOf(built.settings, built.files, tickets.current());
          if (material !== undefined) listener.setSecureContext(material);
        } catch (error) {
          await built.close();
          throw new StartError([`listen.tls: ${(error as Error).message}`]);
        }
        // From where they were at start: another place counts after a restart, and is told below.
        renewAdminTls(admin, settings, log);
        const before = current;
        current = built;
        authenticator.use(built.keyring);
        permanent.useRetryWindow(built.settings.tokens.refresh.retryWindow);
        tickets.look();
        before.retire();
        judgeStreams();
        ended = requestEnded(built.settings, watchers);
        takenAt();
        // Against what this process was started with: a setting that was put back waits for nothing.
        const waiting = needsRestart(settings, next);
        // A replaced worker has started with the new values: the supervisor logs what is its own.
        logRestartNeeded(log, role === 'worker' ? waiting.filter((name) => !isOfSupervisor(name)) : waiting);
        if (before.settings.publicUrl !== next.publicUrl)
          log.warn('public_url_changed', {
            note: 'publicUrl is the issuer of tokens: those made under the old one are refused from now on; clients get new ones by a refresh',
          });
        tellWarnings(built, log);
        log.audit('configuration_changed', { sections: changedSections(before.settings, next) });
        if (built.keys !== before.keys) log.audit('keys_changed', { keys: built.keys });
        return waiting;
      },
      async drain(terms = {}) {
        ready = false;
        const { shutdown } = current.settings;
        const { preStop = shutdown.preStop, drain = shutdown.drain } = terms;
        log.info('draining', { preStopSeconds: preStop, drainSeconds: drain });
        await new Promise((resolve) => setTimeout(resolve, preStop * 1_000));
        draining = true;
        permanent.streams.goAway();
        const gentle = await listener.drain(drain);
        await close();
        return gentle;
      },
      close,
    };
  } catch (error) {
    while (closing.length > 0) await closing.pop()?.();
    throw error;
  }
}

/** Which parts of the configuration are others than before; of their values nothing is told. */
function changedSections(before: Settings, next: Settings): string[] {
  const text = (value: unknown): string =>
    JSON.stringify(value, (_name, inner: unknown) =>
      inner instanceof Map || inner instanceof Set ? [...inner] : inner,
    ) ?? '';
  const old = new Map(Object.entries(before).map(([name, value]) => [name, text(value)]));
  return Object.entries(next).flatMap(([name, value]) => (old.get(name) === text(value) ? [] : [name]));
}

const AGAIN_MS = 500;

/** At start the keys are held against the store. One that goes away just then is waited for, as it was before. */
async function onceThere<T>(
  build: () => Promise<T>,
  { store }: Settings,
  onWaiting: (fault: Fault) => Promise<void>,
): Promise<T> {
  for (let tries = 0; ; tries += 1) {
    try {
      return await build();
    } catch (error) {
      if (!(error instanceof Fault) || error.code !== 'store_unavailable' || store.type !== 'redis')
        throw error;
      if (tries === 0) await onWaiting(error);
      await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
    }
  }
}

/** What works today and will not for ever. */
function tellWarnings({ files, keyWarnings }: Generation, log: Logger): void {
  for (const warning of files.warnings) log.warn('certificate_warning', { warning });
  for (const warning of keyWarnings) log.warn('key_warning', { warning });
}

/** A mistake of ours in handling one call ends that call, with its id in the log and in the answer. */
function serve(generation: Generation, call: Call, log: Logger): void {
  try {
    const work = generation.handle(call);
    if (work instanceof Promise) work.catch((error: unknown) => failCall(call, log, error));
  } catch (error) {
    failCall(call, log, error);
  }
}

function failCall(call: Call, log: Logger, error: unknown): void {
  log.error('unexpected_error', { request_id: call.id, ...errorFields(error) });
  const { response } = call;
  if (response.headersSent) response.destroy();
  else
    response
      .writeHead(500, {
        'content-type': 'application/json',
        'cache-control': 'no-store',
        connection: 'close',
      })
      .end(
        JSON.stringify({
          error: 'server_error',
          error_description: 'An error of ours. Try again.',
          request_id: call.id,
        }),
      );
}

/** At each reload, for as long as it is so. */
export function logRestartNeeded(log: Pick<Logger, 'warn'>, settings: readonly string[]): void {
  for (const setting of settings)
    log.warn('restart_needed', {
      setting,
      note: 'this setting is read at start; the old value stays in force until gatehouse is restarted',
    });
}
