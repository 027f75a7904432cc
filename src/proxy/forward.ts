import { BareExchange } from './bare-exchange.ts';
import type { PaceTerms } from './client-pace.ts';
import { type Carried, Exchange, type ForwardJob, type Lines, type PoolLine } from './exchange.ts';
import { watchHealth } from './health.ts';
import type { BareUpstream } from './leg/bare-upstream.ts';
import { deadlines } from './leg/deadlines.ts';
import { isBare, openSockets, type UpstreamSockets } from './leg/upstream-sockets.ts';
import { patience } from './patience.ts';
import { Slots } from './slots.ts';
import type { Targets } from './targets.ts';
import { contextOf, type UpstreamMaterial } from './upstream-files.ts';
import { openPool, type Pool } from './upstream-pool.ts';
import {
  BODY_BUFFER,
  BODY_SECONDS,
  MAX_PENDING,
  MIN_RATE,
  type UpstreamSettings,
} from './upstream-settings.ts';

/**
 * Carries requests to an upstream and its answers back, both streamed.
 *
 * It promises: a request is framed anew from what was read; redirects are not followed; an answer that breaks off
 * breaks off for the client too; whoever leaves early ends the other side. No body is sent twice, and nothing of which an
 * upstream may have seen more than a connection that it had closed.
 */
export interface Upstream {
  /** Undefined when it was refused at once. */
  forward(job: ForwardJob): Carried | undefined;
  /** Its bare sockets, which both lanes use; undefined where its targets need more than plain HTTP. */
  readonly bare: BareUpstream | undefined;
  /** Lets what runs end, within this time. */
  close(withinSeconds: number): Promise<void>;
}

export function openUpstream(
  settings: UpstreamSettings,
  targets: Targets,
  material: UpstreamMaterial,
): Upstream {
  const secureContext = contextOf(material);
  const pools: Pool[] = [];
  let closing = false;
  const open = (target: string, keepAlive: boolean): Pool => {
    const pool = openPool({ target, settings, secureContext, keepAlive });
    pools.push(pool);
    // Whoever comes now learns it from the pool.
    if (closing) void pool.destroy();
    return pool;
  };
  const { connections, maxPending = MAX_PENDING, timeouts } = settings;
  const pace: PaceTerms = {
    idle: timeouts.idle,
    body: timeouts.body ?? BODY_SECONDS,
    minRate: settings.minRate ?? MIN_RATE,
  };
  const { bodyBuffer = BODY_BUFFER } = settings;
  const lines = targets.all.map((target): PoolLine => {
    let pool: Pool | undefined;
    let fresh: Pool | undefined;
    return {
      slots: new Slots(target, { connections, maxPending }),
      pool: () => (pool ??= open(target.url, true)),
      fresh: () => (fresh ??= open(target.url, false)),
    };
  });
  const lineOf = ({ place }: { readonly place: number }): PoolLine => lines[place] as PoolLine;
  const all: Lines = { timeouts, pace, bodyBuffer, targets, lineOf, turns: patience(timeouts.headers) };
  const health = settings.health && watchHealth(targets, (target) => lineOf(target).fresh(), settings.health);

  const sockets = targets.all.every(({ url }) => isBare(url))
    ? targets.all.map((target) => openSockets(target.url, () => lineOf(target).slots.release()))
    : undefined;
  // The HTTP client is there before the first request.
  if (sockets === undefined) for (const line of lines) line.pool();
  const bare: BareUpstream | undefined = sockets && {
    timeouts,
    pace,
    bodyBuffer,
    targets,
    slotsOf: (target) => lineOf(target).slots,
    socketsOf: ({ place }) => sockets[place] as UpstreamSockets,
    deadlines: deadlines(),
  };

  return {
    bare,
    forward(job) {
      const exchange = bare === undefined ? new Exchange(all, job) : new BareExchange(bare, job);
      return exchange.start() ? exchange : undefined;
    },
    async close(withinSeconds) {
      closing = true;
      health?.stop();
      // A pool that is destroyed while it closes does not tell that it has closed.
      const cut = Promise.withResolvers<unknown>();
      const timer = setTimeout(() => {
        for (const one of sockets ?? []) one.cut();
        cut.resolve(Promise.allSettled(pools.map((pool) => pool.destroy())));
      }, withinSeconds * 1_000);
      const ends = [...(sockets ?? []), ...pools].map((one): Promise<unknown> => one.close());
      await Promise.race([Promise.allSettled(ends), cut.promise]);
      clearTimeout(timer);
    },
  };
}
