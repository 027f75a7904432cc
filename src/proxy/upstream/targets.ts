import type { Settings } from '../../config/schema.ts';

/** See `upstreams` in docs/configuration.md. Times in seconds. */
export interface UpstreamSettings extends Omit<Settings['upstreams'][string], 'url' | 'urls' | 'audience'> {
  /** Bytes per second at which clients must send a body. */
  readonly minRate?: number;
}

/** One of the addresses of an upstream. */
export interface Target {
  readonly index: number;
  readonly url: string;
  /** Requests, also those that wait for a connection, and WebSockets. */
  pending: number;
  /** Those of them that are open event streams or WebSockets. */
  streams: number;
}

/** `http://host:port`, `https://host:port` or `unix:/path`; over a Unix socket, requests name `localhost`. */
export function parseTargetUrl(url: string) {
  const socketPath = url.startsWith('unix:') ? url.slice('unix:'.length) : undefined;
  const { protocol, host, hostname, port } = new URL(socketPath === undefined ? url : 'http://localhost');
  const defaultPort = protocol === 'https:' ? 443 : 80;
  return { protocol, host, hostname, port: port === '' ? defaultPort : Number(port), socketPath };
}

/** For the log. */
export interface TargetEvent {
  readonly event: 'target_ejected' | 'target_restored';
  readonly target: string;
  readonly reason?: string;
  readonly seconds?: number;
}

interface TargetsOptions {
  readonly ejection: UpstreamSettings['ejection'];
  readonly onEvent?: (event: TargetEvent) => void;
  /** Seconds, monotonic. */
  readonly clock?: () => number;
}

/** Seconds. The first ejection; it doubles each time. */
const FIRST_EJECTION = 5;
const LONGEST_EJECTION = 300;

interface TargetState {
  failures: number;
  /** Ejections in a row. */
  ejections: number;
  /** 0: not ejected. */
  ejectedUntil: number;
  isHealthy: boolean;
}

/** The targets of an upstream, and which of them are available. */
export class Targets {
  readonly all: readonly Target[];
  readonly #states: readonly TargetState[];
  readonly #maxFailures: number;
  readonly #onEvent: (event: TargetEvent) => void;
  readonly #clock: () => number;
  #nextStart = 0;

  constructor(urls: readonly string[], options: TargetsOptions) {
    this.all = urls.map((url, index) => ({ index, url, pending: 0, streams: 0 }));
    this.#states = urls.map(() => ({ failures: 0, ejections: 0, ejectedUntil: 0, isHealthy: true }));
    this.#maxFailures = options.ejection.failures;
    this.#onEvent = options.onEvent ?? (() => {});
    this.#clock = options.clock ?? (() => performance.now() / 1_000);
  }

  /** The available target with the fewest pending requests; without one, the target that was ejected first. */
  choose(except?: Target): Target {
    const { all } = this;
    const now = this.#clock();
    const start = this.#nextStart++ % all.length;
    let best: Target | undefined;
    let leastPenalized: Target | undefined;
    for (let offset = 0; offset < all.length; offset += 1) {
      const target = all[(start + offset) % all.length] as Target;
      if (target === except && all.length > 1) continue;
      if (this.#isAvailable(target, now)) {
        if (best === undefined || target.pending < best.pending) best = target;
      } else if (leastPenalized === undefined || this.#getPenalty(target) < this.#getPenalty(leastPenalized))
        leastPenalized = target;
    }
    return (best ?? leastPenalized) as Target;
  }

  /** Is another target available? */
  hasOther(excluded: Target): boolean {
    const now = this.#clock();
    return this.all.some((target) => target !== excluded && this.#isAvailable(target, now));
  }

  /** Another available target; without one, the same target. */
  chooseOther(excluded: Target): Target {
    return this.hasOther(excluded) ? this.choose(excluded) : excluded;
  }

  /** It responded, with any status. */
  reportSuccess(target: Target): void {
    const state = this.#getState(target);
    if (state.failures === 0 && state.ejectedUntil === 0) return;
    const wasEjected = state.ejectedUntil !== 0;
    state.failures = 0;
    state.ejections = 0;
    state.ejectedUntil = 0;
    if (wasEjected) this.#onEvent({ event: 'target_restored', target: target.url });
  }

  /** No connection could be established, or it was closed without a response. */
  reportFailure(target: Target): void {
    const state = this.#getState(target);
    const now = this.#clock();
    state.failures += 1;
    // Requests that were running when it was ejected fail as well.
    if (state.failures < this.#maxFailures || state.ejectedUntil > now) return;
    const seconds = Math.min(FIRST_EJECTION * 2 ** Math.min(state.ejections, 30), LONGEST_EJECTION);
    state.ejections += 1;
    state.ejectedUntil = now + seconds;
    if (this.all.length > 1)
      this.#onEvent({ event: 'target_ejected', target: target.url, reason: 'connections failed', seconds });
  }

  /** The result of health checks. */
  reportHealth(target: Target, isHealthy: boolean): void {
    const state = this.#getState(target);
    if (state.isHealthy === isHealthy) return;
    state.isHealthy = isHealthy;
    this.#onEvent(
      isHealthy
        ? { event: 'target_restored', target: target.url }
        : { event: 'target_ejected', target: target.url, reason: 'health check' },
    );
  }

  countEjected(): number {
    const now = this.#clock();
    return this.#states.filter(({ isHealthy, ejectedUntil }) => !isHealthy || ejectedUntil > now).length;
  }

  #getState({ index }: Target): TargetState {
    return this.#states[index] as TargetState;
  }

  /** After an ejection a target gets one request at a time until it has responded. Streams from before may still be open. */
  #isAvailable(target: Target, now: number): boolean {
    const { isHealthy, ejectedUntil } = this.#getState(target);
    return isHealthy && (ejectedUntil === 0 || (ejectedUntil <= now && target.pending === target.streams));
  }

  #getPenalty(target: Target): number {
    const { isHealthy, ejectedUntil } = this.#getState(target);
    return (isHealthy ? 0 : 1e9) + ejectedUntil;
  }
}
