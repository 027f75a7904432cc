import type { Worker } from 'node:cluster';
import { isSupervisorSetting } from '../../config/restart-settings.ts';
import type { Settings } from '../../config/schema.ts';
import { withTimeout } from '../../lib/promises.ts';
import { StartError } from '../../lib/start-error.ts';
import type { GatewayStatus } from '../../observability/gateway-status.ts';
import { errorFields, type Logger } from '../../observability/logger.ts';
import { dropGauges, mergeSnapshots, type Snapshot } from '../../observability/metric-registry.ts';
import type { RecentEventsQuery, RecentEventsResult } from '../../observability/recent-events.ts';
import { createMemoryLimits } from '../../stores/memory-limits.ts';
import { handleRateLimitRequest, type SupervisorMessage, type WorkerMessage, type WorkerQuery } from './ipc.ts';

interface WorkerPoolOptions {
  readonly fork: () => Worker;
  readonly count: number;
  /** The configuration file as the supervisor read it. */
  readonly text: string | undefined;
  readonly getShutdown: () => Settings['shutdown'];
  readonly log: Logger;
  /** A worker has applied another configuration. */
  readonly onReloaded: () => void;
}

type StartOutcome = { readonly ok: true } | { readonly ok: false; readonly problems: readonly string[] };

interface PoolWorker {
  readonly worker: Worker;
  readonly started: PromiseWithResolvers<StartOutcome>;
  readonly exited: PromiseWithResolvers<number | null>;
  state: 'starting' | 'ready' | 'exited';
  /** Not one of the `count` workers of the pool: a successor that is not ready yet, or a worker that is draining. */
  isSurplus: boolean;
  isOverloaded: boolean;
  snapshot: Snapshot;
}

const RESTART_DELAY_MS = 1_000;
const START_TIMEOUT_MS = 60_000;
/** Prometheus scrapes time out after 10 s by default. */
const SNAPSHOT_TIMEOUT_MS = 1_000;
const KILL_MARGIN_SECONDS = 5;

/** Starts, restarts, replaces and drains the workers of one machine. */
export class WorkerPool {
  readonly #options: WorkerPoolOptions;
  readonly #workers = new Set<PoolWorker>();
  readonly #allReady = Promise.withResolvers<number>();
  readonly #limits;
  #phase: 'starting' | 'running' | 'closing' = 'starting';
  #isShutdownAnnounced = false;
  #lastGoodConfig: string | undefined;
  /** Start-up fails when more workers than this exit before all are ready. */
  #earlyExitsLeft: number;
  /** Counters of exited workers. */
  #exitedTotals: Snapshot = {};
  /** Workers that the running rolling restart replaces. */
  #restarting: readonly PoolWorker[] = [];
  #rollingRestart: Promise<void> | undefined;
  #queuedCause: string | undefined;
  /** Receivers of the results, by the id of the query. */
  readonly #queries = new Map<number, (result: unknown) => void>();
  #lastQuery = 0;

  constructor(options: WorkerPoolOptions) {
    const { count, text } = options;
    this.#options = options;
    this.#lastGoodConfig = text;
    this.#earlyExitsLeft = count;
    this.#limits = createMemoryLimits(() => Date.now() / 1_000, count);
  }

  /** Resolves with the port when all workers are ready. */
  async start(): Promise<number> {
    for (let index = 0; index < this.#options.count; index += 1) this.#startWorker();
    const port = await this.#allReady.promise;
    if (this.#phase === 'starting') this.#phase = 'running';
    return port;
  }

  countReady(): number {
    return this.#listReady().length;
  }

  /** Is the event loop of any worker overloaded? */
  isOverloaded(): boolean {
    return [...this.#workers].some((entry) => entry.isOverloaded);
  }

  pids(): readonly number[] {
    return [...this.#workers].flatMap(({ worker: { process } }) => (process.pid === undefined ? [] : [process.pid]));
  }

  /** Metrics of all workers, exited ones included. A worker that does not respond in time contributes its last snapshot. */
  async collectSnapshots(): Promise<readonly Snapshot[]> {
    await this.#query(this.#listReady(), 'snapshot');
    return this.getLastSnapshots();
  }

  /** The snapshots that the workers sent last: every few seconds. */
  getLastSnapshots(): readonly Snapshot[] {
    return [this.#exitedTotals, ...[...this.#workers].map(({ snapshot }) => snapshot)];
  }

  /** From every worker that responds in time. */
  findRecentEvents(query: RecentEventsQuery): Promise<readonly RecentEventsResult[]> {
    return this.#query(this.#listReady(), query);
  }

  /** From every worker that responds in time, without those that are being replaced. */
  findStatuses(): Promise<readonly GatewayStatus[]> {
    const workers = this.#listReady().filter(({ isSurplus }) => !isSurplus);
    return this.#query(workers, 'status');
  }

  /** The configuration file as a worker has applied it last. */
  get lastGoodConfig(): string | undefined {
    return this.#lastGoodConfig;
  }

  broadcast(message: SupervisorMessage): void {
    for (const entry of this.#workers) send(entry, message);
  }

  /** One by one, each by a successor that is ready. Stops at the first one that cannot be replaced. */
  replaceAll(cause: string): Promise<void> {
    if (this.#rollingRestart === undefined) this.#rollingRestart = this.#restartUntilDone(cause);
    else this.#queuedCause = cause;
    return this.#rollingRestart;
  }

  /** Also applies to workers that start later. */
  announceShutdown(): void {
    this.#isShutdownAnnounced = true;
    this.broadcast({ kind: 'announce_shutdown' });
  }

  /** Drains all workers, and kills those that still run afterwards. True: all requests ended. */
  async drain({ preStop, drain }: Settings['shutdown']): Promise<boolean> {
    this.#phase = 'closing';
    const results = [...this.#workers].map(async ({ state, exited }) => {
      const code = await exited.promise;
      // A worker that was not ready had no requests to cut off.
      return code === 0 || state !== 'ready';
    });
    this.broadcast({ kind: 'drain', preStop, drain });
    const killTimer = setTimeout(() => this.kill(), (preStop + drain + KILL_MARGIN_SECONDS) * 1_000);
    const areClean = await Promise.all(results);
    clearTimeout(killTimer);
    return areClean.every(Boolean);
  }

  kill(): void {
    this.#phase = 'closing';
    for (const { worker } of this.#workers) worker.process.kill('SIGKILL');
  }

  /** `T`: the result of this query. */
  async #query<T>(workers: readonly PoolWorker[], query: WorkerQuery): Promise<readonly T[]> {
    const found: T[] = [];
    const id = (this.#lastQuery += 1);
    const complete = Promise.withResolvers<void>();
    this.#queries.set(id, (result) => {
      found.push(result as T);
      if (found.length === workers.length) complete.resolve();
    });
    for (const entry of workers) send(entry, { kind: 'query', id, query });
    if (workers.length > 0) await withTimeout(complete.promise, SNAPSHOT_TIMEOUT_MS, () => {});
    this.#queries.delete(id);
    return found;
  }

  #listReady(): PoolWorker[] {
    return [...this.#workers].filter(({ state }) => state === 'ready');
  }

  #listActive(): PoolWorker[] {
    return [...this.#workers].filter(({ isSurplus }) => !isSurplus);
  }

  #startWorker(isSurplus = false): PoolWorker {
    const { fork, log } = this.#options;
    const entry: PoolWorker = {
      worker: fork(),
      started: Promise.withResolvers(),
      exited: Promise.withResolvers(),
      state: 'starting',
      isSurplus,
      isOverloaded: false,
      snapshot: {},
    };
    this.#workers.add(entry);
    entry.worker.on('message', (message: WorkerMessage) => this.#handleMessage(entry, message));
    // Without a listener, a message to a worker that has just died would end the supervisor.
    entry.worker.on('error', (error) => log.warn('worker_unreachable', errorFields(error)));
    entry.worker.once('exit', (code, signal) => this.#handleExit(entry, code, signal));
    return entry;
  }

  #handleMessage(entry: PoolWorker, message: WorkerMessage): void {
    const { count, log, onReloaded } = this.#options;
    switch (message.kind) {
      case 'ready':
        entry.state = 'ready';
        if (this.#isShutdownAnnounced) send(entry, { kind: 'announce_shutdown' });
        entry.started.resolve({ ok: true });
        if (this.countReady() >= count) this.#allReady.resolve(message.port);
        return;
      case 'start_failed':
        entry.started.resolve({ ok: false, problems: message.problems });
        if (this.#phase === 'starting') this.#allReady.reject(new StartError(message.problems));
        else log.error('worker_start_failed', { problems: message.problems });
        return;
      case 'config_request':
        return send(entry, { kind: 'settings', text: this.#lastGoodConfig });
      case 'reloaded':
        this.#lastGoodConfig = message.text ?? this.#lastGoodConfig;
        onReloaded();
        return this.#restartIfNeeded(entry, message.pendingRestart);
      case 'overload':
        entry.isOverloaded = message.overloaded;
        return;
      case 'snapshot':
        entry.snapshot = message.snapshot;
        return;
      case 'query_result':
        return this.#queries.get(message.id)?.(message.result);
      case 'limit':
        void handleRateLimitRequest(this.#limits, message).then((response) => send(entry, response));
    }
  }

  #handleExit(entry: PoolWorker, code: number | null, signal: string | null): void {
    const { log } = this.#options;
    this.#workers.delete(entry);
    this.#exitedTotals = mergeSnapshots([this.#exitedTotals, dropGauges(entry.snapshot)]);
    entry.state = 'exited';
    entry.started.resolve({ ok: false, problems: [`the worker exited with ${signal ?? code}`] });
    entry.exited.resolve(code);
    if (this.#isClosing() || entry.isSurplus) return;
    log.error('worker_exited', { pid: entry.worker.process.pid, code, signal });
    if (this.#phase === 'starting' && (this.#earlyExitsLeft -= 1) < 0)
      this.#allReady.reject(new StartError(['listen.workers: the workers exit before they are ready; see the log']));
    setTimeout(() => {
      if (!this.#isClosing() && this.#listActive().length < this.#options.count) this.#startWorker();
    }, RESTART_DELAY_MS);
  }

  /** Settings that only new workers read: every worker reports them, and one rolling restart applies them. */
  #restartIfNeeded(entry: PoolWorker, pendingRestart: readonly string[]): void {
    const settings = pendingRestart.filter((setting) => !isSupervisorSetting(setting));
    if (settings.length === 0 || this.#isClosing()) return;
    if (this.#restarting.includes(entry) || entry.isSurplus) return;
    void this.replaceAll(`changed: ${settings.join(', ')}`);
  }

  async #restartUntilDone(firstCause: string): Promise<void> {
    for (let cause: string | undefined = firstCause; cause !== undefined; cause = this.#queuedCause) {
      this.#queuedCause = undefined;
      await this.#restartOnce(cause);
    }
    this.#rollingRestart = undefined;
  }

  async #restartOnce(cause: string): Promise<void> {
    const { log } = this.#options;
    this.#restarting = this.#listActive();
    log.info('workers_restarting', { cause, workers: this.#restarting.length });
    let isComplete = true;
    for (const entry of this.#restarting) isComplete &&= entry.state === 'exited' || (await this.#replace(entry));
    if (isComplete) log.info('workers_restarted', { cause });
    this.#restarting = [];
  }

  /** False: the old worker keeps running, because its successor cannot start. */
  async #replace(old: PoolWorker): Promise<boolean> {
    if (this.#isClosing()) return false;
    const successor = this.#startWorker(true);
    const outcome = await withTimeout<StartOutcome>(successor.started.promise, START_TIMEOUT_MS, () => ({
      ok: false,
      problems: ['the new worker was not ready in time'],
    }));
    if (!outcome.ok) {
      this.#options.log.error('worker_replace_failed', {
        pid: old.worker.process.pid,
        problems: outcome.problems,
        note: 'the old worker keeps running',
      });
      successor.worker.process.kill('SIGKILL');
      return false;
    }
    successor.isSurplus = false;
    if (this.#isClosing()) return false;
    // The old worker may have died meanwhile, and may have been restarted.
    if (old.state !== 'exited') await this.#stopWorker(old);
    else if (this.#listActive().length > this.#options.count) await this.#stopWorker(successor);
    return true;
  }

  #isClosing(): boolean {
    return this.#phase === 'closing';
  }

  async #stopWorker(entry: PoolWorker): Promise<void> {
    entry.isSurplus = true;
    // The kernel distributes connections: no load balancer needs the pre-stop time.
    send(entry, { kind: 'drain', preStop: 0 });
    const killTimer = setTimeout(
      () => entry.worker.process.kill('SIGKILL'),
      (this.#options.getShutdown().drain + KILL_MARGIN_SECONDS) * 1_000,
    );
    await entry.exited.promise;
    clearTimeout(killTimer);
  }
}

function send({ worker }: PoolWorker, message: SupervisorMessage): void {
  if (worker.isConnected()) worker.send(message);
}
