import type { Worker } from 'node:cluster';
import { isOfSupervisor } from '../config/read-at-start.ts';
import type { Settings } from '../config/schema.ts';
import { countsOf, joinSnapshots } from '../observability/exposition.ts';
import { errorFields, type Logger } from '../observability/logger.ts';
import type { Snapshot } from '../observability/metric-registry.ts';
import { memoryLimits } from '../stores/memory-limits.ts';
import type { DrainTerms } from './gateway.ts';
import { answerLimit, type LimitAnswer, type LimitAsk } from './limit-line.ts';
import { StartError } from './start-error.ts';

/** What workers tell their supervisor, and it tells them. */
export type FromWorker =
  | { readonly kind: 'ready'; readonly port: number }
  | { readonly kind: 'cannot_start'; readonly problems: readonly string[] }
  /** The file on disk cannot be used: what did it say when it could? */
  | { readonly kind: 'settings_wanted' }
  | { readonly kind: 'reloaded'; readonly text: string | undefined; readonly needRestart: readonly string[] }
  | { readonly kind: 'pressed'; readonly pressed: boolean }
  | { readonly kind: 'figures'; readonly figures: Snapshot }
  | LimitAsk;
export type ToWorker =
  | { readonly kind: 'reload' }
  | ({ readonly kind: 'drain' } & DrainTerms)
  | { readonly kind: 'settings'; readonly text: string | undefined }
  | { readonly kind: 'figures_wanted' }
  | LimitAnswer;

export interface CrewOptions {
  readonly fork: () => Worker;
  readonly count: number;
  /** The configuration file that is in force. */
  readonly text: string | undefined;
  readonly shutdown: Settings['shutdown'];
  readonly log: Logger;
  /** A worker has taken up another configuration. */
  readonly onReloaded?: () => void;
}

/** The workers of one machine: started, started again, replaced, ended. */
export interface Crew {
  /** Resolves with the port when all are ready. */
  start(): Promise<number>;
  ready(): number;
  /** One of them does not keep up. */
  isPressed(): boolean;
  pids(): readonly number[];
  /** What each of them has counted, and what those had that have ended. One that does not answer in time is known by what it said last. */
  figures(): Promise<readonly Snapshot[]>;
  tellAll(message: ToWorker): void;
  /** One by one, each by one that serves already. One that cannot be replaced stays, and so do those after it. */
  replaceAll(cause: string): Promise<void>;
  /** All of them; what has not ended within this time is killed. True: each ended well. */
  end(terms: DrainTerms, withinSeconds: number): Promise<boolean>;
  kill(): void;
}

const AGAIN_MS = 1_000;
const START_SECONDS = 60;
/** Whoever asks for figures has a time limit of its own, often of ten seconds. */
const FIGURES_MS = 1_000;
const MARGIN_SECONDS = 5;

type Started = { readonly ok: true } | { readonly ok: false; readonly problems: readonly string[] };

export function manCrew({ fork, count, text, shutdown, log, onReloaded }: CrewOptions): Crew {
  const workers = new Set<Worker>();
  const ready = new Set<Worker>();
  const pressed = new Set<Worker>();
  /** Those that are to end, and are missed by nobody. */
  const leaving = new Set<Worker>();
  const first = Promise.withResolvers<number>();
  let sound = text;
  let started = false;
  let ending = false;
  /** How many may end before all are ready: by accident, not by a configuration only the supervisor could read. */
  let early = count;
  /** Counted here for all workers. */
  const limits = memoryLimits({ now: () => Date.now() / 1_000, sharers: () => count });

  const figures = new Map<Worker, Snapshot>();
  let ofEnded: Snapshot = {};
  const askers = new Set<(worker: Worker) => void>();
  const heard = (worker: Worker): void => askers.forEach((asker) => asker(worker));

  const tell = (worker: Worker, message: ToWorker): void => {
    if (worker.isConnected()) worker.send(message);
  };

  const hear = (worker: Worker, message: FromWorker, settle: (how: Started) => void): void => {
    switch (message.kind) {
      case 'ready':
        ready.add(worker);
        settle({ ok: true });
        if (ready.size >= count) first.resolve(message.port);
        return;
      case 'cannot_start':
        settle({ ok: false, problems: message.problems });
        if (started) log.error('worker_cannot_start', { problems: message.problems });
        else first.reject(new StartError(message.problems));
        return;
      case 'settings_wanted':
        return tell(worker, { kind: 'settings', text: sound });
      case 'reloaded':
        sound = message.text ?? sound;
        onReloaded?.();
        return takeUp(worker, message.needRestart);
      case 'pressed':
        if (message.pressed) pressed.add(worker);
        else pressed.delete(worker);
        return;
      case 'figures':
        figures.set(worker, message.figures);
        heard(worker);
        return;
      case 'limit':
        void answerLimit(limits, message).then((answer) => tell(worker, answer));
    }
  };

  const staying = (): Worker[] => [...workers].filter((worker) => !leaving.has(worker));
  const fill = (): void => {
    if (!ending && staying().length < count) add();
  };

  /** Starts one; resolves when it serves, or cannot. */
  const add = (): { readonly worker: Worker; readonly outcome: Promise<Started> } => {
    const worker = fork();
    const outcome = Promise.withResolvers<Started>();
    workers.add(worker);
    worker.on('message', (message: FromWorker) => hear(worker, message, outcome.resolve));
    // Without a listener a message to one that has just died would end the supervisor, and all others with it.
    worker.on('error', (error) => log.warn('worker_unreachable', errorFields(error)));
    worker.once('exit', (code, signal) => {
      for (const list of [workers, ready, pressed]) list.delete(worker);
      ofEnded = joinSnapshots([ofEnded, countsOf(figures.get(worker) ?? {})]);
      figures.delete(worker);
      heard(worker);
      outcome.resolve({ ok: false, problems: [`it ended with ${signal ?? code}`] });
      if (ending || leaving.delete(worker)) return;
      log.error('worker_ended', { pid: worker.process.pid, code, signal });
      if (!started && (early -= 1) < 0)
        first.reject(new StartError(['listen.workers: the workers end before they are ready; see the log']));
      setTimeout(fill, AGAIN_MS);
    });
    return { worker, outcome: outcome.promise };
  };

  /** False: it stays, since its successor cannot start. */
  const replace = async (old: Worker): Promise<boolean> => {
    if (ending) return false;
    const { worker: next, outcome } = add();
    const late = Promise.withResolvers<Started>();
    const timer = setTimeout(
      () => late.resolve({ ok: false, problems: ['it was not ready in time'] }),
      START_SECONDS * 1_000,
    );
    // It is one more than there should be: should it end now, nobody is to start another.
    leaving.add(next);
    const how = await Promise.race([outcome, late.promise]);
    clearTimeout(timer);
    if (!how.ok) {
      log.error('worker_not_replaced', {
        pid: old.process.pid,
        problems: how.problems,
        note: 'the old one goes on',
      });
      next.process.kill('SIGKILL');
      return false;
    }
    leaving.delete(next);
    if (ending) return false;
    // The old one may have died meanwhile, and have a successor already.
    if (workers.has(old)) await dismiss(old);
    else if (staying().length > count) await dismiss(next);
    return true;
  };

  const dismiss = async (worker: Worker): Promise<void> => {
    leaving.add(worker);
    const ended = new Promise<void>((resolve) => worker.once('exit', () => resolve()));
    // Nobody in front of us chooses between workers, so there is nothing to wait for first.
    tell(worker, { kind: 'drain', preStop: 0 });
    const cut = setTimeout(() => worker.process.kill('SIGKILL'), (shutdown.drain + MARGIN_SECONDS) * 1_000);
    await ended;
    clearTimeout(cut);
  };

  let round: readonly Worker[] = [];
  let rolling: Promise<void> | undefined;
  let again: string | undefined;
  const roll = async (cause: string): Promise<void> => {
    round = staying();
    log.info('workers_restarting', { cause, workers: round.length });
    let all = true;
    for (const old of round) all &&= !workers.has(old) || (await replace(old));
    if (all) log.info('workers_restarted', { cause });
    round = [];
  };
  const replaceAll = (cause: string): Promise<void> => {
    if (rolling !== undefined) {
      again = cause;
      return rolling;
    }
    rolling = (async () => {
      let next: string | undefined = cause;
      do {
        again = undefined;
        await roll(next);
        next = again;
      } while (next !== undefined);
      rolling = undefined;
    })();
    return rolling;
  };

  /** A changed setting that only new workers take up: each worker tells it, and it is done once for all. */
  const takeUp = (worker: Worker, needRestart: readonly string[]): void => {
    const theirs = needRestart.filter((setting) => !isOfSupervisor(setting));
    if (theirs.length === 0 || round.includes(worker) || leaving.has(worker) || ending) return;
    void replaceAll(`changed: ${theirs.join(', ')}`);
  };

  const kill = (): void => {
    ending = true;
    for (const worker of workers) worker.process.kill('SIGKILL');
  };
  return {
    async start() {
      for (let index = 0; index < count; index += 1) add();
      const port = await first.promise;
      started = true;
      return port;
    },
    ready: () => ready.size,
    isPressed: () => pressed.size > 0,
    async figures() {
      // One that is still starting listens for something else.
      const missing = new Set(ready);
      const all = Promise.withResolvers<void>();
      const asker = (worker: Worker): void => {
        missing.delete(worker);
        if (missing.size === 0) all.resolve();
      };
      askers.add(asker);
      const timer = setTimeout(all.resolve, FIGURES_MS);
      for (const worker of ready) tell(worker, { kind: 'figures_wanted' });
      if (missing.size > 0) await all.promise;
      clearTimeout(timer);
      askers.delete(asker);
      return [ofEnded, ...figures.values()];
    },
    pids: () => [...workers].flatMap(({ process: { pid } }) => (pid === undefined ? [] : [pid])),
    tellAll: (message) => workers.forEach((worker) => tell(worker, message)),
    replaceAll,
    async end(terms, withinSeconds) {
      ending = true;
      const ends = [...workers].map(
        (worker) =>
          new Promise<boolean>((resolve) => {
            // One that does not serve yet, or cannot, cuts nobody off.
            const serves = ready.has(worker);
            worker.once('exit', (code) => resolve(code === 0 || !serves));
          }),
      );
      for (const worker of workers) tell(worker, { kind: 'drain', ...terms });
      const cut = setTimeout(kill, withinSeconds * 1_000);
      const well = await Promise.all(ends);
      clearTimeout(cut);
      return well.every(Boolean);
    },
    kill,
  };
}
