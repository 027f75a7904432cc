import type { Dispatcher } from 'undici';
import type { Target, Targets } from './targets.ts';
import type { Pool } from './upstream-pool.ts';
import type { HealthTerms } from './upstream-settings.ts';

/**
 * Asks each target now and then whether it is well. It decides only which target is chosen: whether gatehouse itself is
 * ready never depends on it.
 */
export function watchHealth(
  targets: Targets,
  poolOf: (target: Target) => Pool,
  terms: HealthTerms,
): { stop(): void } {
  const rows = targets.all.map((target) => ({ target, good: 0, bad: 0, asking: false }));
  const look = (): void => {
    for (const row of rows) {
      // The timeout may be longer than the interval.
      if (row.asking) continue;
      row.asking = true;
      probe(poolOf(row.target), terms, (isGood) => {
        row.asking = false;
        row.good = isGood ? row.good + 1 : 0;
        row.bad = isGood ? 0 : row.bad + 1;
        if (row.good >= terms.healthy) targets.judged(row.target, true);
        if (row.bad >= terms.unhealthy) targets.judged(row.target, false);
      });
    }
  };
  const timer = setInterval(look, terms.interval * 1_000).unref();
  look();
  return { stop: () => clearInterval(timer) };
}

/** Of the body of a health check, which decides nothing. */
const MAX_BODY = 1_048_576;

/** Good is any 2xx or 3xx within the time. */
function probe(pool: Pool, { path, timeout }: HealthTerms, done: (isGood: boolean) => void): void {
  const connection = pool.take();
  let controller: Dispatcher.DispatchController | undefined;
  let over = false;
  const finish = (isGood: boolean): void => {
    if (over) return;
    over = true;
    clearTimeout(timer);
    done(isGood);
  };
  const timer = setTimeout(() => {
    finish(false);
    controller?.abort(new Error('the health check took too long'));
  }, timeout * 1_000).unref();
  let good = false;
  let length = 0;
  connection.client.dispatch(
    { method: 'GET', path, headers: ['user-agent', 'gatehouse-health'] },
    {
      onRequestStart(given) {
        controller = given;
        connection.sieve.expect();
        if (over) given.abort(new Error('the health check took too long'));
      },
      onResponseStart(_given, status) {
        if (status >= 200) good = status < 400;
      },
      onResponseData(given, chunk) {
        length += chunk.length;
        if (length <= MAX_BODY) return;
        finish(good);
        given.abort(new Error('the response to the health check is too long'));
      },
      onResponseEnd() {
        pool.giveBack(connection, true);
        finish(good);
      },
      onResponseError() {
        pool.giveBack(connection, false);
        finish(false);
      },
    },
  );
}
